"""Self-attention: query/key/value linear, rotary positions, the core (flash or unfused), output linear, residual."""

from __future__ import annotations

from clustersim.model.elementwise import copy, dropout, dropout_backward, pointwise, residual
from clustersim.model.kernel import Kernel, attention, gemm, vector
from clustersim.model.linear import column, row
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank

CORE = "attention"
"""Name of the operator that selective recomputation runs again."""


def attention_part(rank: Rank) -> tuple[Operator, ...]:
    """Return the operators of self-attention without its norm."""
    hidden, inner = rank.model.hidden, rank.heads * rank.dim
    outputs = inner + 2 * rank.kv_heads * rank.dim
    qkv_saved = rank.size * rank.tokens * outputs
    return (
        column(rank, "qkv", hidden, outputs, bias=rank.model.bias, saved=qkv_saved),
        *((rotary(rank),) if rank.model.positions == "rotary" else ()),
        flash(rank) if rank.training.attention == "flash" else unfused(rank),
        row(rank, "projection", inner, hidden, bias=rank.model.bias),
        residual_part(rank, "attention_residual"),
    )


def residual_part(rank: Rank, name: str) -> Operator:
    """Return bias, dropout and residual sum after a row-parallel linear; keeps the dropout mask, a byte a value."""
    rows, hidden = rank.local, rank.model.hidden
    late_bias = rank.model.bias and (rank.tp > 1 or not rank.eager)
    return Operator(
        name,
        residual(rank, hidden, late_bias),
        dropout_backward(rank, rows, hidden),
        saved=float(rows * hidden) if rank.model.dropout else 0.0,
    )


def rotary(rank: Rank) -> Operator:
    """Return the rotation of queries and keys; fused in place, or eager: two products and a sum of halves swapped."""
    columns = (rank.heads + rank.kv_heads) * rank.dim
    z, rows = rank.size, rank.tokens
    steps = (("mul", 2), ("rotate_half", 2), ("mul", 2), ("add", 3)) if rank.eager else (("rope", 2),)
    kernels = tuple(pointwise(rank, op, rows, columns, values * z) for op, values in steps)
    return Operator("rotary", kernels, kernels)


def flash(rank: Rank) -> Operator:
    """Return the fused core: keeps only its statistics, 4 bytes a query and head (its output is the projection's input)."""
    b, s = rank.training.micro_batch, rank.training.seq
    args = (rank.product, b, rank.heads, rank.kv_heads, s, s, rank.dim, rank.model.causal)
    return Operator(
        CORE,
        (attention("forward", *args),),
        (attention("backward", *args),),
        saved=4.0 * b * rank.heads * s,
    )


def unfused(rank: Rank) -> Operator:
    """Return the core as two products around a softmax; it keeps the 5·a·s²·b bytes of Korthikanti et al. in 16 bits."""
    s, d, batch = rank.training.seq, rank.dim, rank.training.micro_batch * rank.heads
    elements, z = float(batch) * s * s, rank.size
    wide, narrow = (s, s, d), (s, d, s)

    def bmm(op: str, shape: tuple[int, int, int]) -> Kernel:
        return gemm("bmm", op, rank.product, batch, *shape)

    forward = (bmm("scores", wide), *softmax(rank, batch * s, s), bmm("context", narrow))
    backward = (
        bmm("context_dgrad", wide),
        bmm("context_wgrad", narrow),
        *softmax_backward(rank, batch * s, s),
        bmm("scores_dgrad", narrow),
        bmm("scores_wgrad", narrow),
    )
    repeat, merge = _grouped(rank)
    kept = elements * (2 * z + 1 if rank.model.dropout else z)
    return Operator(CORE, (*repeat, *forward), (*backward, *merge), saved=kept)


def _grouped(rank: Rank) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the copies that repeat key/value heads for the unfused products, and the sums that merge their gradients."""
    if rank.kv_heads == rank.heads:
        return (), ()
    columns = 2 * rank.kv_heads * rank.dim
    traffic = rank.size * (1 + rank.heads / rank.kv_heads)
    names = ("repeat_kv", "repeat_kv_backward")
    repeat, merge = (copy(rank, op, rank.tokens, columns, traffic) for op in names)
    return (repeat,), (merge,)


def softmax(rank: Rank, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return scale, mask, softmax and dropout of the scores: scale and mask ride on the softmax when fused."""
    z = rank.size
    fused = (vector("softmax", "softmax", rank.dtype, rows, columns, 5.0, 2 * z),)
    before = (pointwise(rank, "scale", rows, columns, 2 * z), copy(rank, "mask", rows, columns, 2 * z))
    return (*(() if rank.fused_softmax else before), *fused, *dropout(rank, rows, columns))


def softmax_backward(rank: Rank, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the gradients of `softmax` in reverse order."""
    z = rank.size
    fused = (vector("softmax", "softmax_backward", rank.dtype, rows, columns, 5.0, 3 * z),)
    mask = (copy(rank, "mask", rows, columns, 2 * z),) if rank.model.causal else ()
    after = (*mask, pointwise(rank, "scale", rows, columns, 2 * z))
    return (*dropout_backward(rank, rows, columns), *fused, *(() if rank.fused_softmax else after))
