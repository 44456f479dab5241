"""The operators of transformers as PyTorch runs them eagerly: what each calls forward, and its gradient.

Each function records its calls on a tape and returns the result. The formulas of gradients are those of PyTorch 2.1
(tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp).
"""

from __future__ import annotations

from clustersim.single_gpu.pointwise import (
    add,
    at_least,
    dropout,
    mean,
    mul,
    power,
    repeat_add,
    scale,
    shift,
    unary,
    where,
)
from clustersim.single_gpu.products import addmm, conv1d, linear, matmul, mm
from clustersim.single_gpu.tape import Gradients, Tape, Value
from clustersim.single_gpu.tensor import tensor
from clustersim.single_gpu.views import contiguous, leading, permute, pick, put, split, swap, view

__all__ = [
    "add",
    "addmm",
    "at_least",
    "contiguous",
    "conv1d",
    "cross_entropy",
    "dropout",
    "embedding",
    "layer_norm",
    "leading",
    "linear",
    "matmul",
    "mean",
    "mm",
    "mul",
    "permute",
    "pick",
    "power",
    "put",
    "repeat_add",
    "scale",
    "shift",
    "softmax",
    "split",
    "swap",
    "unary",
    "view",
    "where",
]


def softmax(t: Tape, x: Value) -> Value:
    """Return the softmax over the last dimension."""
    out = tensor(x.shape, t.dtype)

    def back(g: Value) -> Gradients:
        return ((x, t.call("_softmax_backward_data", (g, x), out)),)

    return t.call("_softmax", (x,), out, back)


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
