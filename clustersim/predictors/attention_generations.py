"""Speed of a generation of fused attention, relative to the one that a predictor forecasts for a GPU.

Predictors forecast attention as the newest library for the GPU runs it: FlashAttention-2 on Ampere and Ada, FlashAttention-3 on
Hopper, cuDNN and FlashAttention-4 on Blackwell. Other generations take longer by the ratio of published charts, by sequence
length, head dimension and mask. No chart of Hopper or Blackwell has FlashAttention-1 in CUDA or Triton. Its ratio to
FlashAttention-2 is that of A100, because both run the same instructions on each GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.errors import InputError
from clustersim.model.kernel import Kernel

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
"""Sequence lengths of the charts, in tokens; a batch has 16,384 tokens at each length."""
Chart = Mapping[tuple[int, bool], tuple[float, ...]]
"""{(head dimension, whether causal): TFLOP/s at each of `LENGTHS`} of one generation on one GPU."""

A100_FLASH1: Chart = {
    (64, False): (91, 92, 104, 108, 110, 110),
    (64, True): (58, 70, 77, 87, 92, 97),
    (128, False): (76, 72, 76, 80, 82, 83),
    (128, True): (55, 62, 69, 76, 80, 83),
}
A100_FLASH2: Chart = {
    (64, False): (132, 153, 162, 171, 175, 176),
    (64, True): (88, 119, 140, 156, 165, 171),
    (128, False): (150, 173, 187, 196, 201, 203),
    (128, True): (99, 133, 155, 173, 182, 189),
}
H100_FLASH2: Chart = {
    (64, False): (282, 306, 318, 321, 322, 324),
    (64, True): (180, 229, 262, 284, 295, 299),
    (128, False): (309, 350, 362, 368, 370, 370),
    (128, True): (191, 260, 298, 319, 333, 335),
}
H100_FLASH3: Chart = {
    (64, False): (333, 392, 460, 476, 496, 497),
    (64, True): (197, 265, 371, 420, 460, 473),
    (128, False): (467, 565, 625, 638, 646, 648),
    (128, True): (292, 423, 521, 579, 602, 616),
}
H100_CUDNN: Chart = {
    (64, False): (335, 373, 395, 408, 412, 413),
    (64, True): (225, 288, 334, 363, 379, 388),
    (128, False): (497, 574, 617, 609, 600, 595),
    (128, True): (315, 410, 484, 518, 529, 539),
}
B200_FLASH2: Chart = {(128, True): (63.9, 154, 254, 343, 400, 425)}
B200_CUDNN: Chart = {(128, True): (244, 561, 908, 1141, 1384, 1475)}
"""Charts of Dao-AILab/flash-attention (flash2_a100_fwd_bwd_benchmark.png, flash3_fp16_fwd.png), NVIDIA/cudnn-frontend (B200)."""
A100_CUDNN: Annotated[float, Declared(scope="part")] = 0.81
"""Speed of cuDNN over that of FlashAttention-2 on A100, for both passes of Llama 3.1's shape (NVIDIA/cudnn-frontend, benchmark
results)."""

TRITON: Annotated[Mapping[str, float], Declared()] = {"forward": 1 / 1.4, "backward": 1 / 2}
"""Speed of FlashAttention in Triton over that of FlashAttention-2, by pass. FlashAttention-2 is 1.3 to 1.5 times as fast forward
and around 2 times backward (Dao 2023, section 4.1, A100)."""

Pair = tuple[Chart, Chart]
"""Two charts; the ratio of the first to the second is a speed."""
Ratio = Pair | float | Mapping[str, float]
"""Ratio of two speeds: two charts to divide, a number, or {`forward` or `backward`: number}."""
_FLASH1: Pair = (A100_FLASH1, A100_FLASH2)
_HOPPER: Pair = (H100_FLASH2, H100_FLASH3)
_BLACKWELL: Pair = (B200_FLASH2, B200_CUDNN)
"""Speeds relative to the forecast generation: FlashAttention-1 over 2, and FlashAttention-2 over the newest on Hopper and
Blackwell."""
Speeds = Mapping[str, tuple[Ratio, ...]]
"""{generation: ratios whose product is its speed over the forecast one}; no ratios for the forecast generation itself."""
AMPERE: Speeds = {"flash1": (_FLASH1,), "triton": (TRITON,), "flash2": (), "cudnn": (A100_CUDNN,)}
HOPPER: Speeds = {
    "flash1": (_FLASH1, _HOPPER),
    "triton": (TRITON, _HOPPER),
    "flash2": (_HOPPER,),
    "flash3": (),
    "flash4": (),
    "cudnn": ((H100_CUDNN, H100_FLASH3),),
}
BLACKWELL: Speeds = {
    "flash1": (_FLASH1, _BLACKWELL),
    "triton": (TRITON, _BLACKWELL),
    "flash2": (_BLACKWELL,),
    "flash4": (),
    "cudnn": (),
}
SPEEDS: Mapping[str, Speeds] = {
    "turing": {"flash1": (_FLASH1,)},
    "ampere": AMPERE,
    "ada": AMPERE,
    "hopper": HOPPER,
    "blackwell": BLACKWELL,
    "blackwell-ultra": BLACKWELL,
}
"""{architecture: its generations}. Other architectures have no generation to choose."""


def check(generation: str, gpu: Gpu) -> None:
    """Raise InputError if the generation of attention that a workload names, such as `flash2`, does not run on a GPU."""
    known = SPEEDS.get(gpu.architecture, {})
    if generation not in ("flash", "unfused", *known):
        choices = ", ".join(("flash", *known, "unfused"))
        raise InputError(f"{generation} does not run on {gpu.name} ({gpu.architecture}); use {choices}")


def slowdown_factors(kernels: Sequence[Kernel], gpu: Gpu) -> Floats | None:
    """Return the factor by which each kernel takes longer than its forecast because of its attention generation (kernels,).

    The factor of kernels that name no generation is 1. Return None if no kernel names one.
    """
    rows = [row for row, kernel in enumerate(kernels) if kernel.generation]
    if not rows:
        return None
    factors = np.ones(len(kernels))
    for row in rows:
        factors[row] = 1 / _speed(kernels[row], gpu.architecture)
    return factors


def _speed(kernel: Kernel, architecture: str) -> float:
    """Return the speed of a kernel's attention generation over that of the forecast one; 1 for an unknown generation."""
    speed = 1.0
    for ratio in SPEEDS.get(architecture, {}).get(kernel.generation, ()):
        if isinstance(ratio, tuple):
            speed *= _rate(ratio[0], kernel) / _rate(ratio[1], kernel)
        else:
            speed *= ratio if isinstance(ratio, float) else ratio[kernel.op]
    return speed


def _rate(chart: Chart, kernel: Kernel) -> float:
    """Return the TFLOP/s of a chart at the kernel's sequence length, linear in its logarithm and constant beyond the ends. The
    chart's line is that of the same mask, if there is one, and the nearest head dimension."""
    key = min(chart, key=lambda shape: (shape[1] != kernel.causal, abs(shape[0] - kernel.k)))
    return float(np.interp(np.log(kernel.m), np.log(LENGTHS), chart[key]))
