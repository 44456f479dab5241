"""What a product that adds to its output takes beside one that writes it.

Blackwell holds two accumulators in tensor memory: a 16-bit output hides behind the next tile, whether it is written or added to.
fp32 sums do not: a weight-gradient product then takes as long as one that writes 16 bits, and its further bytes at the rate of
the memory. So MooreThreads/SimuMax's tables of B200 have it (configs/system/b200_bf16_ceperm.json): 144 products of 4,096 tokens,
and those of experts with 128 to 9,832 rows, where it is up to half of the time.
"""

from __future__ import annotations

from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel

WIDTH = 2
"""Bytes of an element whose writing is hidden."""


def apart(kernel: Kernel, gpu: Gpu) -> tuple[Kernel, float]:
    """Return a product as if it wrote a 16-bit output, and the seconds of its further bytes; other kernels as they are, and 0."""
    size = BYTES[kernel.dtype]
    if kernel.op != "wgrad" or not kernel.k or size != WIDTH or not shown(gpu):
        return kernel, 0.0
    output = kernel.batch * kernel.m * kernel.n
    inputs = kernel.batch * kernel.k * (kernel.m + kernel.n)
    further = kernel.bytes - (inputs + output) * float(WIDTH)
    if further <= 1.5 * WIDTH * output:  # 16-bit sums have WIDTH, fp32 ones three times that
        return kernel, 0.0
    return kernel._replace(bytes=kernel.bytes - further), further / gpu.memory_bandwidth


def shown(gpu: Gpu) -> bool:
    """Return whether a GPU hides no more of an output than the writing of 16 bits."""
    return gpu.architecture.startswith("blackwell")
