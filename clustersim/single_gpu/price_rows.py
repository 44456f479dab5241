"""Prices of calls that reduce rows: softmaxes and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clustersim.single_gpu.price_vectors import KernelList, memory, plain
from clustersim.single_gpu.tensor import Tensor


def softmax(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads and writes every value once."""
    return (plain("softmax", op.strip("_"), outputs[0], inputs[0].bytes + outputs[0].bytes, 5.0),)


def softmax_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the product of gradient and output, which PyTorch forms apart (SoftMax.cu), and the kernel proper."""
    out = outputs[0]
    one = plain("softmax", op.strip("_").removesuffix("_data"), out, 3 * out.bytes, 5.0)
    return (plain("elementwise", "mul", out, 3 * out.bytes, 1.0), one) if op == "_softmax_backward_data" else (one,)


def norm(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return one kernel that reads and writes every value once."""
    return (plain("layernorm", "layernorm", inputs[0], inputs[0].bytes + outputs[0].bytes, 6.0),)


def norm_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return both passes of PyTorch: the gradient of the input, then that of the weights (layer_norm_kernel.cu)."""
    size = inputs[0].bytes
    return (
        plain("layernorm", "layernorm_backward", inputs[0], 3 * size, 8.0),
        plain("layernorm", "layernorm_weight_backward", inputs[0], 2 * size, 4.0),
    )


def batch_norm(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return both passes: what is averaged is read once more."""
    again = math.fsum(one.bytes for one in inputs if one.elements == outputs[0].elements)
    [kernel] = memory(op, inputs, outputs)
    return (kernel._replace(bytes=kernel.bytes + again),)
