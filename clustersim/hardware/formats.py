"""Narrow training formats: the data type of their GEMMs, bytes per value including scales, and the GPUs that support them.

GEMMs of linear layers and their gradients run in the format; everything else, attention included, stays in bf16. Sources:
Transformer Engine's recipes DelayedScaling, MXFP8BlockScaling and NVFP4BlockScaling (transformer_engine/common/recipe) and its
pages on them (docs/features/low_precision_training); OCP Microscaling Formats v1.0, table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clustersim.config.gpu import DType, Gpu
from clustersim.hardware.constants import BYTES


class Format(NamedTuple):
    """Narrow format of the operands of linear layers."""

    product: DType
    """Data type of the datasheet rate at which its GEMMs run."""
    scale: float = 0.0
    """Bytes of scales per value."""
    reads: float = 1
    """Number of times that the cast reads an operand, in equivalents: 2 if a first pass finds its largest value."""
    needs: DType = "fp8"
    """Data type that a GPU's datasheet must list: block scales came with fp4 (Blackwell, CDNA 4)."""
    vendors: tuple[str, ...] = ("nvidia", "amd")
    """Vendors whose GPUs support it."""
    travels: bool = True
    """Whether sequence parts are cast before they are gathered, and so sent in this format (Transformer Engine,
    pytorch/distributed.py, gather_along_first_dim; torchao float8_tensor_parallel.py)."""
    rescales: bool = False
    """Whether a separate kernel scales the output of gradient GEMMs."""

    @property
    def size(self) -> float:
        """Bytes per value, with its share of a scale."""
        return BYTES[self.product] + self.scale


FORMATS: Mapping[str, Format] = {
    "fp8": Format("fp8"),
    "mxfp8": Format("fp8", scale=1 / 32, needs="fp4"),  # E8M0 per 32 values
    "nvfp4": Format("fp4", scale=1 / 16, reads=2, needs="fp4", vendors=("nvidia",)),  # E4M3 per 16, fp32 per tensor
    "mxfp4": Format("fp4", scale=1 / 32, needs="fp4"),  # E8M0 per 32 values
}
"""{`training.precision`: format}"""
FP8: Mapping[str, Format] = {
    "delayed": Format("fp8"),  # one scale per tensor, from previous steps
    "current": Format("fp8", reads=2),  # one scale per tensor, from this tensor
    "block": Format("fp8", scale=4 / 128),  # fp32 per 128 values, as in DeepSeek-V3 (section 3.3.2)
    # one scale per row and one per column, from the tensor: rows are read once, columns twice, and transposing takes as long as
    # 1.8 more reads (1.8 on an H100, docs/measured-ways.md; 1.3 by steps in torchao's README). Rows of experts are transposed by
    # a copy, as long as 2 reads (torchao 01374eb, prototype/moe_training/scaled_grouped_mm.py). bf16 is gathered (torchtitan
    # parallelize_llama.py, enable_float8_tensorwise_tp); gradients are scaled after their GEMMs (pytorch/ao issue 2184)
    "row": Format("fp8", reads=4.8, travels=False, rescales=True),
}
"""{`training.fp8_scaling`: format}: Transformer Engine's DelayedScaling, Float8CurrentScaling, Float8BlockScaling; torchao's
rowwise."""


def format_of(precision: str, fp8_scaling: str) -> Format | None:
    """Return the narrow format of a `training.precision`, or None. fp8_scaling: key of `FP8`, used for precision fp8 only."""
    return FP8[fp8_scaling] if precision == "fp8" else FORMATS.get(precision)


def product_type(precision: str) -> str:
    """Return the data type of the GEMMs of linear layers under a `training.precision`, such as `fp8` for `mxfp8`."""
    narrow = FORMATS.get(precision)
    return precision if narrow is None else narrow.product


def activation_type(precision: str) -> str:
    """Return the data type of activations and weights under a `training.precision`: bf16 for narrow ones, fp32 for tf32."""
    return "bf16" if precision in FORMATS else "fp32" if precision == "tf32" else precision


def multiplies(gpu: Gpu, precision: str) -> bool:
    """Return whether a GPU supports GEMMs in a `training.precision`; True if it is not narrow (a wider type can replace it)."""
    narrow = FORMATS.get(precision)
    return narrow is None or (narrow.needs in gpu.matrix and gpu.vendor in narrow.vendors)
