"""Tile of a GEMM: the tile of the nearest kernel among those profiled on the training GPUs.

The distance is Euclidean over shapes (elements) and figures of the GPU (`Board`), without scaling: the peak in GFLOP/s outweighs
all else, so that a GPU faster than all profiled ones takes the tiles of the fastest (`neusight/Model/meta.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.features import Columns
from clustersim.predictors.kinds.neusight_paper.board import Board

BLOCK = 256
"""Number of kernels looked up at a time, so that the distances to 18,000 profiled ones take 40 MB."""


class Tiles(NamedTuple):
    """Profiled GEMMs as columns."""

    shapes: Floats
    """Batch, m, n and k (rows, 4)."""
    sides: Floats
    """Rows and columns of their tiles (rows, 2)."""
    owner: Floats
    """Index into `boards` of the GPU that ran them (rows,)."""
    boards: Floats
    """SMs, peak, memory, bandwidth and L2 of each GPU (GPUs, 5)."""


NAMES = tuple(f"tiles.{name}" for name in Tiles._fields)
"""Names of the fields of `Tiles` as parameters of a class."""


def pack(tiles: Tiles) -> dict[str, Floats]:
    """Return {name of a parameter: column} of profiled GEMMs, to be stored in the weights of a class."""
    return dict(zip(NAMES, tiles, strict=True))


def unpack(parameters: Mapping[str, Floats]) -> Tiles:
    """Return the profiled GEMMs stored in the parameters of a class. The inverse of `pack`."""
    return Tiles(*(parameters[name] for name in NAMES))


def shapes(table: Columns) -> Floats:
    """Return batch, m, n and k of GEMMs, by which they are compared (kernels, 4)."""
    return np.stack([table.batch, table.m, table.n, table.k], axis=1)


def nearest(tiles: Tiles, targets: Floats, board: Board) -> Floats:
    """Return the rows and columns of the tile of the profiled GEMM nearest to each kernel on `board` (kernels, 2).

    targets: shapes of the kernels, from `shapes`.
    """
    gaps = ((tiles.boards - np.array(board)) ** 2).sum(axis=1)
    best, chosen = np.full(len(targets), np.inf), np.zeros((len(targets), 2))
    for index in np.argsort(gaps, kind="stable"):
        rows = np.flatnonzero(tiles.owner == index)
        farther = np.flatnonzero(best > gaps[index]) if len(rows) else rows
        for start in range(0, len(farther), BLOCK):
            chunk = farther[start : start + BLOCK]
            squared = _squared(targets[chunk], tiles.shapes[rows])
            closest = squared.argmin(axis=1)
            distance = squared[np.arange(len(chunk)), closest] + gaps[index]
            closer = distance < best[chunk]
            best[chunk[closer]] = distance[closer]
            chosen[chunk[closer]] = tiles.sides[rows[closest[closer]]]
    return chosen


def _squared(first: Floats, second: Floats) -> Floats:
    """Return the squared distances between two sets of shapes, (first, second). They are exact, because shapes are whole numbers
    below 2^26."""
    result: Floats = (first**2).sum(axis=1)[:, None] - 2 * first @ second.T + (second**2).sum(axis=1)
    return result
