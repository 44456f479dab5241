"""Kernels as columns: one array per field, checked once, so that predictors work on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import InputError, suggest
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import VECTOR, Kernel

Flags = NDArray[np.bool_]
"""Mask with one entry per kernel."""

MATRIX = ("linear", "bmm", "grouped_gemm", "flash_attention")
"""Kinds of kernels that run on matrix units."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Kernels as arrays of the fields of `Kernel`, each with one entry per kernel (flop in FLOP, bytes in bytes)."""

    kind: NDArray[np.str_]
    op: NDArray[np.str_]
    dtype: NDArray[np.str_]
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    flop: Floats
    bytes: Floats
    heads: Floats
    kv_heads: Floats
    causal: Flags

    def __len__(self) -> int:
        return len(self.kind)

    def select(self, rows: Any) -> Columns:
        """Return the kernels of some rows. rows: mask or indices."""
        return Columns(*[getattr(self, name)[rows] for name in Columns.__slots__])

    @property
    def matrix(self) -> Flags:
        """Mask of the kernels that run on matrix units."""
        return np.isin(self.kind, MATRIX)

    @property
    def size(self) -> Floats:
        """Bytes of one element of each kernel's data type (kernels,)."""
        return spread(self.dtype, BYTES.__getitem__)


def spread(keys: NDArray[np.str_], value: Any) -> Floats:
    """Return `value(key)` for each entry of `keys`, as floats (kernels,). `value` is called once for each distinct key."""
    result = np.empty(len(keys))
    for key in dict.fromkeys(keys.tolist()):
        result[keys == key] = value(key)
    return result


def columns(kernels: Sequence[Kernel]) -> Columns:
    """Return the kernels as columns.

    Raise InputError for an unknown kind or data type, and for a number that is not finite or too small.
    """
    rows: list[Any] = list(zip(*kernels, strict=True)) if kernels else [()] * len(Kernel._fields)
    named = dict(zip(Kernel._fields, rows, strict=True))
    fields: dict[str, Any] = {name: np.array(named[name], dtype=kind) for name, kind in _TYPES.items()}
    result = Columns(**fields)
    _check(result)
    return result


_NUMBERS = ("batch", "m", "n", "k", "flop", "bytes", "heads", "kv_heads")
"""Fields of `Kernel` that are numbers."""
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("kind", "op", "dtype"), np.str_),
    **dict.fromkeys(_NUMBERS, np.float64),
    "causal": np.bool_,
}
"""{field of `Columns`: its numpy type}."""


def _check(table: Columns) -> None:
    """Raise InputError for the first kernel with an invalid field. Its kind and data type must be known, and its numbers finite
    and at least 1; k and FLOP of kernels on vector units at least 0."""
    for name, known in (("kind", (*MATRIX, *VECTOR)), ("dtype", tuple(BYTES))):
        values = getattr(table, name)
        wrong = ~np.isin(values, known)
        if wrong.any():
            text = str(values[wrong][0])
            raise InputError(f"kernel {_first(table, wrong)}: unknown {name} {text!r}; {suggest(text, known)}")
    for name in _NUMBERS:
        values = getattr(table, name)
        minimum = np.where(table.matrix, 1.0, 0.0) if name in ("k", "flop") else np.ones(len(table))
        wrong = ~(np.isfinite(values) & (values >= minimum))
        if wrong.any():
            bound = "one" if minimum[wrong][0] else "zero"
            value = float(values[wrong][0])
            raise InputError(
                f"kernel {_first(table, wrong)}: {name} is {value:g}; it must be a finite number of at least {bound}"
            )


def _first(table: Columns, wrong: Flags) -> str:
    """Return the first kernel of the mask `wrong` as text, such as `linear/forward (bf16, 1×8×8×8)`."""
    row = int(np.flatnonzero(wrong)[0])
    shape = "×".join(f"{float(getattr(table, name)[row]):g}" for name in ("batch", "m", "n", "k"))
    return f"{table.kind[row]}/{table.op[row]} ({table.dtype[row]}, {shape})"


def peak(table: Columns, gpu: Gpu) -> Floats:
    """Return the peak rate of each kernel on `gpu` in FLOP/s (kernels,). It is that of matrix or vector units, depending on the
    kernel, for its data type."""
    return np.where(table.matrix, spread(table.dtype, gpu.matrix_peak), spread(table.dtype, gpu.vector_peak))


def bound(table: Columns, gpu: Gpu) -> Floats:
    """Return the roofline of each kernel in seconds (kernels,): max(FLOP / peak, bytes / bandwidth).

    No kernel can be faster than its roofline (Williams et al., "Roofline", CACM 2009).
    """
    return np.maximum(table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth)
