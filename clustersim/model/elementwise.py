"""Element-by-element kernels: additions, activations, dropout, residuals.

Traffic is in bytes per element that a launch must read and write: with z bytes per value, a sum of two tensors costs 3z. Eager
counts are those of PyTorch's kernels; `fused` are Megatron's bias-activation and bias-dropout-add kernels
(megatron/core/fusions).
"""

from __future__ import annotations

from clustersim.model.kernel import Kernel, vector
from clustersim.model.sharding import ShardedModel, gated


def pointwise(shard: ShardedModel, op: str, rows: int, columns: int, traffic: float, flop: float = 1.0) -> Kernel:
    """Return one element-wise kernel over rows×columns values, with `traffic` bytes and `flop` FLOP per value."""
    return vector("elementwise", op, shard.dtype, rows, columns, flop, traffic)


def copy(shard: ShardedModel, op: str, rows: int, columns: int, traffic: float, dtype: str | None = None) -> Kernel:
    """Return one kernel that only moves memory, `traffic` bytes per value."""
    return vector("memory", op, dtype or shard.dtype, rows, columns, 0.0, traffic)


def add(shard: ShardedModel, rows: int, columns: int) -> Kernel:
    """Return the sum of two tensors: 3z bytes per value of z bytes."""
    return pointwise(shard, "add", rows, columns, 3 * shard.size)


def dropout(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return dropout forward: reads and writes the values and writes a mask of one byte each."""
    return (copy(shard, "dropout", rows, columns, 2 * shard.size + 1),) if shard.model.dropout else ()


def dropout_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return dropout backward: reads values and mask, writes values (native_dropout_backward, also in eager PyTorch)."""
    return (copy(shard, "dropout_backward", rows, columns, 2 * shard.size + 1),) if shard.model.dropout else ()


def residual(shard: ShardedModel, columns: int, late_bias: bool) -> tuple[Kernel, ...]:
    """Return dropout and the residual sum after a row-parallel linear. With `late_bias` they also add the linear's bias."""
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
"""Kernels of each eager activation: (name, values moved per element)."""

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

KEPT = {"gelu": 1.0, "relu": 0.0, "squared_relu": 1.0, "swiglu": 3.0, "geglu": 3.0, "gelu_new": 4.0}
"""Values per element that an eager activation saves for its backward pass, besides its output."""


def activation(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the activation of rows×columns outputs, fused with the bias if possible; a gated one reads two inputs per output."""
    name, z = shard.model.activation, shard.size
    if shard.eager:
        return tuple(pointwise(shard, op, rows, columns, values * z) for op, values in FORWARD[name])
    return (pointwise(shard, name.removesuffix("_new"), rows, columns, (3 if gated(shard.model) else 2) * z),)


def activation_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the gradient of the activation."""
    name, z = shard.model.activation, shard.size
    if shard.eager:
        # both inputs come from one linear: their gradients are joined
        joined = (copy(shard, "concatenate", rows, 2 * columns, 2 * z),) if shard.stacked and gated(shard.model) else ()
        return (*(pointwise(shard, op, rows, columns, values * z) for op, values in BACKWARD[name]), *joined)
    op = f"{name.removesuffix('_new')}_backward"
    return (pointwise(shard, op, rows, columns, (5 if gated(shard.model) else 3) * z),)


def activation_saved(shard: ShardedModel, rows: int, columns: int) -> float:
    """Return the bytes that the activation saves: its input, or eager PyTorch's intermediate tensors."""
    name = shard.model.activation
    fused = {"swiglu": 2.0, "geglu": 2.0, "relu": 0.0}.get(name, 1.0)
    return (KEPT[name] if shard.eager else fused) * (1.0 if shard.narrow_activations else shard.size) * rows * columns
