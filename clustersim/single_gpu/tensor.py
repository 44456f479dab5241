"""Shapes and strides of tensors, and which of PyTorch's views need a copy."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from clustersim.hardware.constants import BYTES as OF_NUMBERS

TensorShape = tuple[int, ...]

BYTES: dict[str, float] = {**OF_NUMBERS, "int64": 8, "int32": 4, "bool": 1}
"""Bytes of one element, indices and masks included."""


class Tensor(NamedTuple):
    """One tensor without its values; `strides` count elements."""

    shape: TensorShape
    strides: TensorShape
    dtype: str

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> float:
        """Bytes of its elements, each counted once."""
        return self.elements * BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in order, without gaps."""
        return self.strides == strides(self.shape) or _order(self) == _order(tensor(self.shape, self.dtype))


def tensor(shape: TensorShape, dtype: str) -> Tensor:
    """Return a contiguous tensor."""
    return Tensor(shape, strides(shape), dtype)


def strides(shape: TensorShape) -> TensorShape:
    """Return the strides of a contiguous tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _order(one: Tensor) -> list[tuple[int, int]]:
    return [(n, s) for n, s in zip(one.shape, one.strides, strict=True) if n > 1]


def permuted(one: Tensor, order: TensorShape) -> Tensor:
    """Return the view with its dimensions in another order."""
    return Tensor(tuple(one.shape[i] for i in order), tuple(one.strides[i] for i in order), one.dtype)


def viewed(one: Tensor, shape: TensorShape) -> Tensor | None:
    """Return the tensor under another shape, None when PyTorch must copy it for that.

    The rule is that of `at::detail::computeStride`: dimensions that lie in memory as one may be cut in any way.
    """
    found: list[int] = []
    left = list(reversed(shape))
    for count, step in reversed(_merged(one)):
        size, inner = 1, step
        while left and size * left[0] <= count:
            size *= left[0]
            found.append(inner)
            inner *= left.pop(0)
        if size != count:
            return None
    found += [1] * len(left)
    return Tensor(shape, tuple(reversed(found)), one.dtype)


def _merged(one: Tensor) -> list[tuple[int, int]]:
    """Return (elements, stride) of the runs of dimensions that lie in memory as one."""
    runs: list[tuple[int, int]] = []
    for count, step in _order(one):
        if runs and runs[-1][1] == count * step:
            runs[-1] = (runs[-1][0] * count, step)
        else:
            runs.append((count, step))
    return runs
