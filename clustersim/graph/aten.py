"""The kernels that one call of a PyTorch operator launches on a GPU, by the operator's ATen name.

Counts of bytes are those of PyTorch's CUDA kernels: every operand that a kernel reads or writes, once. They agree with
the operators of NeuSight's traces on A100-40GB, V100, P100 and T4 (docs/predict.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from clustersim.graph.tensor import BYTES, Shape, Tensor
from clustersim.workload.kernel import Kernel, Kind, attention, gemm, vector

Kernels = tuple[Kernel, ...]
Price = Callable[[str, Sequence[Tensor], Sequence[Tensor]], Kernels]

CACHED = 4 * 2**20
"""Bytes of a repeated (broadcast) operand that stays in the L2 cache: a larger one is read again for each repetition."""

FREE = frozenset(
    {
        *(
            "view",
            "_unsafe_view",
            "reshape",
            "permute",
            "transpose",
            "t",
            "expand",
            "expand_as",
            "unsqueeze",
            "squeeze",
        ),
        *(
            "select",
            "slice",
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
            "unsafe_split",
            "detach",
            "alias",
            "as_strided",
            "narrow",
        ),
        *(
            "empty",
            "empty_like",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
            "lift_fresh_copy",
            "unflatten",
            "numpy_T",
        ),
        *(
            "sym_size",
            "is_same_size",
            "diagonal",
            "view_as_real",
            "view_as_complex",
            "scalar_tensor",
            "_to_cpu",
            "real",
        ),
    }
)
"""Operators that launch nothing."""


def price(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the kernels of one call; an operator without an entry moves its inputs and outputs once."""
    outputs = [one for one in outputs if one.elements]
    if op in FREE or not outputs:
        return ()
    return _TABLE.get(entry(op), _memory)(entry(op), inputs, outputs)


def known(op: str) -> bool:
    """Return whether an operator has an entry of its own."""
    return op in FREE or entry(op) in _TABLE


def entry(op: str) -> str:
    """Return the name under which an operator is priced: in place (`add_`) as otherwise, unless it has its own entry."""
    return op if op in _TABLE else op.removesuffix("_")


def _plain(kind: Kind, op: str, over: Tensor, traffic: float, flop: float = 0.0) -> Kernel:
    rows, columns = _matrix(over.shape)
    return vector(kind, op, _float(over.dtype), rows, columns, flop, traffic / over.elements)


def _matrix(shape: Shape) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _float(dtype: str) -> str:
    return "fp32" if dtype in ("int64", "int32", "bool", "tf32") else dtype


def moved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Return the bytes that an element-wise kernel reads and writes, repeated operands as the cache lets it."""
    wide = max(outputs, key=lambda one: one.elements).elements
    return sum(_read(one, wide) for one in inputs) + sum(one.bytes for one in outputs)


def _read(one: Tensor, wide: int) -> float:
    if one.elements == 1:
        return 0.0  # a number, which rides along
    stored = prod(n for n, step in zip(one.shape, one.strides, strict=True) if step) * BYTES[one.dtype]
    return wide * BYTES[one.dtype] if 1 < one.elements < wide and stored > CACHED else stored


def _elementwise(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("elementwise", op, outputs[0], moved(inputs, outputs), 1.0),)


def _memory(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    over = max((*inputs, *outputs), key=lambda one: one.elements)
    return (_plain("memory", op, over, sum(_read(one, 0) for one in inputs) + sum(one.bytes for one in outputs)),)


def _fill(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("memory", op, outputs[0], outputs[0].bytes),)


def _product(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    a, b = inputs[-2:]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    kind: Kind = "bmm" if len(a.shape) == 3 else "linear"
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


def _convolution(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the product that a convolution is (im2col, never written): pixels × filters × window, one a group."""
    return (_window("forward", inputs[0], inputs[1], outputs[0]),)


def _convolution_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
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


