"""Published speeds of kernels that no table measures over many shapes: one constant an operation, with its source.

INSTRUCTIONS: issue slots of an integer lane an element. Such kernels handle element by element, without wide loads, and
are bound by instructions: the same count fits GPUs whose bandwidths differ by far. SHARE: the most of the datasheet's
bandwidth an operation reaches, where nothing but a rate is published.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.predictors.columns import Columns, Floats, spread

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
    "powu": Rate(45.0, None, f"{TRACES}: power by a general exponent, P100 and A100"),
    "embedding": Rate(105.0, 0.2, VIDUR),
    "rmsnorm": Rate(50.0, 0.1, VIDUR),
    "layernorm": Rate(50.0, None, f"as rmsnorm: {VIDUR}"),
    "swiglu": Rate(45.0, 0.1, VIDUR),
    "rope": Rate(40.0, 0.2, VIDUR),
    "cast": Rate(30.0, 0.1, QUANTIZE),
}
NARROW = frozenset({"rmsnorm", "layernorm", "swiglu"})
"""Operations whose counts are known for 16-bit values only; in fp32 they are learned."""

SHARE: dict[str, Rate] = {
    "dropout": Rate(0.77, 0.02, f"{TRACES}: V100; A100-80GB, L4 and H100 within 2 %"),
}


def base(op: str) -> str:
    """Return the operation whose constant serves `op`: that of the forward pass."""
    return op.removesuffix("_backward")


def issue(table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds that each kernel needs to issue its instructions, zero where none are known.

    Backward passes of norms go over the values twice.
    """
    slots = spread(table.op, _slots)
    wide = np.isin(spread(table.op, lambda op: float(base(op) in NARROW)), 1.0) & (table.size > 2)
    return np.where(wide, 0.0, slots) * table.m * table.n / (LANES * gpu.sms * gpu.clock)


def _slots(op: str) -> float:
    found = INSTRUCTIONS.get(base(op))
    passes = 2 if op in ("rmsnorm_backward", "layernorm_backward") else 1
    return found.value * passes if found else 0.0


def ceiling(table: Columns) -> Floats:
    """Return the most of the bandwidth that each kernel reaches, one where nothing lower is published."""
    return spread(table.op, lambda op: SHARE[op].value if op in SHARE else 1.0)
