"""Prices of products, convolutions and fused attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from clustersim.model.kernel import Kernel, KernelKind, attention, gemm
from clustersim.single_gpu.price_vectors import KernelList
from clustersim.single_gpu.tensor import Tensor


def product(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one product of matrices, or of two stacks of them."""
    a, b = inputs[-2:]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    kind: KernelKind = "bmm" if len(a.shape) == 3 else "linear"
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return (gemm(kind, layout(a, b), a.dtype, batch, m, n, k),)


def layout(a: Tensor, b: Tensor) -> str:
    """Return the name of a product's memory layout: the one it has in a linear layer y = x·Wᵀ.

    `forward`: x·Wᵀ (BLAS: tn), `dgrad`: dy·W (nn), `wgrad`: dyᵀ·x (nt).
    """
    if _transposed(a):
        return "wgrad"
    return "forward" if _transposed(b) else "dgrad"


def _transposed(one: Tensor) -> bool:
    return one.strides[-2] == 1 and one.shape[-2] > 1 and (one.strides[-1] != 1 or one.shape[-1] == 1)


def convolution(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the product that a convolution is (im2col, never written): pixels × filters × window, one a group."""
    return (_window("forward", inputs[0], inputs[1], outputs[0]),)


def convolution_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one such product for each of the gradients of input and filters that is asked for."""
    gradient, x, filters = inputs[:3]
    wanted = {one.shape for one in outputs}
    named = (("dgrad", x), ("wgrad", filters))
    return tuple(_window(name, x, filters, gradient) for name, one in named if one.shape in wanted)


def _window(op: str, x: Tensor, filters: Tensor, y: Tensor) -> Kernel:
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
    """Return fused attention of q, k, v (the last three inputs) in the layout (batch, heads, sequence, dimension)."""
    q, k = inputs[-3], inputs[-2]
    batch, heads, queries, dim = q.shape
    direction, causal = ("backward" if "backward" in op else "forward"), op.endswith("causal")
    return (attention(direction, q.dtype, batch, heads, k.shape[1], queries, k.shape[2], dim, causal),)
