"""Published speeds of kernels that no table measures over many shapes: one constant per operation, with source, in `rates.csv`.

INSTRUCTIONS: issue slots of an integer lane per element. Such kernels process single elements without wide loads and are bound
by instructions: the same count fits GPUs with very different bandwidths. SHARE: largest share of the datasheet's bandwidth of an
operation for which only a rate is published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.files import packaged_rows
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


def _rates() -> dict[str, dict[str, Rate]]:
    """Return {table: {operation: constant}} of `rates.csv`."""
    tables: dict[str, dict[str, Rate]] = {}
    for row in packaged_rows(Path(__file__).with_name("rates.csv")):
        rate = Rate(float(row["value"]), float(row["error"]) if row["error"] else None, row["source"])
        tables.setdefault(row["table"], {}).update(dict.fromkeys(row["operations"].split(), rate))
    return tables


_RATES = _rates()
INSTRUCTIONS: Annotated[
    dict[str, Rate], Declared("slots/element", "vidur (A100, H100); aiconfigurator; NeuSight; an H100; an H200")
] = _RATES["instructions"]
"""Issue slots per element of PyTorch's gather of rows, its kernels on slices and rows spread over heads, and kernels of inference
servers, which process one value at a time."""
NARROW: Annotated[dict[str, Rate], Declared("slots/element", "estimate-train-time (A100); Liger-Kernel (B200)")] = (
    _RATES["narrow"]
)
"""Issue slots per element of PyTorch's 16-bit kernels, which convert values, take exponentials and do not reach the bandwidth."""
PER_BYTE: Annotated[dict[str, Rate], Declared("slots/B", "SimuMax (A100 PCIe, B200); Liger-Kernel (A100, H100)")] = (
    _RATES["per_byte"]
)
"""Issue slots per byte of the parts of the cross-entropy over the vocabulary and of an eager RMSNorm, which broadcast a value."""
SHARE: Annotated[dict[str, Rate], Declared(chosen_on="SimuMax (A100 PCIe, B200); estimate-train-time; H100")] = _RATES[
    "share"
]
"""Share of the bandwidth that kernels reach, for operations that instruction counts do not explain."""
_FUSED = ("rmsnorm", "layernorm", "swiglu", "rope", "cast")
"""Operations of fused training kernels."""


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
