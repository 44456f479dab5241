"""Element-by-element calls, with their gradients."""

from __future__ import annotations

from clustersim.single_gpu.tape import Gradients, Tape, Value
from clustersim.single_gpu.tensor import tensor


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


def dropout(t: Tape, x: Value, rate: float) -> Value:
    """Return nn.Dropout, which does nothing in inference or at a rate of zero."""
    if not t.training or not rate:
        return x
    out = x.tensor
    mask = Value(out._replace(dtype="bool"), x.node, False, 0)

    def back(g: Value) -> Gradients:
        return ((x, t.call("native_dropout_backward", (g, mask), out)),)

    return t.call("native_dropout", (x,), out, back)
