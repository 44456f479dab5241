"""The embedding: a vocabulary-parallel table, learned positions, dropout."""

from __future__ import annotations

from clustersim.model.elementwise import add, copy, dropout, dropout_backward
from clustersim.model.kernel import Kernel
from clustersim.model.linear import accumulate
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank

TABLE = "embedding"
"""Name of the operator whose weights a tied head shares."""


def embedding_part(rank: Rank) -> tuple[Operator, ...]:
    """Return the operators from token ids to the first block's input; post-norm models (BERT) normalize here."""
    return (
        table(rank),
        *((positions(rank),) if rank.model.positions == "learned" else ()),
        *((norm(rank, "embedding_norm", fork=False),) if rank.model.norm_position == "post" else ()),
        *((embedding_dropout(rank),) if rank.model.dropout else ()),
    )


def table(rank: Rank) -> Operator:
    """Return the lookup; rows of other ranks are zero, so the tp ranks add up (Megatron's VocabParallelEmbedding)."""
    hidden, sp = rank.model.hidden, rank.sequence_parallel
    whole = (rank.tokens, hidden)
    weights = rank.vocab * hidden
    reduce = rank.exchange("reduce_scatter" if sp else "all_reduce", *whole)
    return Operator(
        TABLE,
        (copy(rank, "embedding", *whole, 2 * rank.size), *reduce),
        rank.exchange("all_gather", *whole) if sp else (),
        lookup_backward(rank, rank.vocab, rank.tokens),
        parameters=weights,
        saved=8.0 * rank.tokens,
    )


def lookup_backward(rank: Rank, entries: int, rows: int) -> tuple[Kernel, ...]:
    """Return the dense gradient of a lookup: clear the table's gradient, scatter the rows, add to the main gradient."""
    hidden, z = rank.model.hidden, rank.size
    return (
        copy(rank, "fill", entries, hidden, z),
        copy(rank, "embedding_backward", rows, hidden, 3 * z),
        *accumulate(rank, entries, hidden),
    )


def positions(rank: Rank) -> Operator:
    """Return the lookup of learned positions and their sum with the tokens' vectors."""
    hidden, rows = rank.model.hidden, rank.local
    entries = rank.model.max_positions or rank.training.seq
    weights = rank.replicated(entries * hidden)
    return Operator(
        "positions",
        (copy(rank, "embedding", rows, hidden, 2 * rank.size), add(rank, rows, hidden)),
        (),
        lookup_backward(rank, entries, rows),
        parameters=weights,
        replicated=weights,
    )


def embedding_dropout(rank: Rank) -> Operator:
    """Return the dropout after the embedding; keeps its mask."""
    shape = (rank.local, rank.model.hidden)
    return Operator(
        "embedding_dropout",
        dropout(rank, *shape),
        dropout_backward(rank, *shape),
        saved=float(shape[0] * shape[1]),
    )
