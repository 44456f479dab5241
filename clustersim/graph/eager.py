"""The operators of transformers as PyTorch runs them eagerly: what each calls forward, and its gradient.

Each function records its calls on a tape and returns the result. The formulas of gradients are those of PyTorch 2.1
(tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp).
"""

from __future__ import annotations

from math import prod

from clustersim.graph.tape import Gradients, Rule, Tape, Value
from clustersim.graph.tensor import Shape, Tensor, permuted, tensor, viewed


def view(t: Tape, x: Value, shape: Shape) -> Value:
    """Return x under another shape; where its strides do not allow that it is copied first, forward and backward."""
    one = viewed(x.tensor, shape)
    if one is None:
        return view(t, contiguous(t, x), shape)
    return t.call("view", (x,), one, lambda g: ((x, view(t, g, x.shape)),))


def permute(t: Tape, x: Value, *order: int) -> Value:
    """Return x with its dimensions in another order."""
    back = tuple(order.index(i) for i in range(len(order)))
    return t.call("permute", (x,), permuted(x.tensor, order), lambda g: ((x, permute(t, g, *back)),))


def swap(t: Tape, x: Value) -> Value:
    """Return x with its last two dimensions exchanged."""
    n = len(x.shape)
    return permute(t, x, *range(n - 2), n - 1, n - 2)


def contiguous(t: Tape, x: Value) -> Value:
    """Return x, copied unless it lies in order already."""
    if x.tensor.contiguous:
        return x
    return t.call("clone", (x,), tensor(x.shape, x.tensor.dtype), lambda g: ((x, g),))


