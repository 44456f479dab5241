"""Correction from one GPU's measured GEMMs: a table of log(seconds) that grows with every side.

Between nodes it is linear in the logarithms of the sides, so that a larger product is never forecast faster. Products with an odd
number of rows, which 8-bit kernels handle worse, have a table of their own. lab/train/learners/neusight.py learns it.
"""

from __future__ import annotations

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.features import Columns

_SMALL, _LARGE = (1, 32, 64, 128), (5120, 6144, 7168, 8192, 10_240, 12_288, 16_384, 51_200, 65_536, 262_144)
_LONG = (256, 384, 512, 768, *range(1024, 4353, 256), 8192, 16_384, 32_768, 131_072)
ROWS = np.array([*_SMALL[:3], *range(128, 256, 32), *_LONG], dtype=float)
"""Numbers of rows at the nodes of the table."""
SIDES = np.array([*_SMALL, 256, 512, 768, 1024, *range(1536, 4097, 512), *_LARGE], dtype=float)
"""Numbers of columns, and of steps of the reduction, at the nodes of the table."""


def interpolated(nodes: Floats, table: Columns) -> Floats:
    """Return the value of a table of log(seconds) for each GEMM (kernels,), linear in the logarithms of its sides.

    nodes: table (2; even and odd rows, rows, columns, reduction). A batch counts as additional rows.
    """
    odd = table.m % 2 == 1
    rows = _place(ROWS, table.batch * (table.m - odd))
    below, fractions = zip(rows, _place(SIDES, table.n), _place(SIDES, table.k), strict=True)
    result = np.zeros(len(table))
    for corner in np.ndindex(2, 2, 2):
        factors = [fraction if up else 1 - fraction for fraction, up in zip(fractions, corner, strict=True)]
        index = tuple([node + up for node, up in zip(below, corner, strict=True)])
        result += np.prod(factors, axis=0) * nodes[odd.astype(int), *index]
    return result


def _place(nodes: Floats, side: Floats) -> tuple[Floats, Floats]:
    """Return, for each side, the index of the node below it and the way to the next node, 0 to 1 in logarithms. Sides beyond the
    ends are at the ends."""
    inside = side.clip(nodes[0], nodes[-1])
    low = np.searchsorted(nodes, inside, side="right").clip(1, len(nodes) - 1) - 1
    return low, np.log(inside / nodes[low]) / np.log(nodes[low + 1] / nodes[low])
