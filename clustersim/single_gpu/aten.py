"""The kernels that one call of a PyTorch operator launches on a GPU, by the operator's ATen name.

Counts of bytes are those of PyTorch's CUDA kernels: every operand that a kernel reads or writes, once. They agree with
the operators of NeuSight's traces on A100-40GB, V100, P100 and T4 (docs/predict.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clustersim.single_gpu import prices as products
from clustersim.single_gpu import prices as rows
from clustersim.single_gpu import prices as vectors
from clustersim.single_gpu.prices import KernelList
from clustersim.single_gpu.tensor import Tensor

Price = Callable[[str, Sequence[Tensor], Sequence[Tensor]], KernelList]

# fmt: off
FREE = frozenset((
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "expand_as", "unsqueeze", "squeeze",
    "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "detach", "alias",
    "as_strided", "narrow", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "lift_fresh_copy", "unflatten", "numpy_T", "sym_size", "is_same_size", "diagonal", "view_as_real",
    "view_as_complex", "scalar_tensor", "_to_cpu", "real",
))
"""Operators that launch nothing."""
# fmt: on


def price(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernels of one call; an operator without an entry moves its inputs and outputs once."""
    outputs = [one for one in outputs if one.elements]
    if entry(op) in FREE or not outputs:
        return ()
    return _TABLE.get(entry(op), vectors.memory)(entry(op), inputs, outputs)


def known(op: str) -> bool:
    """Return whether an operator has an entry of its own."""
    return entry(op) in FREE or entry(op) in _TABLE


def entry(op: str) -> str:
    """Return the name under which an operator is priced: in place (`add_`) as otherwise, unless it has its own entry."""
    return op if op in _TABLE else op.removesuffix("_")


# fmt: off
_POINTWISE = (
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh",
    "sigmoid", "erf", "sin", "cos", "gelu", "relu", "silu", "leaky_relu", "elu", "hardtanh", "softplus", "mish",
    "clamp", "clamp_min", "where", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
    "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "tanh_backward", "gelu_backward",
    "silu_backward", "threshold_backward", "sigmoid_backward", "addcmul", "addcdiv", "lerp", "square", "sgn",
    "sign", "isnan", "hardswish", "relu_",
)
_FILLS = (
    "fill", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
    "arange", "zero", "normal", "uniform", "bernoulli",
)
# fmt: on
_TABLE: dict[str, Price] = {
    **dict.fromkeys(_POINTWISE, vectors.elementwise),
    **dict.fromkeys(_FILLS, vectors.fill),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), products.product),
    **dict.fromkeys(("clone", "copy", "_to_copy", "cat", "stack", "sum", "mean", "contiguous"), vectors.memory),
    **dict.fromkeys(("tril", "triu", "cumsum", "argmax", "amax", "max", "var_mean"), vectors.memory),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), rows.softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), rows.softmax_backward),
    **dict.fromkeys(("topk", "sort", "scatter", "scatter_add", "repeat", "max_pool2d_with_indices"), vectors.memory),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d", "constant_pad_nd"), vectors.memory),
    "convolution": products.convolution,
    "convolution_backward": products.convolution_backward,
    "native_batch_norm": rows.batch_norm,
    "native_batch_norm_backward": rows.batch_norm,
    "native_layer_norm": rows.norm,
    "_fused_rms_norm": rows.norm,
    "native_layer_norm_backward": rows.norm_backward,
    "_fused_rms_norm_backward": rows.norm_backward,
    "native_dropout": vectors.dropout,
    "native_dropout_backward": vectors.dropout,
    "embedding": vectors.embedding,
    "embedding_dense_backward": vectors.embedding_backward,
    "masked_fill": vectors.masked_fill,
    "masked_fill_": vectors.elementwise,
    "slice_backward": vectors.slice_backward,
    "select_backward": vectors.slice_backward,
    "copy_": vectors.copy,
    "nll_loss_forward": vectors.loss,
    "nll_loss_backward": vectors.loss_backward,
    "index_put": vectors.put,
    "index_select": vectors.gather,
    "gather": vectors.gather,
    "index": vectors.gather,
    **{f"attention{kind}{end}": products.flash for kind in ("", "_backward") for end in ("", "_causal")},
}
