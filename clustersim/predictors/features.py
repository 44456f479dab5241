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

MATRIX = ("linear", "bmm", "grouped_gemm", "flash_attention")


@dataclass(frozen=True, slots=True)
class Columns:
    """Fields of `Kernel`, each an array with one entry per kernel (flop in FLOP, bytes in bytes)."""

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
        """Return the rows of a mask or index."""
        return Columns(*[getattr(self, name)[rows] for name in Columns.__slots__])

    @property
    def matrix(self) -> Flags:
        """Whether each kernel runs on matrix units."""
        return np.isin(self.kind, MATRIX)

    @property
    def size(self) -> Floats:
        """Bytes of one element of each kernel."""
        return spread(self.dtype, BYTES.__getitem__)


def spread(keys: NDArray[np.str_], value: Any) -> Floats:
    """Return `value(key)` for every entry of `keys`, as an array of floats; `value` is called once for each distinct key."""
    result = np.empty(len(keys))
    for key in dict.fromkeys(keys.tolist()):
        result[keys == key] = value(key)
    return result


def columns(kernels: Sequence[Kernel]) -> Columns:
    """Return the kernels as columns.

    Raises InputError for an unknown kind or data type and for a shape that is not finite and positive.
    """
    rows: list[Any] = list(zip(*kernels, strict=True)) if kernels else [()] * len(Kernel._fields)
    named = dict(zip(Kernel._fields, rows, strict=True))
    fields: dict[str, Any] = {name: np.array(named[name], dtype=kind) for name, kind in _TYPES.items()}
    result = Columns(**fields)
    _check(result)
    return result


_NUMBERS = ("batch", "m", "n", "k", "flop", "bytes", "heads", "kv_heads")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("kind", "op", "dtype"), np.str_),
    **dict.fromkeys(_NUMBERS, np.float64),
    "causal": np.bool_,
}


def _check(table: Columns) -> None:
    """Raise InputError for an unknown kind or data type, or for a number that is not finite or too small."""
    for name, known in (("kind", (*MATRIX, *VECTOR)), ("dtype", tuple(BYTES))):
        values = getattr(table, name)
        wrong = ~np.isin(values, known)
        if wrong.any():
            text = str(values[wrong][0])
            raise InputError(f"kernel {_first(table, wrong)}: unknown {name} {text!r}; {suggest(text, known)}")
    for name in _NUMBERS:
        values = getattr(table, name)
        least = np.where(table.matrix, 1.0, 0.0) if name in ("k", "flop") else np.ones(len(table))
        wrong = ~(np.isfinite(values) & (values >= least))
        if wrong.any():
            bound = "one" if least[wrong][0] else "zero"
            value = float(values[wrong][0])
            raise InputError(
                f"kernel {_first(table, wrong)}: {name} is {value:g}; it must be a finite number of at least {bound}"
            )


def _first(table: Columns, wrong: Flags) -> str:
    """Return the first kernel in the mask `wrong` as text, such as `linear/forward (bf16, 1×8×8×8)`."""
    row = int(np.flatnonzero(wrong)[0])
    shape = "×".join(f"{float(getattr(table, name)[row]):g}" for name in ("batch", "m", "n", "k"))
    return f"{table.kind[row]}/{table.op[row]} ({table.dtype[row]}, {shape})"


def peak(table: Columns, gpu: Gpu) -> Floats:
    """Return the peak rate of each kernel on `gpu` in FLOP/s: matrix or vector units, in the kernel's data type."""
    return np.where(table.matrix, spread(table.dtype, gpu.matrix_peak), spread(table.dtype, gpu.vector_peak))


def bound(table: Columns, gpu: Gpu) -> Floats:
    """Return the roofline of each kernel in seconds: max(FLOP / peak, bytes / bandwidth).

    No kernel can be faster than its roofline (Williams et al., "Roofline", CACM 2009).
    """
    return np.maximum(table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth)
