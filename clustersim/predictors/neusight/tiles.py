"""How a kernel is cut into tiles and how many waves of them a GPU runs.

The tile of a GEMM is the one of least wave-quantised work among those that GEMM libraries ship; a table of profiled tiles
does not carry over to an unseen GPU. No rate of the GPU enters the choice, only its number of SMs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.predictors.columns import Columns, Floats

_SIDES = ((256, 128), (128, 256), (256, 64), (64, 256), (128, 128), (128, 64), (64, 128), (64, 64))
TILES = {
    "simt": (*_SIDES, (128, 32), (32, 128), (64, 32), (32, 64), (32, 32)),
    "tensor": ((256, 256), *_SIDES, (64, 32), (32, 64), (64, 16), (16, 64)),
}
SPLITS = (1, 2, 4, 8, 16)
EDGE = {"simt": 8.0, "tensor": 32.0}
"""Work to load a tile's operands, in columns: a tile of tm×tn computes tm·tn and loads tm + tn elements a step."""
EPILOGUE = 32.0
"""Work to write a tile, in steps of the reduction; once more for every split of it."""


BATCHED = {"pascal": ((64, 128),), "ampere": ((128, 128),), "ada": ((128, 128),)}
"""cuBLAS has a single tile for batched FP32 products on these architectures (kernel names of NeuSight's tables)."""


class Tiling(NamedTuple):
    """The tile of each kernel (rows, columns, splits of the reduction), its tiles in all, and their waves."""

    rows: Floats
    columns: Floats
    splits: Floats
    blocks: Floats
    waves: Floats


def candidates(table: Columns, architecture: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the units (simt, tensor) that GEMMs of one class run on, and the tiles there are."""
    if table.dtype[0] not in ("fp32", "fp64"):
        return "tensor", TILES["tensor"]
    batched = BATCHED.get(architecture) if table.kind[0] == "bmm" else None
    return "simt", batched or TILES["simt"]


def gemm(table: Columns, sms: int, architecture: str) -> Tiling:
    """Return the tiling of each GEMM of one class on `sms` SMs."""
    units, tiles = candidates(table, architecture)
    best = np.full(len(table), np.inf)
    chosen = np.ones((5, len(table)))
    for rows, columns in tiles:
        for splits in SPLITS:
            blocks = table.batch * np.ceil(table.m / rows) * np.ceil(table.n / columns) * splits
            waves = np.ceil(blocks / sms)
            step = rows * columns + EDGE[units] * (rows + columns)
            steps = table.k / splits + EPILOGUE * (1 if splits == 1 else 2 + splits / 2)
            cost = np.where((splits == 1) | (table.k >= 256 * splits), waves * step * steps, np.inf)
            new = np.stack(np.broadcast_arrays(rows, columns, splits, blocks, waves)).astype(np.float64)
            chosen = np.where(cost < best, new, chosen)
            best = np.minimum(cost, best)
    return Tiling(*chosen)


def attention(table: Columns, sms: int) -> Tiling:
    """Return the tiling of each flash-attention kernel: a head's block of 128 queries is one tile."""
    return _whole(table, table.batch * table.heads * np.ceil(table.m / 128), sms, 128)


def vector(table: Columns, sms: int) -> Tiling:
    """Return the tiling of each vector kernel: a row a tile, or 1024 elements of an element-wise kernel."""
    rows = np.isin(table.kind, ("softmax", "layernorm"))
    return _whole(table, np.where(rows, table.m, np.ceil(table.m * table.n / 1024)), sms, 1)


def _whole(table: Columns, blocks: Floats, sms: int, rows: int) -> Tiling:
    one = np.ones(len(table))
    return Tiling(rows * one, table.n, one, blocks, np.ceil(blocks / sms))