def _batch_norm(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return both passes: what is averaged is read once more."""
    again = sum(one.bytes for one in inputs if one.elements == outputs[0].elements)
    [kernel] = _memory(op, inputs, outputs)
    return (kernel._replace(bytes=kernel.bytes + again),)


def _softmax(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("softmax", op.strip("_"), outputs[0], inputs[0].bytes + outputs[0].bytes, 5.0),)


def _softmax_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the product of gradient and output, which PyTorch forms apart (SoftMax.cu), and the kernel proper."""
    out = outputs[0]
    one = _plain("softmax", op.strip("_").removesuffix("_data"), out, 3 * out.bytes, 5.0)
    return (_plain("elementwise", "mul", out, 3 * out.bytes, 1.0), one) if op == "_softmax_backward_data" else (one,)


def _norm(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("layernorm", "layernorm", inputs[0], inputs[0].bytes + outputs[0].bytes, 6.0),)


def _norm_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return both passes of PyTorch: the gradient of the input, then that of the weights (layer_norm_kernel.cu)."""
    size = inputs[0].bytes
    return (
        _plain("layernorm", "layernorm_backward", inputs[0], 3 * size, 8.0),
        _plain("layernorm", "layernorm_weight_backward", inputs[0], 2 * size, 4.0),
    )


def _dropout(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the one kernel of either pass: values in and out, and a mask of a byte each."""
    out = outputs[0]
    return (_plain("memory", op.removeprefix("native_"), out, 2 * out.bytes + out.elements),)


def _embedding(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("memory", op, outputs[0], 2 * outputs[0].bytes + inputs[-1].bytes),)


def _embedding_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the cleared table and the scatter of the rows into it: reads rows, reads and writes the table's."""
    return (*_fill("fill", (), outputs), _plain("memory", "embedding_backward", inputs[0], 3 * inputs[0].bytes))


def _masked_fill(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the copy and the fill in place, which are kernels of their own."""
    return (*_memory("clone", inputs[:1], outputs), *_elementwise(op, (outputs[0], *inputs[1:2]), outputs))


def _loss(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the kernel that picks one value a row."""
    targets = inputs[1]
    return (_plain("memory", op, targets, targets.bytes + targets.elements * BYTES[inputs[0].dtype]),)


def _loss_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return _fill("fill", (), outputs)


def _slice_backward(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the cleared whole and the copy of the part into it."""
    return (*_fill("fill", (), outputs), _plain("memory", "copy", inputs[0], 2 * inputs[0].bytes))


def _copy(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return _memory("copy", inputs[1:] or inputs, outputs)


def _gather(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    return (_plain("memory", op, outputs[0], 2 * outputs[0].bytes),)


def _put(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return the kernel that writes values at some places of a tensor: moves the values alone."""
    part = inputs[-1]
    return (_plain("memory", "index_put", part, 2 * part.bytes),)


def _flash(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Kernels:
    """Return fused attention of q, k, v (the last three inputs) in the layout (batch, heads, sequence, dimension)."""
    q, k = inputs[-3], inputs[-2]
    batch, heads, queries, dim = q.shape
    direction, causal = ("backward" if "backward" in op else "forward"), op.endswith("causal")
    return (attention(direction, q.dtype, batch, heads, k.shape[1], queries, k.shape[2], dim, causal),)


_POINTWISE = (
    *(
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "pow",
        "neg",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "tanh",
        "sigmoid",
    ),
    *(
        "erf",
        "sin",
        "cos",
        "gelu",
        "relu",
        "silu",
        "leaky_relu",
        "elu",
        "hardtanh",
        "softplus",
        "mish",
        "clamp",
        "clamp_min",
    ),
    *("where", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
    *(
        "bitwise_and",
        "bitwise_or",
        "bitwise_not",
        "tanh_backward",
        "gelu_backward",
        "silu_backward",
        "threshold_backward",
    ),
    *("sigmoid_backward", "addcmul", "addcdiv", "lerp", "square", "sgn", "sign", "isnan", "hardswish", "relu_"),
)
_FILLS = (
    "fill",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
    "arange",
    "zero",
    "normal",
    "uniform",
    "bernoulli",
)
_TABLE: dict[str, Price] = {
    **dict.fromkeys(_POINTWISE, _elementwise),
    **dict.fromkeys(_FILLS, _fill),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("clone", "copy", "_to_copy", "cat", "stack", "sum", "mean", "contiguous"), _memory),
    **dict.fromkeys(("tril", "triu", "cumsum", "argmax", "amax", "max", "var_mean"), _memory),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(("topk", "sort", "scatter", "scatter_add", "repeat", "max_pool2d_with_indices"), _memory),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d", "constant_pad_nd"), _memory),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm,
    "native_layer_norm": _norm,
    "_fused_rms_norm": _norm,
    "native_layer_norm_backward": _norm_backward,
    "_fused_rms_norm_backward": _norm_backward,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "masked_fill": _masked_fill,
    "masked_fill_": _elementwise,
    "slice_backward": _slice_backward,
    "select_backward": _slice_backward,
    "copy_": _copy,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss_backward,
    "index_put": _put,
    "index_select": _gather,
    "gather": _gather,
    "index": _gather,
    **{f"attention{kind}{end}": _flash for kind in ("", "_backward") for end in ("", "_causal")},
}
