"""The embedding: a vocabulary-parallel table, learned positions, dropout."""

from __future__ import annotations

from clustersim.model.elementwise import add, copy, dropout, dropout_backward
from clustersim.model.kernel import Kernel
from clustersim.model.linear import accumulate
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

TABLE = "embedding"
"""Name of the operator whose weights a tied head shares."""


def embedding_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators from token ids to the first block's input; post-norm models (BERT) have their first norm here."""
    return (
        table(shard),
        *((positions(shard),) if shard.model.positions == "learned" else ()),
        *((norm(shard, "embedding_norm", fork=False),) if shard.model.norm_position == "post" else ()),
        *((embedding_dropout(shard),) if shard.model.dropout else ()),
    )


def table(shard: ShardedModel) -> Operator:
    """Return the vocabulary-parallel lookup. Rows of other ranks give zero, and the tp ranks sum (Megatron's
    VocabParallelEmbedding)."""
    hidden, sp = shard.model.hidden, shard.sequence_parallel
    shape = (shard.tokens, hidden)
    weights = shard.vocab * hidden
    reduce = shard.exchange("reduce_scatter" if sp else "all_reduce", *shape)
    return Operator(
        TABLE,
        (copy(shard, "embedding", *shape, 2 * shard.size), *reduce),
        shard.exchange("all_gather", *shape) if sp else (),
        lookup_backward(shard, shard.vocab, shard.tokens),
        parameters=weights,
        saved=8.0 * shard.tokens,
        backward_alive=shard.size * (weights + shard.tokens * hidden),  # a dense gradient of the whole table
    )


def lookup_backward(shard: ShardedModel, entries: int, rows: int) -> tuple[Kernel, ...]:
    """Return the kernels of a lookup's dense gradient: clear the table's gradient, scatter the rows, add to the main gradient.
    entries: rows of the table on this rank. rows: rows that were looked up."""
    hidden, z = shard.model.hidden, shard.size
    return (
        copy(shard, "fill", entries, hidden, z),
        copy(shard, "embedding_backward", rows, hidden, 3 * z),
        *accumulate(shard, entries, hidden),
    )


def positions(shard: ShardedModel) -> Operator:
    """Return the lookup of learned positions and their sum with the token vectors."""
    hidden, rows = shard.model.hidden, shard.local
    entries = shard.model.max_positions or shard.training.seq
    weights = shard.replicated(entries * hidden)
    return Operator(
        "positions",
        (copy(shard, "embedding", rows, hidden, 2 * shard.size), add(shard, rows, hidden)),
        (),
        lookup_backward(shard, entries, rows),
        parameters=weights,
        replicated=weights,
        backward_alive=shard.size * (weights + rows * hidden),
    )


def embedding_dropout(shard: ShardedModel) -> Operator:
    """Return the dropout after the embedding. It saves its mask."""
    shape = (shard.local, shard.model.hidden)
    return Operator(
        "embedding_dropout", dropout(shard, *shape), dropout_backward(shard, *shape), saved=float(shape[0] * shape[1])
    )
