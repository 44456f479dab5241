"""Classes of kernels, such as `half/linear`. Each is learned and forecast by its own set of weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clustersim.predictors.features import Columns

SIMT = ("fp32/linear", "fp32/bmm", "fp32/elementwise", "fp32/softmax", "fp32/layernorm")
"""Classes learned on FP32 kernels, whose GEMMs run on SIMT units."""
TENSOR = ("half/linear", "half/flash_attention", "narrow/linear", "narrow/flash_attention")
"""Classes of kernels on tensor cores, by width of their data type: `half` for 16 bits and TF32, `narrow` for FP8 and FP4."""
GROUPED = ("half/grouped_gemm", "narrow/grouped_gemm")
"""Classes that may be missing from the weights; their kernels are then forecast as linear ones."""
MEMORY = "memory"
"""Class of kernels that only move data."""
GRAPHED = ("half/linear", "half/flash_attention", "narrow/flash_attention", *GROUPED)
"""Classes whose training tables time only the kernel, in CUDA graphs: no dispatch, no quantization, no cache write."""

_BY_KIND = {
    "linear": ("fp32/linear", "half/linear", "narrow/linear"),
    "bmm": ("fp32/bmm", "half/linear", "narrow/linear"),
    "grouped_gemm": ("fp32/bmm", *GROUPED),
    "flash_attention": ("half/flash_attention", "half/flash_attention", "narrow/flash_attention"),
    "elementwise": ("fp32/elementwise",) * 3,
    "softmax": ("fp32/softmax",) * 3,
    "layernorm": ("fp32/layernorm",) * 3,
    "memory": (MEMORY,) * 3,
}
"""{kind of kernel: its class in FP32 and FP64, in 16 bits and TF32, in FP8 and FP4}."""


def class_of(kind: str, dtype: str) -> str:
    """Return the class that forecasts kernels of this kind and data type. Raises KeyError for an unknown kind.

    FP32 and FP64 GEMMs run on SIMT units, all others on tensor cores. Vector kernels are memory-bound, so all data types share
    the classes learned on FP32 kernels, by their bytes.
    """
    return _BY_KIND[kind][0 if dtype in ("fp32", "fp64") else 2 if dtype in ("fp8", "fp4") else 1]


def route(table: Columns) -> NDArray[np.str_]:
    """Return the class of each kernel (kernels,)."""
    result = np.empty(len(table), dtype="<U24")
    for kind, dtype in dict.fromkeys(zip(table.kind.tolist(), table.dtype.tolist(), strict=True)):
        result[(table.kind == kind) & (table.dtype == dtype)] = class_of(kind, dtype)
    return result
