"""Published speeds of kernels that no table measures over many shapes: one constant an operation, with its source.

INSTRUCTIONS: issue slots of an integer lane an element. Such kernels handle element by element, without wide loads, and
are bound by instructions: the same count fits GPUs whose bandwidths differ by far. SHARE: the most of the datasheet's
bandwidth an operation reaches, where nothing but a rate is published.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags, spread

LANES = 64
"""Integer lanes of an SM (NVIDIA's whitepapers, Volta to Blackwell)."""


class Rate(NamedTuple):
    """A constant, the relative error of forecasting one of its GPUs from the others (None: one GPU), and its source."""

    value: float
    error: float | None
    source: str


VIDUR = "microsoft/vidur, data/profiling/compute: A100 and H100, fp16"
QUANTIZE = "ai-dynamo/aiconfigurator, quantize/scale_matrix: H100, H200, B200"
TRACES = "sitar-lab/NeuSight, measured operators of whole models, fp32"
SIMUMAX = "MooreThreads/SimuMax, configs/system: fitted on A100 PCIe and B200"

INSTRUCTIONS: dict[str, Rate] = {
    "powu": Rate(45.0, None, "sitar-lab/NeuSight, training split: power by a general exponent on P100"),
    "embedding": Rate(120.0, 0.4, f"{VIDUR}, within 11 %; fp32 in {TRACES}: 0.6 to 2 times"),
    "unfused_rmsnorm": Rate(54.5, 0.08, VIDUR),
    "unfused_layernorm": Rate(54.5, None, f"as unfused_rmsnorm: {VIDUR}"),
    "unfused_swiglu": Rate(53.0, 0.15, VIDUR),
    "unfused_rope": Rate(42.0, 0.08, VIDUR),
    "quantize": Rate(35.0, 0.13, QUANTIZE),
}
"""Per element: PyTorch's gather of rows, and kernels of inference servers, which handle value by value."""

_LOSS = Rate(6.8, 0.06, f"{SIMUMAX}: 1293 and 2597 GB/s")
PER_BYTE: dict[str, Rate] = dict.fromkeys(("max", "exp_sum", "divide", "cross_entropy_backward"), _LOSS)
"""Per byte moved: the parts of the cross-entropy over the vocabulary."""

_TRAINING = Rate(0.72, 0.09, f"{SIMUMAX}: 0.75 and 0.69 of the bandwidth for all that is not named")
_FUSED = ("rmsnorm", "layernorm", "swiglu", "rope", "cast")
_RANDOM = Rate(0.77, 0.02, f"{TRACES}: V100; A100-80GB, L4 and H100 within 2 %")
_PERMUTE = Rate(0.51, None, f"{SIMUMAX}: B200; 0.16 on A100, whose kernels are not fused")
_MASK = Rate(0.76, 0.15, f"{TRACES}: where on V100, A100, P100, T4 and P4")
_TRANSPOSE = Rate(0.73, 0.1, f"{TRACES}: contiguous on V100, A100, T4 and P4")
_PERMUTED = ("permute", "permute_backward", "unpermute", "unpermute_backward")
SHARE: dict[str, Rate] = {
    "dropout": _RANDOM,
    "bias_dropout_add": _TRAINING,
    **dict.fromkeys(_FUSED, _TRAINING),
    **dict.fromkeys((f"{op}_backward" for op in _FUSED), _TRAINING),
    **dict.fromkeys(_PERMUTED, _PERMUTE),
    **dict.fromkeys(("shift", "shift_backward", "repeat_kv", "transpose"), _TRANSPOSE),
    "mask": _MASK,
}


def base(op: str) -> str:
    """Return the operation whose constant serves `op`: that of the forward pass."""
    return op.removesuffix("_backward")


def issue(table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds that each kernel needs to issue its instructions, zero where none are known."""
    slots = spread(table.op, _slots) * table.m * table.n + spread(table.op, _slots_a_byte) * table.bytes
    result: Floats = slots / (LANES * gpu.sms * gpu.clock)
    return result


def _slots(op: str) -> float:
    found = INSTRUCTIONS.get(base(op))
    passes = 2 if op.endswith("norm_backward") else 1  # over the values
    return found.value * passes if found else 0.0


def _slots_a_byte(op: str) -> float:
    return PER_BYTE[op].value if op in PER_BYTE else 0.0


def ceiling(table: Columns) -> Floats:
    """Return the most of the bandwidth that each kernel reaches, one where nothing lower is published.

    Training frameworks' kernels are 16-bit ones; FP32 kernels of the same name are PyTorch's, which are learned.
    """
    share = spread(table.op, lambda op: SHARE[op].value if op in SHARE else 1.0)
    return np.where(applies(table), share, 1.0)


def applies(table: Columns) -> Flags:
    """Return where the constants are meant for a kernel's data type."""
    training = spread(table.op, lambda op: float(base(op) in _FUSED)) > 0
    return ~training | (table.size <= 2)
