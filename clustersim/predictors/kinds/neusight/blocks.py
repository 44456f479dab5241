"""How vector kernels are laid out on a GPU: threads of a block, blocks an SM holds, loads a thread waits for.

The layouts are PyTorch's (2.1, aten/src/ATen/native/cuda): `PersistentSoftmax.cuh` for rows of up to 1024 values,
`SoftMax.cu` for longer ones, `layer_norm_kernel.cu`. Nothing here is learned.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags

PERSISTENT = 1024
"""Longest row that softmax keeps in the registers of one warp, read once."""
WARPS = 128
"""Threads of a block of a norm, of a persistent softmax and of element-wise kernels."""

_THREADS = {"turing": 1024, "ada": 1536}
_LOCAL = {"pascal": 24, "volta": 128, "turing": 64, "ampere": 192, "ada": 128}
KEPT: Annotated[float, Declared()] = 0.5
"""Share of the L2 that holds rows to be read again: as many bytes are written meanwhile as are read."""
LOCAL: Annotated[float, Declared(chosen_on="not recorded; softmax and norms, NeuSight: 7.2, 7.2, 7.2 %")] = 0.75
"""Share of the L1 caches that does; what is written passes them by."""


class BlockLayout(NamedTuple):
    """Blocks of each kernel in units of all that the GPU holds at once, loads in sequence, and bytes of rows in work."""

    rounds: Floats
    steps: Floats
    rows: Floats


def threads(gpu: Gpu) -> int:
    """Return the threads that an SM holds (CUDA C programming guide, compute capabilities): 1024, 1536 or 2048."""
    small = gpu.architecture == "ampere" and _dense(gpu)  # GA10x
    return 1536 if small else _THREADS.get(gpu.architecture, 2048)


def _dense(gpu: Gpu) -> bool:
    """Whether an SM has 128 FP32 lanes, as in boards for graphics, and not 64."""
    return gpu.vector_peak("fp32") > 2 * 96 * gpu.clock * gpu.sms


def local(gpu: Gpu) -> float:
    """Return the bytes of L1 cache of all SMs (NVIDIA's whitepapers; 256 KiB an SM from Hopper on, AMD 16 KiB).

    Pascal has 24 KiB an SM of 64 lanes, and 48 of 128; Ampere 192 and 128.
    """
    kib = _LOCAL.get(gpu.architecture, 256) if gpu.vendor == "nvidia" else 16
    if _dense(gpu):
        kib = {"pascal": 48, "ampere": 128}.get(gpu.architecture, kib)
    return 1024.0 * kib * gpu.sms


def long(table: Columns) -> Flags:
    """Return which softmax kernels have rows that do not fit into registers."""
    return table.n > PERSISTENT


def softmax(table: Columns, gpu: Gpu) -> BlockLayout:
    """Return the layout of softmax kernels: a warp a row, or a block a row in passes for the maximum, the sum, the output.

    Threads of a block are the power of two at or above half the 16-byte vectors of a row, 32 to 512. What is left over
    from whole vectors is read value by value.
    """
    width = 16 / table.size
    wanted = np.maximum(np.floor(np.floor(table.n / width) / 2), 1)
    block = np.clip(2 ** np.ceil(np.log2(wanted)), 32, 512)
    vectors = np.floor(table.n / (width * block))
    rest = np.ceil((table.n - vectors * width * block) / block)
    resident = np.floor(threads(gpu) / block)
    padded = 2 ** np.ceil(np.log2(np.maximum(table.n, 1)))
    short = table.m / np.where(padded <= 128, 8, 4) / (threads(gpu) / WARPS)
    return BlockLayout(
        np.where(long(table), table.m / resident, short) / gpu.sms,
        np.where(long(table), vectors + rest, padded / 32),
        gpu.sms * resident * table.n * table.size,
    )


def norm(table: Columns, gpu: Gpu) -> BlockLayout:
    """Return the layout of norms: a block of four warps a row, one pass for the statistics and one for the output."""
    resident = threads(gpu) / WARPS
    return BlockLayout(
        table.m / resident / gpu.sms,
        2 + np.ceil(table.n / (4 * WARPS)),
        gpu.sms * resident * table.n * table.size,
    )
