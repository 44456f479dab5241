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


def pack(tiles: Tiles) -> dict[str, Floats]:
    """Return the columns of profiled GEMMs as parameters of a class, by name."""
    return dict(zip(NAMES, tiles, strict=True))


def unpack(parameters: Mapping[str, Floats]) -> Tiles:
    """Return the profiled GEMMs stored in the parameters of a class. The inverse of `pack`."""
    return Tiles(*(parameters[name] for name in NAMES))


def shapes(table: Columns) -> Floats:
    """Return the features by which GEMMs are compared, an array (kernel; batch, m, n, k)."""
    return np.stack([table.batch, table.m, table.n, table.k], axis=1)


def nearest(tiles: Tiles, wanted: Floats, board: Board) -> Floats:
    """Return the tile sides (kernel; rows, columns) of the profiled GEMMs nearest to the shapes `wanted` on `board`."""
    gaps = ((tiles.boards - np.array(board)) ** 2).sum(axis=1)
    best, chosen = np.full(len(wanted), np.inf), np.zeros((len(wanted), 2))
    for index in np.argsort(gaps, kind="stable"):
        rows = np.flatnonzero(tiles.owner == index)
        farther = np.flatnonzero(best > gaps[index]) if len(rows) else rows
        for start in range(0, len(farther), BLOCK):
            part = farther[start : start + BLOCK]
            squared = _squared(wanted[part], tiles.shapes[rows])
            found = squared.argmin(axis=1)
            distance = squared[np.arange(len(part)), found] + gaps[index]
            closer = distance < best[part]
            best[part[closer]] = distance[closer]
            chosen[part[closer]] = tiles.sides[rows[found[closer]]]
    return chosen


def _squared(some: Floats, others: Floats) -> Floats:
    """Return the squared distances, (some, others). They are exact, because shapes are whole numbers below 2^26."""
    result: Floats = (some**2).sum(axis=1)[:, None] - 2 * some @ others.T + (others**2).sum(axis=1)
    return result
