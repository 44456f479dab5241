"""Kernels of PyTorch operators on one GPU: GEMMs, row lookups and copies, and memory-bound kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Annotated, NamedTuple, cast

from clustersim.config.evidence import Declared
from clustersim.hardware.constants import BYTES as OF_NUMBERS
from clustersim.model.kernel import Kernel, KernelKind, attention, gemm, vector

TensorShape = tuple[int, ...]

BYTES: dict[str, float] = {**OF_NUMBERS, "int64": 8, "int32": 4, "bool": 1}
"""Bytes of an element of each data type, indices and masks included."""


class Tensor(NamedTuple):
    """A tensor without values; `strides` count elements."""

    shape: TensorShape
    strides: TensorShape
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> float:
        """Bytes of all elements, each counted once."""
        return self.elements * BYTES[self.dtype]


def nothing(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return no kernel, for views and other calls that only the CPU runs."""
    return ()


def product(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one GEMM, or one batched GEMM for two stacks of matrices."""
    a, b = inputs[-2:]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    kind: KernelKind = "bmm" if len(a.shape) == 3 else "linear"
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return (gemm(kind, layout(a, b), a.dtype, batch, m, n, k),)


def layout(a: Tensor, b: Tensor) -> str:
    """Return the name of a GEMM's memory layout, after its role in a linear layer y = x·Wᵀ.

    `forward` is x·Wᵀ (BLAS: tn), `dgrad` dy·W (nn), `wgrad` dyᵀ·x (nt).
    """
    if _transposed(a):
        return "wgrad"
    return "forward" if _transposed(b) else "dgrad"


def _transposed(matrix: Tensor) -> bool:
    return matrix.strides[-2] == 1 and matrix.shape[-2] > 1 and (matrix.strides[-1] != 1 or matrix.shape[-1] == 1)


def convolution(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the GEMM of a convolution (implicit im2col): pixels × filters × window, one per group."""
    return (_window("forward", inputs[0], inputs[1], outputs[0]),)


def convolution_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one GEMM for each gradient in `outputs`. inputs: gradient of the result, input, filters, as in ATen."""
    gradient, x, filters = inputs[:3]
    wanted = {tensor.shape for tensor in outputs}
    named = (("dgrad", x), ("wgrad", filters))
    return tuple(_window(name, x, filters, gradient) for name, tensor in named if tensor.shape in wanted)


def _window(op: str, x: Tensor, filters: Tensor, y: Tensor) -> Kernel:
    """Return the GEMM of a convolution of x with `filters` to y, in the direction `op`."""
    groups = max(1, x.shape[1] // filters.shape[1])
    pixels, count, window = y.elements // y.shape[1], filters.shape[0] // groups, prod(filters.shape[1:])
    m, n, k = {
        "forward": (pixels, count, window),
        "dgrad": (pixels, window, count),
        "wgrad": (count, window, pixels),
    }[op]
    product = gemm("bmm" if groups > 1 else "linear", op, x.dtype, groups, m, n, k)
    return product._replace(bytes=x.bytes + filters.bytes + y.bytes)


def flash(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return fused attention of q, k, v (the last three inputs), each (batch, heads, sequence, dimension)."""
    q, k = inputs[-3], inputs[-2]
    batch, heads, queries, dim = q.shape
    direction, causal = ("backward" if "backward" in op else "forward"), op.endswith("causal")
    return (attention(direction, q.dtype, batch, heads, k.shape[1], queries, k.shape[2], dim, causal),)


def batch_norm(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel of batch norm, which reads its input a second time to compute the mean and variance."""
    repeated = math.fsum(tensor.bytes for tensor in inputs if tensor.elements == outputs[0].elements)
    [kernel] = memory(op, inputs, outputs)
    return (kernel._replace(bytes=kernel.bytes + repeated),)


KernelList = tuple[Kernel, ...]
CACHED: Annotated[int, Declared("B", "NeuSight's traces")] = 4 * 2**20
"""Bytes of a repeated (broadcast) operand that stays in the L2 cache: a larger one is read again for each repetition."""


def plain(kind: KernelKind, op: str, over: Tensor, traffic: float, flop: float = 0.0) -> Kernel:
    """Return one kernel over the rows and columns of `over` with `traffic` bytes in total."""
    rows, columns = (prod(over.shape[:-1]), over.shape[-1]) if over.shape else (1, 1)
    dtype = "fp32" if over.dtype in ("int64", "int32", "bool", "tf32") else over.dtype
    return vector(kind, op, dtype, rows, columns, flop, traffic / over.elements)


def tabled(rows: Sequence[dict[str, str]], op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel for each of the `rows` of `kernels.csv`.

    A kernel has the operator's name, unless its row gives one, and moves the bytes of each tensor as often as the row names it.
    """
    named = {"first": inputs[:1], "last": inputs[-1:], "out": outputs[:1]}

    def kernel(row: dict[str, str]) -> Kernel:
        traffic = math.fsum(named[name][0].bytes for name in row["moved"].split())
        kind = cast(KernelKind, row["kind"])
        return plain(kind, row["kernel"] or op.strip("_"), named[row["over"]][0], traffic, float(row["flop"]))

    return tuple(kernel(row) for row in rows)


def _read(operand: Tensor, wide: int) -> float:
    """Return the bytes that a kernel over `wide` elements reads of an operand."""
    if operand.elements == 1:
        return 0.0  # a scalar operand moves no bytes
    stored = prod(n for n, step in zip(operand.shape, operand.strides, strict=True) if step) * BYTES[operand.dtype]
    return wide * BYTES[operand.dtype] if 1 < operand.elements < wide and stored > CACHED else stored


def elementwise(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads every operand, those larger than CACHED for each repetition, and writes the result."""
    wide = max(outputs, key=lambda tensor: tensor.elements).elements
    traffic = math.fsum(_read(tensor, wide) for tensor in inputs) + math.fsum(tensor.bytes for tensor in outputs)
    return (plain("elementwise", op, outputs[0], traffic, 1.0),)


def memory(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads its inputs and writes its outputs once."""
    over = max((*inputs, *outputs), key=lambda tensor: tensor.elements)
    traffic = math.fsum(_read(tensor, 0) for tensor in inputs) + math.fsum(tensor.bytes for tensor in outputs)
    return (plain("memory", op, over, traffic),)


def masked_fill(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return two kernels: the copy, and the fill in place."""
    return (*memory("clone", inputs[:1], outputs), *elementwise(op, (outputs[0], *inputs[1:2]), outputs))


def copy(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that overwrites the first input with the last."""
    return memory("copy", inputs[1:] or inputs, outputs)


def dropout(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel of the forward or backward pass: values in and out, and a mask of one byte each."""
    out = outputs[0]
    return (plain("memory", op.removeprefix("native_"), out, 2 * out.bytes + out.elements),)


def loss(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernel that picks one value per row."""
    targets = inputs[1]
    return (plain("memory", op, targets, targets.bytes + targets.elements * BYTES[inputs[0].dtype]),)
