"""Shapes and strides of tensors without values."""

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
