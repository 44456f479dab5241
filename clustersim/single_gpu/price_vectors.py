"""Prices of calls that are bound by memory: sums, copies, fills, lookups, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.model.kernel import Kernel, KernelKind, vector
from clustersim.single_gpu.tensor import BYTES, Tensor, TensorShape

KernelList = tuple[Kernel, ...]
CACHED: Annotated[int, Declared("B", "NeuSight's traces")] = 4 * 2**20
"""Bytes of a repeated (broadcast) operand that stays in the L2 cache: a larger one is read again for each repetition."""


def plain(kind: KernelKind, op: str, over: Tensor, traffic: float, flop: float = 0.0) -> Kernel:
    """Return one kernel over the rows and columns of `over`, `traffic` bytes in all."""
    rows, columns = _matrix(over.shape)
    return vector(kind, op, _float(over.dtype), rows, columns, flop, traffic / over.elements)


def _matrix(shape: TensorShape) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _float(dtype: str) -> str:
    return "fp32" if dtype in ("int64", "int32", "bool", "tf32") else dtype


def moved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Return the bytes that an element-wise kernel reads and writes, repeated operands as the cache lets it."""
    wide = max(outputs, key=lambda one: one.elements).elements
    return math.fsum(_read(one, wide) for one in inputs) + math.fsum(one.bytes for one in outputs)


def _read(one: Tensor, wide: int) -> float:
    if one.elements == 1:
        return 0.0  # a number, which rides along
    stored = prod(n for n, step in zip(one.shape, one.strides, strict=True) if step) * BYTES[one.dtype]
    return wide * BYTES[one.dtype] if 1 < one.elements < wide and stored > CACHED else stored


def elementwise(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads every operand and writes the result."""
    return (plain("elementwise", op, outputs[0], moved(inputs, outputs), 1.0),)


def memory(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads its inputs and writes its outputs once."""
    over = max((*inputs, *outputs), key=lambda one: one.elements)
    return (
        plain("memory", op, over, math.fsum(_read(one, 0) for one in inputs) + math.fsum(one.bytes for one in outputs)),
    )


def fill(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that writes its output."""
    return (plain("memory", op, outputs[0], outputs[0].bytes),)


def masked_fill(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the copy and the fill in place, which are kernels of their own."""
    return (*memory("clone", inputs[:1], outputs), *elementwise(op, (outputs[0], *inputs[1:2]), outputs))


def gather(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that picks as many values as it writes."""
    return (plain("memory", op, outputs[0], 2 * outputs[0].bytes),)


def copy(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that writes the last input over the first."""
    return memory("copy", inputs[1:] or inputs, outputs)


def put(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that writes values at some places of a tensor: moves the values alone."""
    part = inputs[-1]
    return (plain("memory", "index_put", part, 2 * part.bytes),)


def slice_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the cleared whole and the copy of the part into it."""
    return (*fill("fill", (), outputs), plain("memory", "copy", inputs[0], 2 * inputs[0].bytes))


def embedding(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the lookup: indices and rows in, rows out."""
    return (plain("memory", op, outputs[0], 2 * outputs[0].bytes + inputs[-1].bytes),)


def embedding_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the cleared table and the scatter of the rows into it: reads rows, reads and writes the table's."""
    return (*fill("fill", (), outputs), plain("memory", "embedding_backward", inputs[0], 3 * inputs[0].bytes))


def dropout(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the one kernel of either pass: values in and out, and a mask of a byte each."""
    out = outputs[0]
    return (plain("memory", op.removeprefix("native_"), out, 2 * out.bytes + out.elements),)


def loss(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that picks one value a row."""
    targets = inputs[1]
    return (plain("memory", op, targets, targets.bytes + targets.elements * BYTES[inputs[0].dtype]),)


def loss_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the cleared gradient; one value a row is set."""
    return fill("fill", (), outputs)
