"""Speed of a generation of fused attention, relative to the one that a predictor forecasts for a GPU.

Predictors forecast attention as the newest library for the GPU runs it: FlashAttention-2 on Ampere and Ada, FlashAttention-3 on
Hopper, cuDNN and FlashAttention-4 on Blackwell. Other generations take longer, and cuDNN's with fp8 operands less, by the ratio
of published charts, by sequence length, head dimension and mask. No chart of Hopper or Blackwell has FlashAttention-1 in CUDA or
Triton. Its ratio to FlashAttention-2 is that of A100, because both run the same instructions on each GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.errors import InputError
from clustersim.files import packaged_rows
from clustersim.model.kernel import Kernel

Chart = Mapping[tuple[int, bool], Floats]
"""{(head dimension, whether causal): TFLOP/s at each of `LENGTHS`} of one generation on one GPU."""
CHARTS = Path(__file__).with_name("attention_charts.csv")
"""Charts of Dao-AILab/flash-attention (flash2_a100_fwd_bwd_benchmark.png, flash3_fp16_fwd.png), NVIDIA/cudnn-frontend (B200, and
means of B200 and GB200 over both passes for fp8, where 192 stands for heads of 192 and 128 from 2,048 tokens on)."""


def _charts() -> tuple[list[int], dict[str, dict[tuple[int, bool], Floats]]]:
    """Return (sequence lengths, {name of a chart: the chart}) of CHARTS."""
    charts: dict[str, dict[tuple[int, bool], Floats]] = {}
    rows = packaged_rows(CHARTS)
    for name, dim, causal, *speeds in map(dict.values, rows):
        charts.setdefault(name, {})[int(dim), causal == "1"] = np.array(speeds, np.float64)
    return [int(length) for length in rows[0] if length.isdigit()], charts


LENGTHS, _CHART = _charts()
"""Sequence lengths of the charts, in tokens; a batch has 16,384 tokens at each length."""
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
_FLASH1: Pair = (_CHART["a100 flash1"], _CHART["a100 flash2"])
_HOPPER: Pair = (_CHART["h100 flash2"], _CHART["h100 flash3"])
_BLACKWELL: Pair = (_CHART["b200 flash2"], _CHART["b200 cudnn"])
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
    "cudnn": ((_CHART["h100 cudnn"], _CHART["h100 flash3"]),),
}
BLACKWELL: Speeds = {
    "flash1": (_FLASH1, _BLACKWELL),
    "triton": (TRITON, _BLACKWELL),
    "flash2": (_BLACKWELL,),
    "flash4": (),
    "cudnn": (),
    "cudnn_fp8": ((_CHART["blackwell cudnn fp8"], _CHART["blackwell cudnn"]),),
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
    if not any(kernel.generation for kernel in kernels):
        return None
    return np.array([1 / _speed(kernel, gpu.architecture) for kernel in kernels])


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
