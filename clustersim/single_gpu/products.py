"""Matrix products and linear layers, with their gradients."""

from __future__ import annotations

from math import prod

from clustersim.single_gpu.tape import Gradients, Tape, Value
from clustersim.single_gpu.tensor import tensor
from clustersim.single_gpu.views import swap, view


def mm(t: Tape, a: Value, b: Value) -> Value:
    """Return the product of two matrices, or of two stacks of them."""
    out = tensor((*a.shape[:-1], b.shape[-1]), t.dtype)
    op = "bmm" if len(a.shape) == 3 else "mm"

    def back(g: Value) -> Gradients:
        left = ((a, mm(t, g, swap(t, b))),) if a.gradient else ()
        return (*left, *(((b, _right(t, a, b, g)),) if b.gradient else ()))

    return t.call(op, (a, b), out, back)


def _right(t: Tape, a: Value, b: Value, g: Value) -> Value:
    """Return the gradient of the right factor: aᵀ·g, or (gᵀ·a)ᵀ where b is a transposed matrix (mm_mat2_backward)."""
    if len(b.shape) == 2 and b.tensor.strides[0] == 1:
        return swap(t, mm(t, swap(t, g), a))
    return mm(t, swap(t, a), g)


def addmm(t: Tape, x: Value, matrix: Value, bias: Value | None) -> Value:
    """Return x·matrix with a bias, of rows (n, inputs); the bias rides on the product (cuBLASLt epilogue)."""
    if bias is None:
        return mm(t, x, matrix)
    out = tensor((x.shape[0], matrix.shape[1]), t.dtype)

    def back(g: Value) -> Gradients:
        dx = ((x, mm(t, g, swap(t, matrix))),) if x.gradient else ()
        dw = _right(t, x, matrix, g)
        return (*dx, (matrix, dw), (bias, t.call("sum", (g,), bias.tensor)))

    return t.call("addmm", (x, matrix), out, back)


def linear(t: Tape, x: Value, outputs: int, *, bias: bool = True, weight: Value | None = None) -> Value:
    """Return nn.Linear: x·Wᵀ + b over the last dimension; `weight` is a tied one."""
    matrix = weight or t.weight(outputs, x.shape[-1])
    rows = view(t, x, (prod(x.shape[:-1]), x.shape[-1]))
    y = addmm(t, rows, swap(t, matrix), t.weight(outputs) if bias else None)
    return view(t, y, (*x.shape[:-1], outputs))


def conv1d(t: Tape, x: Value, outputs: int) -> Value:
    """Return the Conv1D of GPT-2 (transformers.pytorch_utils): x·W + b with W of (inputs, outputs)."""
    matrix, bias = t.weight(x.shape[-1], outputs), t.weight(outputs)
    y = addmm(t, view(t, x, (prod(x.shape[:-1]), x.shape[-1])), matrix, bias)
    return view(t, y, (*x.shape[:-1], outputs))


def matmul(t: Tape, a: Value, b: Value) -> Value:
    """Return torch.matmul of (batch, heads, …) stacks: their leading dimensions are merged, copying what that needs."""
    stack = prod(a.shape[:-2])
    x, y = (view(t, one, (stack, *one.shape[-2:])) for one in (a, b))
    out = mm(t, x, y)
    return view(t, out, (*a.shape[:-2], *out.shape[-2:]))
