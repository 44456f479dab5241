"""Layout of vector kernels on a GPU: threads per block, blocks per SM, and loads that a thread waits for.

The layouts are PyTorch's (2.1, aten/src/ATen/native/cuda): `PersistentSoftmax.cuh` for rows of up to 1024 values, `SoftMax.cu`
for longer ones, `layer_norm_kernel.cu`. Nothing here is learned.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags

PERSISTENT = 1024
"""Longest row, in values, that softmax keeps in the registers of one warp and reads once."""
BLOCK_THREADS = 128
"""Threads per block of a norm, of a persistent softmax and of element-wise kernels."""

_THREADS = {"turing": 1024, "ada": 1536}
"""{architecture: largest number of resident threads per SM}; 2048 for others."""
_LOCAL = {"pascal": 24, "volta": 128, "turing": 64, "ampere": 192, "ada": 128}
"""{architecture: KiB of L1 cache per SM}; 256 for others."""
KEPT: Annotated[float, Declared()] = 0.5
"""Share of the L2 that holds rows for a second read: half, because as many bytes are written meanwhile as are read."""
LOCAL: Annotated[float, Declared(chosen_on="not recorded; softmax and norms, NeuSight: 7.2, 7.2, 7.2 %")] = 0.75
"""Share of the L1 caches that holds rows for a second read; writes do not pass through L1."""


class BlockLayout(NamedTuple):
    """Layout of vector kernels on a GPU, with one entry per kernel."""

    rounds: Floats
    """Number of blocks over the number that the GPU runs at a time."""
    steps: Floats
    """Number of loads that a thread makes one after another."""
    rows: Floats
    """Bytes of all rows in progress on the GPU."""


def threads(gpu: Gpu) -> int:
    """Return the largest number of resident threads per SM: 1024, 1536 or 2048 (CUDA C programming guide)."""
    small = gpu.architecture == "ampere" and _dense(gpu)  # GA10x
    return 1536 if small else _THREADS.get(gpu.architecture, 2048)


def _dense(gpu: Gpu) -> bool:
    """Return whether an SM has 128 FP32 lanes, as on graphics boards, instead of 64."""
    return gpu.vector_peak("fp32") > 2 * 96 * gpu.clock * gpu.sms


def local(gpu: Gpu) -> float:
    """Return the bytes of L1 cache of all SMs together (NVIDIA's whitepapers; 256 KiB per SM from Hopper on, AMD 16 KiB).

    Pascal has 24 KiB per SM with 64 lanes and 48 KiB with 128; Ampere 192 and 128.
    """
    kib = _LOCAL.get(gpu.architecture, 256) if gpu.vendor == "nvidia" else 16
    if _dense(gpu):
        kib = {"pascal": 48, "ampere": 128}.get(gpu.architecture, kib)
    return 1024.0 * kib * gpu.sms


def long(table: Columns) -> Flags:
    """Return a mask of the softmax kernels whose rows do not fit into the registers of a warp."""
    return table.n > PERSISTENT


def softmax(table: Columns, gpu: Gpu) -> BlockLayout:
    """Return the layout of softmax kernels: a warp per row, or a block per row with passes for maximum, sum and output.

    The threads of a block are the smallest power of two of at least half the 16-byte vectors of a row, between 32 and 512.
    Values beyond whole vectors are read one by one.
    """
    width = 16 / table.size
    half_vectors = np.maximum(np.floor(np.floor(table.n / width) / 2), 1)
    block = np.clip(2 ** np.ceil(np.log2(half_vectors)), 32, 512)
    vectors = np.floor(table.n / (width * block))
    single_values = np.ceil((table.n - vectors * width * block) / block)
    resident = np.floor(threads(gpu) / block)
    padded = 2 ** np.ceil(np.log2(np.maximum(table.n, 1)))
    short = table.m / np.where(padded <= 128, 8, 4) / (threads(gpu) / BLOCK_THREADS)
    return BlockLayout(
        np.where(long(table), table.m / resident, short) / gpu.sms,
        np.where(long(table), vectors + single_values, padded / 32),
        gpu.sms * resident * table.n * table.size,
    )


def norm(table: Columns, gpu: Gpu) -> BlockLayout:
    """Return the layout of norms: a block of BLOCK_THREADS per row, with one pass for the statistics and one for the output."""
    resident = threads(gpu) / BLOCK_THREADS
    return BlockLayout(
        table.m / resident / gpu.sms,
        2 + np.ceil(table.n / (4 * BLOCK_THREADS)),
        gpu.sms * resident * table.n * table.size,
    )
