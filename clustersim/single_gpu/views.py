"""Calls that look at a tensor otherwise, or copy parts of it, with their gradients."""

from __future__ import annotations

from clustersim.single_gpu.tape import Gradients, Rule, Tape, Value
from clustersim.single_gpu.tensor import Tensor, TensorShape, permuted, tensor, viewed


def view(t: Tape, x: Value, shape: TensorShape) -> Value:
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


def leading(t: Tape, x: Value, dimension: int, size: int) -> Value:
    """Return the first `size` entries along a dimension; backward they are copied into a cleared tensor."""
    shape = (*x.shape[:dimension], size, *x.shape[dimension + 1 :])

    def back(g: Value) -> Gradients:
        return ((x, t.call("slice_backward", (g,), x.tensor)),)

    return t.call("slice", (x,), Tensor(shape, x.tensor.strides, t.dtype), back)


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
