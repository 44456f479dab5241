"""What a kernel and a GPU give to the model: seconds at the datasheet's rates, waves, power, and features.

Features hold shapes, tiles and waves; no rate of the GPU, no memory capacity and no cache size is among them. A network
that sees those learns to recognise the few GPUs it was trained on, and is lost on a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.predictors.columns import Columns, Floats, peak
from clustersim.predictors.neusight import tiles
from clustersim.predictors.neusight.tiles import Tiling

GAIN = {"pascal": 1.0, "volta": 1.0, "turing": 1.0, "ampere": 1 / 0.7, "cdna1": 1 / 0.7, "cdna2": 1 / 0.7}
"""Operations a joule by process node, relative to 16/12 nm: each full node takes 30 % off (TSMC on N7 to N5)."""
NEWEST = 1 / 0.49
UNLIMITED = 1e6
ISSUE = 64 / 76
"""Share of issue slots left to FFMA on SMs with 128 FP32 lanes.

Every scheduler issues one warp instruction a clock; an 8×8 register tile needs 64 FFMA, 4 shared loads and about 8 more
a step. SMs with 64 lanes issue an FFMA every other clock and hide the rest.
"""


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return {compute, memory: s; waves; watts: W per TFLOP/s; issue: share} of kernels of one class, one entry a kernel.

    compute = flop · (tiles rounded up to whole waves and borders) / peak; memory = bytes / bandwidth.
    """
    tiling = cut(table, gpu)
    rate = peak(table, gpu)
    return {
        "compute": _work(table, tiling, gpu) / rate,
        "memory": table.bytes / gpu.memory_bandwidth,
        "waves": tiling.waves,
        "watts": np.where(table.matrix, _watts(gpu) / (rate * 1e-12), UNLIMITED),
        "issue": np.full(len(table), ISSUE if _simt(table, gpu) and _lanes(gpu) > 20 else 1.0),
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


def _simt(table: Columns, gpu: Gpu) -> bool:
    return gpu.vendor == "nvidia" and len(table) > 0 and table.dtype[0] == "fp32" and bool(table.matrix[0])


def _watts(gpu: Gpu) -> float:
    return GAIN.get(gpu.architecture, NEWEST) * gpu.power if gpu.vendor == "nvidia" else UNLIMITED


def _lanes(gpu: Gpu) -> float:
    schedulers = 2 if gpu.name == "p100" else 4
    return gpu.vector_peak("fp32") / (2 * gpu.clock * gpu.sms) / schedulers


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
    shared = [log(tiling.waves), tiling.blocks / (tiling.waves * gpu.sms), log(table.bytes / (table.m * table.n))]
    if not len(table) or not table.matrix[0]:
        return np.stack([log(tiling.waves), log(table.n), table.bytes / (table.m * table.n)], axis=1)
    if table.kind[0] == "flash_attention":
        return np.stack(
            [*shared[:2], log(table.k), log(table.n), log(table.heads / table.kv_heads), log(table.size)], axis=1
        )
    return np.stack([*shared[:2], *_gemm(table, tiling).values()], axis=1)


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
