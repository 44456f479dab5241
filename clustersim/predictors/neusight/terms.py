"""What a kernel and a GPU give to the model: seconds at the datasheet's rates, waves, power, and features.

Features hold shapes, tiles and waves; no rate of the GPU, no memory capacity and no cache size is among them. A network
that sees those learns to recognise the few GPUs it was trained on, and is lost on a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.predictors.columns import Columns, Floats, peak, spread
from clustersim.predictors.neusight import tiles
from clustersim.predictors.neusight.limit import limit
from clustersim.predictors.neusight.tiles import Tiling


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return {compute, memory: s; waves; limit: attainable share of the peak; features} of kernels of one class.

    compute = flop · (tiles rounded up to whole waves and borders) / peak; memory = bytes / bandwidth.
    """
    tiling = cut(table, gpu)
    rate = peak(table, gpu)
    return {
        "compute": _work(table, tiling, gpu) / rate,
        "memory": table.bytes / gpu.memory_bandwidth,
        "waves": tiling.waves,
        "limit": np.where(table.matrix, spread(table.dtype, lambda dtype: limit(gpu, dtype)), 1.0),
        "features": features(table, tiling, gpu),
    }


def cut(table: Columns, gpu: Gpu) -> Tiling:
    """Return the tiling of kernels of one class."""
    kind = str(table.kind[0]) if len(table) else "elementwise"
    if kind == "flash_attention":
        return tiles.attention(table, gpu.sms)
    if kind in ("linear", "bmm", "grouped_gemm"):
        return tiles.gemm(table, gpu.sms, gpu.architecture)
    return tiles.vector(table, gpu.sms)


def _work(table: Columns, tiling: Tiling, gpu: Gpu) -> Floats:
    if len(table) and table.kind[0] in ("linear", "bmm", "grouped_gemm"):
        padded = 2 * tiling.rows * tiling.columns * table.k / tiling.splits * tiling.blocks
    else:
        padded = table.flop
    result: Floats = padded * tiling.waves * gpu.sms / tiling.blocks
    return result


def features(table: Columns, tiling: Tiling, gpu: Gpu) -> Floats:
    """Return the inputs of the network, (kernel, feature), for kernels of one class."""
    log = np.log2
    shared = [log(tiling.waves), tiling.blocks / (tiling.waves * gpu.sms)]
    if not len(table) or not table.matrix[0]:
        aligned = (table.n * table.size % 16 == 0).astype(np.float64)
        return np.stack([log(tiling.waves), log(table.n), table.bytes / (table.m * table.n), aligned], axis=1)
    if table.kind[0] == "flash_attention":
        return np.stack(
            [*shared, log(table.k), log(table.n), log(table.heads / table.kv_heads), log(table.size)], axis=1
        )
    return np.stack([*shared, *_gemm(table, tiling).values()], axis=1)


def _gemm(table: Columns, tiling: Tiling) -> Mapping[str, Floats]:
    log, size = np.log2, table.size
    return {
        "steps": log(table.k / tiling.splits),
        "splits": log(tiling.splits),
        "rows": log(tiling.rows),
        "columns": log(tiling.columns),
        "row fill": table.m / (tiling.rows * np.ceil(table.m / tiling.rows)),
        "column fill": table.n / (tiling.columns * np.ceil(table.n / tiling.columns)),
        "aligned k": (table.k * size % 16 == 0).astype(np.float64),
        "aligned n": (table.n * size % 16 == 0).astype(np.float64),
        "intensity": log(table.flop / table.bytes),
        "size": log(size),
    }
