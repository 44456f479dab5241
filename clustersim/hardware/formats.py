"""Narrow formats of training: as what their products run, what a value takes with its scales, which GPUs multiply them.

Products of linear layers and their gradients run in the format; all else stays in bf16, attention too. Sources: Transformer
Engine's recipes DelayedScaling, MXFP8BlockScaling and NVFP4BlockScaling (transformer_engine/common/recipe) and its pages on them
(docs/features/low_precision_training); OCP Microscaling Formats v1.0, table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clustersim.config.gpu import DType, Gpu
from clustersim.hardware.constants import BYTES


class Format(NamedTuple):
    """How linear layers take their operands."""

    product: DType
    """The data type of a datasheet at whose rate products run."""
    scale: float = 0.0
    """Bytes of scales a value."""
    reads: int = 1
    """How often an operand is read to be cast: once more for the largest value of the whole tensor."""
    needs: DType = "fp8"
    """The data type of a datasheet whose units take such operands: scales by block came with fp4 (Blackwell, CDNA 4)."""
    vendors: tuple[str, ...] = ("nvidia", "amd")
    """Whose GPUs multiply it."""
    travels: bool = True
    """Whether parts of a sequence are cast before they are gathered, so that they travel in it (Transformer Engine,
    pytorch/distributed.py, gather_along_first_dim; torchao float8_tensor_parallel.py)."""
    rescales: bool = False
    """Whether products of gradients are scaled by a kernel behind them."""

    @property
    def size(self) -> float:
        """Bytes of one value with its share of a scale."""
        return BYTES[self.product] + self.scale


FORMATS: Mapping[str, Format] = {
    "fp8": Format("fp8"),
    "mxfp8": Format("fp8", scale=1 / 32, needs="fp4"),  # E8M0 for 32 values
    "nvfp4": Format("fp4", scale=1 / 16, reads=2, needs="fp4", vendors=("nvidia",)),  # E4M3 for 16, fp32 a tensor
    "mxfp4": Format("fp4", scale=1 / 32, needs="fp4"),  # E8M0 for 32 values
}
"""By `training.precision`."""
FP8: Mapping[str, Format] = {
    "delayed": Format("fp8"),  # one scale a tensor, from the steps before
    "current": Format("fp8", reads=2),  # one scale a tensor, from the tensor
    "block": Format("fp8", scale=4 / 128),  # fp32 for 128 values, as DeepSeek-V3 has them (section 3.3.2)
    # one scale a row and one a column, from the tensor: rows are read once, columns twice. bf16 is gathered (torchtitan
    # parallelize_llama.py, enable_float8_tensorwise_tp); gradients are scaled behind their products (pytorch/ao issue 2184)
    "row": Format("fp8", reads=3, travels=False, rescales=True),
}
"""Kinds of fp8 by `training.fp8_scaling`: DelayedScaling, Float8CurrentScaling, Float8BlockScaling there, torchao's rowwise."""


def format_of(precision: str, fp8_scaling: str) -> Format | None:
    """Return how linear layers take operands that are narrower than activations; None for wider precisions."""
    return FP8[fp8_scaling] if precision == "fp8" else FORMATS.get(precision)


def product_type(precision: str) -> str:
    """Return the data type as which matrix products of a `training.precision` run."""
    found = FORMATS.get(precision)
    return precision if found is None else found.product


def activation_type(precision: str) -> str:
    """Return the data type that activations and weights of a `training.precision` lie in."""
    return "bf16" if precision in FORMATS else "fp32" if precision == "tf32" else precision


def multiplies(gpu: Gpu, precision: str) -> bool:
    """Return whether a GPU has products in a format; other types that it lacks run in a wider one."""
    found = FORMATS.get(precision)
    return found is None or (found.needs in gpu.matrix and gpu.vendor in found.vendors)
