"""The extra time of a GEMM that adds to its output instead of writing it.

Blackwell holds two accumulators in tensor memory: a 16-bit output is hidden behind the next tile, whether it is written or added
to. fp32 sums are not: a weight-gradient GEMM then takes as long as one that writes 16 bits, plus its further bytes at the
memory's rate. Evidence: MooreThreads/SimuMax's tables of B200 (configs/system/b200_bf16_ceperm.json), 144 GEMMs of 4,096 tokens,
and those of experts with 128 to 9,832 rows, where it is up to half of the time.

Hopper's accumulators are in registers, and cuBLAS hides slightly more of long GEMMs: 30 that add to fp32 sums on two H100
(docs/measured/h100) take 0.93 of that time in the median, those of 2,048 tokens 1.01.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel

WIDTH = 2
"""Bytes per output element whose writing is hidden behind the next tile."""
SHOWN = ("hopper", "blackwell")
"""Prefixes of architectures that hide at most the writing of 16 bits per output element."""


def split_sums(kernels: Sequence[Kernel], gpu: Gpu) -> tuple[list[Kernel], list[float]]:
    """Return the kernels without the extra bytes of fp32 sums, and the seconds of these bytes for each kernel.

    GEMMs that add to fp32 sums become GEMMs that write a 16-bit output. Other kernels are unchanged, with 0 seconds.
    """
    plain, seconds = list(kernels), [0.0] * len(kernels)
    for index, kernel in enumerate(kernels if gpu.architecture.startswith(SHOWN) else ()):
        if kernel.op != "wgrad" or not kernel.k or BYTES[kernel.dtype] != WIDTH:
            continue
        output = kernel.batch * kernel.m * kernel.n
        inputs = kernel.batch * kernel.k * (kernel.m + kernel.n)
        extra = kernel.bytes - (inputs + output) * float(WIDTH)
        if extra > 1.5 * WIDTH * output:  # 16-bit sums move WIDTH bytes per output, fp32 ones three times that
            plain[index] = kernel._replace(bytes=kernel.bytes - extra)
            seconds[index] = extra / gpu.memory_bandwidth
    return plain, seconds
