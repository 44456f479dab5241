"""Classes of kernels: what is learned together and forecast by one set of weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clustersim.predictors.columns import Columns
from clustersim.predictors.tables import Samples

SIMT = ("fp32/linear", "fp32/bmm", "fp32/elementwise", "fp32/softmax", "fp32/layernorm")
TENSOR = ("tensor/linear", "tensor/flash_attention")
MEMORY = "memory"

_BY_KIND = {
    "linear": ("fp32/linear", "tensor/linear"),
    "bmm": ("fp32/bmm", "tensor/linear"),
    "grouped_gemm": ("fp32/bmm", "tensor/linear"),
    "flash_attention": ("tensor/flash_attention", "tensor/flash_attention"),
    "elementwise": ("fp32/elementwise", "fp32/elementwise"),
    "softmax": ("fp32/softmax", "fp32/softmax"),
    "layernorm": ("fp32/layernorm", "fp32/layernorm"),
    "memory": (MEMORY, MEMORY),
}

WEIGHT = {"pascal": 0.25, "turing": 0.5}
"""How much a GPU counts in learning, by architecture: others 1. Training clusters have no descendants of P4, P100, T4."""


def class_of(kind: str, dtype: str) -> str:
    """Return the class that forecasts kernels of this kind and data type.

    FP32 and FP64 products run on the SIMT units, all narrower types (and TF32) on the tensor cores. Vector kernels are
    bound by memory, so that those of every data type share the classes that FP32 kernels taught, by their bytes.
    """
    return _BY_KIND[kind][dtype not in ("fp32", "fp64")]


def route(table: Columns) -> NDArray[np.str_]:
    """Return the class of each kernel."""
    result = np.empty(len(table), dtype="<U24")
    for kind, dtype in dict.fromkeys(zip(table.kind.tolist(), table.dtype.tolist(), strict=True)):
        result[(table.kind == kind) & (table.dtype == dtype)] = class_of(kind, dtype)
    return result


def pick(samples: Samples, name: str) -> Samples:
    """Return the samples of one class."""
    return samples.select(route(samples.table) == name)
