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
SIDES = np.array([*_SMALL, 256, 512, 768, 1024, *range(1536, 4097, 512), *_LARGE], dtype=float)
"""Nodes of the table in rows, and in columns and steps of the reduction."""


def interpolated(nodes: Floats, table: Columns) -> Floats:
    """Return the entry of a table, (even or odd, rows, columns, reduction), for each GEMM; a batch counts as additional rows."""
    odd = table.m % 2 == 1
    rows = _place(ROWS, table.batch * (table.m - odd))
    low, share = zip(rows, _place(SIDES, table.n), _place(SIDES, table.k), strict=True)
    result = np.zeros(len(table))
    for corner in np.ndindex(2, 2, 2):
        weight = np.prod([one if up else 1 - one for one, up in zip(share, corner, strict=True)], axis=0)
        index = tuple([one + up for one, up in zip(low, corner, strict=True)])
        result += weight * nodes[odd.astype(int), *index]
    return result


def _place(nodes: Floats, side: Floats) -> tuple[Floats, Floats]:
    """Return the index of the node below each side, and the position on the way to the next node, 0 to 1 in logarithms."""
    inside = side.clip(nodes[0], nodes[-1])
    low = np.searchsorted(nodes, inside, side="right").clip(1, len(nodes) - 1) - 1
    return low, np.log(inside / nodes[low]) / np.log(nodes[low + 1] / nodes[low])
