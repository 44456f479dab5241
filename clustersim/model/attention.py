"""Self-attention: query/key/value linear, rotary positions, the core (flash or unfused), output linear, residual."""

from __future__ import annotations

from clustersim.model.elementwise import copy, dropout, dropout_backward, pointwise, residual
from clustersim.model.kernel import Kernel, attention, gemm, vector
from clustersim.model.linear import column, row
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

CORE = "attention"
"""Name of the operator that selective recomputation runs again."""


def attention_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of self-attention without its norm."""
    hidden, inner = shard.model.hidden, shard.heads * shard.dim
    outputs = inner + 2 * shard.kv_heads * shard.dim
    qkv_saved = shard.size * shard.tokens * outputs
    return (
        column(shard, "qkv", hidden, outputs, bias=shard.model.bias, saved=qkv_saved),
        *((rotary(shard),) if shard.model.positions == "rotary" else ()),
        flash(shard) if shard.training.attention == "flash" else unfused(shard),
        row(shard, "projection", inner, hidden, bias=shard.model.bias),
        residual_part(shard, "attention_residual"),
    )


def residual_part(shard: ShardedModel, name: str) -> Operator:
    """Return bias, dropout and residual sum after a row-parallel linear; keeps the dropout mask, a byte a value."""
    rows, hidden = shard.local, shard.model.hidden
    late_bias = shard.model.bias and (shard.tp > 1 or not shard.eager)
    return Operator(
        name,
        residual(shard, hidden, late_bias),
        dropout_backward(shard, rows, hidden),
        saved=float(rows * hidden) if shard.model.dropout else 0.0,
    )


def rotary(shard: ShardedModel) -> Operator:
    """Return the rotation of queries and keys; fused in place, or eager: two products and a sum of halves swapped."""
    columns = (shard.heads + shard.kv_heads) * shard.dim
    z, rows = shard.size, shard.tokens
    steps = (("mul", 2), ("rotate_half", 2), ("mul", 2), ("add", 3)) if shard.eager else (("rope", 2),)
    kernels = tuple(pointwise(shard, op, rows, columns, values * z) for op, values in steps)
    return Operator("rotary", kernels, kernels)


def flash(shard: ShardedModel) -> Operator:
    """Return the fused core: keeps only its statistics, 4 bytes a query and head (its output is the projection's input)."""
    b, s = shard.training.micro_batch, shard.training.seq
    args = (shard.product, b, shard.heads, shard.kv_heads, s, s, shard.dim, shard.model.causal)
    return Operator(
        CORE,
        (attention("forward", *args),),
        (attention("backward", *args),),
        saved=4.0 * b * shard.heads * s,
    )


def unfused(shard: ShardedModel) -> Operator:
    """Return the core as two products around a softmax; it keeps the 5·a·s²·b bytes of Korthikanti et al. in 16 bits."""
    s, d, batch = shard.training.seq, shard.dim, shard.training.micro_batch * shard.heads
    elements, z = float(batch) * s * s, shard.size
    wide, narrow = (s, s, d), (s, d, s)

    def bmm(op: str, shape: tuple[int, int, int]) -> Kernel:
        return gemm("bmm", op, shard.product, batch, *shape)

    forward = (bmm("scores", wide), *softmax(shard, batch * s, s), bmm("context", narrow))
    backward = (
        bmm("context_dgrad", wide),
        bmm("context_wgrad", narrow),
        *softmax_backward(shard, batch * s, s),
        bmm("scores_dgrad", narrow),
        bmm("scores_wgrad", narrow),
    )
    repeat, merge = _grouped(shard)
    kept = elements * (2 * z + 1 if shard.model.dropout else z)
    return Operator(CORE, (*repeat, *forward), (*backward, *merge), saved=kept)


def _grouped(shard: ShardedModel) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the copies that repeat key/value heads for the unfused products, and the sums that merge their gradients."""
    if shard.kv_heads == shard.heads:
        return (), ()
    columns = 2 * shard.kv_heads * shard.dim
    traffic = shard.size * (1 + shard.heads / shard.kv_heads)
    names = ("repeat_kv", "repeat_kv_backward")
    repeat, merge = (copy(shard, op, shard.tokens, columns, traffic) for op in names)
    return (repeat,), (merge,)


def softmax(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return scale, mask, softmax and dropout of the scores: scale and mask ride on the softmax when fused."""
    z = shard.size
    fused = (vector("softmax", "softmax", shard.dtype, rows, columns, 5.0, 2 * z),)
    before = (pointwise(shard, "scale", rows, columns, 2 * z), copy(shard, "mask", rows, columns, 2 * z))
    return (*(() if shard.fused_softmax else before), *fused, *dropout(shard, rows, columns))


def softmax_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the gradients of `softmax` in reverse order."""
    z = shard.size
    fused = (vector("softmax", "softmax_backward", shard.dtype, rows, columns, 5.0, 3 * z),)
    mask = (copy(shard, "mask", rows, columns, 2 * z),) if shard.model.causal else ()
    after = (*mask, pointwise(shard, "scale", rows, columns, 2 * z))
    return (*dropout_backward(shard, rows, columns), *fused, *(() if shard.fused_softmax else after))
