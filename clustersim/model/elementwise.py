"""Element-by-element kernels: additions, activations, dropout, residuals.

Traffic is in bytes per element that a launch must read and write: with z bytes per value, a sum of two tensors costs 3z. Eager
counts are those of PyTorch's kernels; `fused` are Megatron's bias-activation and bias-dropout-add kernels
(megatron/core/fusions).
"""

from __future__ import annotations

from clustersim.model.kernel import Kernel, vector
from clustersim.model.sharding import ShardedModel, gated


def pointwise(shard: ShardedModel, op: str, rows: int, columns: int, traffic: float, flop: float = 1.0) -> Kernel:
    """Return one element-wise kernel over rows×columns values. traffic, flop: bytes read and written, and FLOP, per value."""
    return vector("elementwise", op, shard.dtype, rows, columns, flop, traffic)


def copy(shard: ShardedModel, op: str, rows: int, columns: int, traffic: float, dtype: str | None = None) -> Kernel:
    """Return one kernel without FLOP over rows×columns values. traffic: bytes read and written per value."""
    return vector("memory", op, dtype or shard.dtype, rows, columns, 0.0, traffic)


def add(shard: ShardedModel, rows: int, columns: int) -> Kernel:
    """Return the kernel that adds two tensors: 3z bytes of traffic per value of z bytes."""
    return pointwise(shard, "add", rows, columns, 3 * shard.size)


def dropout(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the forward kernel of dropout, which also writes a mask of one byte per value; () for a model without dropout."""
    return (copy(shard, "dropout", rows, columns, 2 * shard.size + 1),) if shard.model.dropout else ()


def dropout_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the backward kernel of dropout (native_dropout_backward, also in eager PyTorch); () for a model without dropout."""
    return (copy(shard, "dropout_backward", rows, columns, 2 * shard.size + 1),) if shard.model.dropout else ()


def residual(shard: ShardedModel, columns: int, late_bias: bool) -> tuple[Kernel, ...]:
    """Return the kernels of dropout and residual sum after a row-parallel linear with `columns` outputs.
    late_bias: whether they also add the linear's bias."""
    rows, z = shard.local, shard.size
    if not shard.eager:
        mask = 1 if shard.model.dropout else 0
        op = "bias_dropout_add" if mask else "bias_add" if late_bias else "add"
        return (pointwise(shard, op, rows, columns, 3 * z + mask),)
    bias = (pointwise(shard, "bias", rows, columns, 2 * z),) if late_bias else ()
    return (*bias, *dropout(shard, rows, columns), add(shard, rows, columns))


FORWARD: dict[str, tuple[tuple[str, float], ...]] = {
    "gelu": (("gelu", 2),),
    "relu": (("relu", 2),),
    "squared_relu": (("relu", 2), ("mul", 2)),
    "swiglu": (("silu", 2), ("mul", 3)),
    "geglu": (("gelu", 2), ("mul", 3)),
    # 0.5·x·(1 + tanh(c·(x + d·x³))): mul, pow, mul, add, mul, tanh, add, mul
    "gelu_new": (("mul", 2), ("pow", 2), ("mul", 2), ("add", 3), ("mul", 2), ("tanh", 2), ("add", 2), ("mul", 3)),
}
"""{activation: (name, values read and written per element) of each kernel of its eager form}"""

BACKWARD: dict[str, tuple[tuple[str, float], ...]] = {
    "gelu": (("gelu_backward", 3),),
    "relu": (("relu_backward", 3),),
    "squared_relu": (("mul", 3), ("mul", 2), ("relu_backward", 3)),
    "swiglu": (("mul", 3), ("mul", 3), ("silu_backward", 3)),
    "geglu": (("mul", 3), ("mul", 3), ("gelu_backward", 3)),
    # gradients of the eight operations, and two sums where x and the product are used twice
    "gelu_new": (
        ("mul", 3),
        ("mul", 3),
        ("tanh_backward", 3),
        ("mul", 2),
        ("mul", 2),
        ("pow_backward", 7),
        ("add", 3),
        ("mul", 2),
        ("add", 3),
    ),
}
"""{activation: (name, values read and written per element) of each kernel of its eager gradient}"""

SAVED = {"gelu": 1.0, "relu": 0.0, "squared_relu": 1.0, "swiglu": 3.0, "geglu": 3.0, "gelu_new": 4.0}
"""{activation: values per element that its eager form saves for its backward pass, in addition to its output}"""


def activation(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels of the activation with rows×columns outputs: one, or one per operation if kernels are eager. A gated
    activation reads two inputs per output."""
    name, z = shard.model.activation, shard.size
    if shard.eager:
        return tuple(pointwise(shard, op, rows, columns, values * z) for op, values in FORWARD[name])
    return (pointwise(shard, name.removesuffix("_new"), rows, columns, (3 if gated(shard.model) else 2) * z),)


def activation_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels of the gradient of the activation with rows×columns outputs."""
    name, z = shard.model.activation, shard.size
    if shard.eager:
        # both inputs come from one linear: their gradients are joined
        joint = (copy(shard, "concatenate", rows, 2 * columns, 2 * z),) if shard.stacked and gated(shard.model) else ()
        return (*(pointwise(shard, op, rows, columns, values * z) for op, values in BACKWARD[name]), *joint)
    op = f"{name.removesuffix('_new')}_backward"
    return (pointwise(shard, op, rows, columns, (5 if gated(shard.model) else 3) * z),)


def activation_saved_bytes(shard: ShardedModel, rows: int, columns: int) -> float:
    """Return the bytes that the activation of rows×columns outputs saves: its input (0 for fused ReLU, which reads its output),
    or eager PyTorch's intermediate tensors."""
    name = shard.model.activation
    fused = {"swiglu": 2.0, "geglu": 2.0, "relu": 0.0}.get(name, 1.0)
    return (SAVED[name] if shard.eager else fused) * (1.0 if shard.narrow_activations else shard.size) * rows * columns
