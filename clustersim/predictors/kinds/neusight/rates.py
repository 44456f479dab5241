"""Published speeds of kernels that no table measures over many shapes: one constant per operation, with its source.

INSTRUCTIONS: issue slots of an integer lane per element. Such kernels process single elements without wide loads and are bound
by instructions: the same count fits GPUs with very different bandwidths. SHARE: largest share of the datasheet's bandwidth of an
operation for which only a rate is published.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags, spread

LANES = 64
"""Integer lanes per SM (NVIDIA's whitepapers, Volta to Blackwell)."""


class Rate(NamedTuple):
    """A published constant."""

    value: float
    """Value, in the unit of its table."""
    error: float | None
    """Relative error of one GPU's value forecast from those of the others; None if it is from one GPU."""
    source: str
    """Publication and GPUs."""


VIDUR = "microsoft/vidur, data/profiling/compute: A100 and H100, fp16"
QUANTIZE = "ai-dynamo/aiconfigurator, quantize/scale_matrix: H100, H200, B200"
TRACES = "sitar-lab/NeuSight, measured operators of whole models, fp32"
SIMUMAX = "MooreThreads/SimuMax, configs/system: fitted on A100 PCIe and B200"
OPERATORS = "DebarghaG/estimate-train-time: operators of training, fp16, A100"
LIGER = "linkedin/Liger-Kernel, benchmark/data"
CUDNN = "NVIDIA/cudnn-frontend, benchmark/norms: H200, GB200"
"""Repositories of the measurements, with the data used."""

INSTRUCTIONS: Annotated[
    dict[str, Rate], Declared("slots/element", "vidur (A100, H100); aiconfigurator; NeuSight; an H100; an H200")
] = {
    "powu": Rate(45.0, None, "sitar-lab/NeuSight, training split: power by a general exponent on P100"),
    "embedding": Rate(120.0, 0.4, f"{VIDUR}, within 11 %; fp32 in {TRACES}: 0.6 to 2 times"),
    "unfused_rmsnorm": Rate(54.5, 0.08, VIDUR),
    "unfused_swiglu": Rate(53.0, 0.15, VIDUR),
    "unfused_rope": Rate(42.0, 0.08, VIDUR),
    "rotation": Rate(47.0, 0.1, f"{LIGER}: Hugging Face's rotation on A100 and B200"),
    "rotation_backward": Rate(28.5, 0.15, f"{LIGER}: Hugging Face's rotation on A100 and B200"),
    "quantize": Rate(35.0, 0.13, QUANTIZE),
    # of bitsandbytes; torchao's (ao_adamw_8bit, adamw_torch_8bit) was not measured
    "adam8bit": Rate(475.0, None, "H100 (docs/measured-ways.md): search of codes for two moments, fp32 and bf16"),
    "lion8bit": Rate(237.5, None, "assumed: half of adam8bit, since bitsandbytes searches a code for one moment"),
    "scatter_rows": Rate(200.0, None, "H200 (docs/measured-h200.md): index_add_, 64 to 87 billion bf16 values/s"),
}
"""Issue slots per element of PyTorch's gather of rows, its kernels on slices and rows spread over heads, and kernels of inference
servers, which process one value at a time."""

NARROW: Annotated[dict[str, Rate], Declared("slots/element", "estimate-train-time (A100); Liger-Kernel (B200)")] = {
    "gelu": Rate(22.5, None, OPERATORS),
    "gelu_backward": Rate(28.0, None, OPERATORS),
    "softmax": Rate(34.5, 0.3, f"{OPERATORS}; {LIGER}: B200"),
}
"""Issue slots per element of PyTorch's 16-bit kernels, which convert values, take exponentials and do not reach the bandwidth."""

_LOSS = Rate(6.3, 0.17, f"{SIMUMAX}: 1293 and 2597 GB/s; {LIGER}: Megatron-LM on H100")
_PARTS = ("max", "subtract", "exp", "sum", "divide")
_NORM = Rate(7.8, 0.1, f"{LIGER}: Hugging Face's RMSNorm on A100 and H100")
PER_BYTE: Annotated[dict[str, Rate], Declared("slots/B", "SimuMax (A100 PCIe, B200); Liger-Kernel (A100, H100)")] = {
    **dict.fromkeys(("max", "exp_sum", *(f"logits_{part}" for part in _PARTS), "cross_entropy_backward"), _LOSS),
    **dict.fromkeys(("norm_part", "norm_part_backward"), _NORM),
}
"""Issue slots per byte of the parts of the cross-entropy over the vocabulary and of an eager RMSNorm, which broadcast a value."""

_TRAINING = Rate(0.72, 0.09, f"{SIMUMAX}: 0.75 and 0.69 of the bandwidth for all that is not named")
_FUSED = ("rmsnorm", "layernorm", "swiglu", "rope", "cast")
_RANDOM = Rate(0.77, 0.02, f"{TRACES}: V100; A100-80GB, L4 and H100 within 2 %")
_PERMUTE = Rate(
    0.51,
    0.03,
    f"{SIMUMAX}: B200; tile-ai/TileOPs, pull request 2125: H200, 0.50; 0.16 on A100, whose kernels are not fused",
)
_MASK = Rate(0.76, 0.15, f"{TRACES}: where on V100, A100, P100, T4 and P4")
_TRANSPOSE = Rate(0.73, 0.1, f"{TRACES}: contiguous on V100, A100, T4 and P4")
_PERMUTED = ("permute", "permute_backward", "unpermute", "unpermute_backward", "sort_rows")
SHARE: Annotated[dict[str, Rate], Declared(chosen_on="SimuMax (A100 PCIe, B200); estimate-train-time; H100")] = {
    "dropout": _RANDOM,
    "bias_dropout_add": _TRAINING,
    **dict.fromkeys(_FUSED, _TRAINING),
    **dict.fromkeys((f"{op}_backward" for op in _FUSED), _TRAINING),
    **dict.fromkeys(_PERMUTED, _PERMUTE),
    **dict.fromkeys(("shift", "shift_backward", "repeat_kv", "transpose"), _TRANSPOSE),
    "mask": _MASK,
    "dequantize": Rate(0.59, None, "H100 (docs/measured-ways.md): bitsandbytes' nf4, scales in two steps"),
    "torch_layernorm": Rate(0.79, 0.1, f"{OPERATORS}; {CUDNN}"),
    "torch_layernorm_backward": Rate(0.57, 0.2, f"{OPERATORS}; {CUDNN}; {LIGER}: B200"),
    "torch_rmsnorm": Rate(0.9, 0.15, CUDNN),
    "torch_rmsnorm_backward": Rate(0.7, 0.15, CUDNN),
    "fused_softmax": Rate(
        0.69, 0.1, f"{OPERATORS}: Megatron's, 1,024 and 2,048 tokens; lengths between take up to a quarter longer"
    ),
    "fused_softmax_backward": Rate(0.64, 0.1, f"{OPERATORS}: the same"),
}
"""Share of the bandwidth that kernels reach, for operations that instruction counts do not explain."""


def base(op: str) -> str:
    """Return the name of the forward operation of `op`."""
    return op.removesuffix("_backward")


def issue(table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds that each kernel needs to issue its instructions (kernels,); 0 if their number is unknown."""
    narrow = spread(table.op, lambda op: NARROW[op].value if op in NARROW else 0.0) * (table.size <= 2)
    per_byte = spread(table.op, lambda op: PER_BYTE[op].value if op in PER_BYTE else 0.0)
    slots = (spread(table.op, _slots) + narrow) * table.m * table.n + per_byte * table.bytes
    result: Floats = slots / (LANES * gpu.sms * gpu.clock)
    return result


def _slots(op: str) -> float:
    """Return the issue slots that an operation takes per element; 0 if unknown."""
    rate = INSTRUCTIONS.get(op, INSTRUCTIONS.get(base(op)))
    passes = 2 if op.endswith("norm_backward") else 1  # a second pass over the values
    return rate.value * passes if rate else 0.0


def ceiling(table: Columns) -> Floats:
    """Return the largest share of the bandwidth that each kernel reaches (kernels,); 1 if no lower one is published.

    Training frameworks' kernels are 16-bit; FP32 kernels of the same name are PyTorch's and their speed is learned.
    """
    share = spread(table.op, lambda op: SHARE[op].value if op in SHARE else 1.0)
    return np.where(applies(table), share, 1.0)


def applies(table: Columns) -> Flags:
    """Return a mask of the kernels for whose data type the constants in SHARE hold. Those of fused training kernels hold for at
    most 16 bits, all others for any type."""
    training = spread(table.op, lambda op: float(base(op) in _FUSED)) > 0
    return ~training | (table.size <= 2)