def split(t: Tape, x: Value, parts: int) -> tuple[Value, ...]:
    """Return the parts of x along the last dimension; backward their gradients are joined in one kernel."""
    shape = (*x.shape[:-1], x.shape[-1] // parts)
    one = Tensor(shape, x.tensor.strides, x.tensor.dtype)
    found: dict[int, Value] = {}

    def join(index: int) -> Rule:
        def run(g: Value) -> Gradients:
            found[index] = g
            return ((x, t.call("cat", tuple(found.values()), tensor(x.shape, t.dtype))),) if len(found) == parts else ()

        return run

    return tuple(t.call("split", (x,), one, join(i)) for i in range(parts))


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


def unary(t: Tape, op: str, x: Value, backward: str) -> Value:
    """Return an element-wise function whose gradient reads gradient and one kept tensor: gelu, relu, tanh, …"""
    out = x.tensor

    def back(g: Value) -> Gradients:
        return ((x, t.call(backward, (g, x), out)),)

    return t.call(op, (x,), out, back)


def scale(t: Tape, op: str, x: Value) -> Value:
    """Return x times or over a number."""
    return t.call(op, (x,), x.tensor, lambda g: ((x, t.call(op, (g,), x.tensor)),))


def shift(t: Tape, x: Value) -> Value:
    """Return x plus a number."""
    return t.call("add", (x,), x.tensor, lambda g: ((x, g),))


def add(t: Tape, x: Value, y: Value) -> Value:
    """Return x + y; y may be repeated over leading or inner dimensions, then its gradient is summed over these."""

    def back(g: Value) -> Gradients:
        if not y.gradient:
            return ((x, g),)
        small = g if y.shape == x.shape else t.call("sum", (g,), y.tensor)
        return ((x, g), (y, small))

    return t.call("add", (x, y), x.tensor, back)


def mul(t: Tape, x: Value, y: Value) -> Value:
    """Return x times y, element by element; y may be repeated, then its gradient is summed."""

    def back(g: Value) -> Gradients:
        left = ((x, t.call("mul", (g, y), x.tensor)),) if x.gradient else ()
        if not y.gradient:
            return left
        right = t.call("mul", (g, x), x.tensor)
        return (*left, (y, right if y.shape == x.shape else t.call("sum", (right,), y.tensor)))

    return t.call("mul", (x, y), x.tensor, back)


def power(t: Tape, x: Value) -> Value:
    """Return pow(x, n) of a number n; its gradient is g · (n · pow(x, n - 1)), three kernels."""
    out = x.tensor

    def back(g: Value) -> Gradients:
        slope = t.call("mul", (t.call("pow", (x,), out),), out)
        return ((x, t.call("mul", (g, slope), out)),)

    return t.call("pow", (x,), out, back)


def mean(t: Tape, x: Value) -> Value:
    """Return the mean over the last dimension, which is kept; its gradient is divided and spread in one kernel."""
    out = tensor((*x.shape[:-1], 1), t.dtype)
    return t.call("mean", (x,), out, lambda g: ((x, t.call("div", (g,), x.tensor)),))


def repeat_add(t: Tape, x: Value, y: Value, count: int) -> Value:
    """Return x, repeated `count` times along the first dimension, plus y, repeated too."""
    out = tensor((count, *x.shape[1:]), t.dtype)

    def back(g: Value) -> Gradients:
        return ((x, t.call("sum", (g,), x.tensor) if count > 1 else g),)

    return t.call("add", (x, y), out, back)


def pick(t: Tape, x: Value, rows: int) -> Value:
    """Return `rows` rows of x by a mask; backward they are put into a cleared tensor."""
    out = tensor((rows, x.shape[-1]), t.dtype)

    def back(g: Value) -> Gradients:
        return ((x, t.call("slice_backward", (g,), tensor(x.shape, t.dtype))),)

    return t.call("index", (x,), out, back)


def put(t: Tape, x: Value, part: Value) -> Value:
    """Return x with the rows of a mask replaced by `part`, in place."""

    def back(g: Value) -> Gradients:
        kept = t.call("index_put_", (t.call("clone", (g,), x.tensor), part), x.tensor)
        return ((x, kept), (part, t.call("index", (g,), part.tensor)))

    return t.call("index_put_", (x, part), x.tensor, back)


def where(t: Tape, mask: Value, x: Value) -> Value:
    """Return x where the mask holds, a number elsewhere."""
    out = x.tensor
    return t.call("where", (mask, x), out, lambda g: ((x, t.call("where", (mask, g), out)),))


def at_least(t: Tape, x: Value) -> Value:
    """Return torch.max(x, number); its gradient halves ties: eq, div, where, lt, masked_fill_ (maximum in derivatives.yaml)."""
    out, flags = x.tensor, x.tensor._replace(dtype="bool")

    def back(g: Value) -> Gradients:
        halves = t.call("where", (t.call("eq", (x,), flags), t.call("div", (g,), out), g), out)
        return ((x, t.call("masked_fill_", (halves, t.call("lt", (x,), flags)), out)),)

    return t.call("maximum", (x,), out, back)


def softmax(t: Tape, x: Value) -> Value:
    """Return the softmax over the last dimension."""
    out = tensor(x.shape, t.dtype)

    def back(g: Value) -> Gradients:
        return ((x, t.call("_softmax_backward_data", (g, x), out)),)

    return t.call("_softmax", (x,), out, back)


def dropout(t: Tape, x: Value, rate: float) -> Value:
    """Return nn.Dropout, which does nothing in inference or at a rate of zero."""
    if not t.training or not rate:
        return x
    out = x.tensor
    mask = Value(out._replace(dtype="bool"), x.node, False, 0)

    def back(g: Value) -> Gradients:
        return ((x, t.call("native_dropout_backward", (g, mask), out)),)

    return t.call("native_dropout", (x,), out, back)


def layer_norm(t: Tape, x: Value) -> Value:
    """Return nn.LayerNorm over the last dimension."""
    gain, bias = t.weight(x.shape[-1]), t.weight(x.shape[-1])

    def back(g: Value) -> Gradients:
        dx = t.call("native_layer_norm_backward", (g, x), tensor(x.shape, t.dtype))
        return ((x, dx), (gain, dx._replace(tensor=gain.tensor)), (bias, dx._replace(tensor=bias.tensor)))

    return t.call("native_layer_norm", (x, gain, bias), tensor(x.shape, t.dtype), back)


def embedding(t: Tape, table: Value, indices: Value) -> Value:
    """Return the rows of a table; backward the table's gradient is cleared and the rows are added into it."""
    out = tensor((*indices.shape, table.shape[1]), t.dtype)

    def back(g: Value) -> Gradients:
        return ((table, t.call("embedding_dense_backward", (g, indices), table.tensor)),)

    return t.call("embedding", (table, indices), out, back)


def leading(t: Tape, x: Value, dimension: int, size: int) -> Value:
    """Return the first `size` entries along a dimension; backward they are copied into a cleared tensor."""
    shape = (*x.shape[:dimension], size, *x.shape[dimension + 1 :])

    def back(g: Value) -> Gradients:
        return ((x, t.call("slice_backward", (g,), x.tensor)),)

    return t.call("slice", (x,), Tensor(shape, x.tensor.strides, t.dtype), back)


def cross_entropy(t: Tape, logits: Value) -> Value:
    """Return the mean loss over rows of logits: log-softmax, then one value a row."""
    out = tensor(logits.shape, t.dtype)
    targets = t.data((logits.shape[0],))

    def chances(g: Value) -> Gradients:
        return ((logits, t.call("_log_softmax_backward_data", (g, logits), out)),)

    log = t.call("_log_softmax", (logits,), out, chances)

    def pick(g: Value) -> Gradients:
        return ((log, t.call("nll_loss_backward", (g, targets), out)),)

    return t.call("nll_loss_forward", (log, targets), tensor((), t.dtype), pick)
