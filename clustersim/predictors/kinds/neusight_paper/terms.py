"""Inputs of the published equation for a kernel: waves, seconds at the roofline, and the four inputs of the network.

    tile        product: rows × columns, whole reduction k; vector kernel: 512 elements, or a row (softmax, layer norm)
    waves       = ceil(tiles / SMs)
    roofline    = min(peak, intensity · bandwidth · 2^30 / 10^9)      intensity: padded FLOP ÷ unpadded bytes
    full        = waves · SMs · tile FLOP / roofline
    inputs      = log2 of tile FLOP, tile bytes, and twice waves · tile bytes, over peak, bandwidth, memory and L2 per SM

An element has 4 bytes whatever its type. The mix of GB and GiB, which lifts the bandwidth by 7 %, is the published one
(Lee et al., ASPLOS 2025; `neusight/Model/mlp_wave*.py` of sitar-lab/NeuSight).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.features import Columns, spread
from clustersim.predictors.kinds.neusight_paper.board import GIB, MIB, Board

OPERATIONS = {"elementwise": 1.0, "softmax": 5.0, "layernorm": 6.0}
"""FLOP per element that the published predictor counts."""
ELEMENTS = 512.0
"""Elements of an element-wise tile: elements / blocks, rounded up to a power of two, in every row of its training data."""


class Terms(NamedTuple):
    """Terms of the published equation for kernels on a GPU."""

    full: Floats
    """Seconds of whole waves at the roofline (kernels,)."""
    waves: Floats
    """Number of waves (kernels,)."""
    inputs: Floats
    """Inputs of the network (kernels, 4)."""


class TiledKernel(NamedTuple):
    """Kernels cut into tiles, with one entry per kernel."""

    flop: Floats
    """FLOP of one tile."""
    bytes: Floats
    """Bytes of one tile."""
    tiles: Floats
    """Number of tiles."""
    intensity: Floats
    """FLOP of all padded tiles per unpadded byte of the kernel."""


def product(table: Columns, sides: Floats) -> TiledKernel:
    """Return GEMMs cut into tiles. sides: rows and columns of each kernel's tile (kernels, 2)."""
    rows, columns = sides.T
    m, n, k = table.m, table.n, table.k
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    traffic = 4 * (m * k + k * n + m * n)
    return TiledKernel(
        flop=2 * rows * k * columns,
        bytes=4 * (rows * k + k * columns + rows * columns),
        tiles=table.batch * down * across,
        intensity=2 * down * rows * k * across * columns / traffic,
    )


def vector(table: Columns) -> TiledKernel:
    """Return vector kernels cut into rows or, if element-wise, into 512 elements of a row."""
    operations = spread(table.kind, OPERATIONS.__getitem__)
    length = np.where(table.kind == "elementwise", ELEMENTS, table.n)
    traffic, across = table.bytes / (table.m * table.n), np.ceil(table.n / length)
    return TiledKernel(
        operations * length, traffic * length, table.m * across, operations * across * length / (traffic * table.n)
    )


def terms(cut: TiledKernel, board: Board) -> Terms:
    """Return the terms of the equation on a GPU. cut: kernels cut into tiles. board: the GPU's figures."""
    sms, waves = board.sms, np.ceil(cut.tiles / board.sms)
    roofline = np.minimum(board.peak * 1e9, cut.intensity * board.bandwidth * GIB)
    megabytes = cut.bytes / MIB
    inputs = (
        cut.flop / 1e9 / (board.peak / 1000 / sms),
        megabytes / (board.bandwidth / sms),
        waves * megabytes / (board.memory * 1024 / sms),
        waves * megabytes / (board.l2 * 1024 / sms),
    )
    return Terms(waves * sms * cut.flop / roofline, waves, np.log2(np.stack(inputs, axis=1)))
