"""The way of tokens to experts on other ranks and back, as Megatron's all-to-all dispatcher goes it.

Forward: copy each token to its topk experts, exchange the rows over ep, gather those of the tp ranks (each received a part of
the sequence), sort them by expert. After the experts the same backwards, and a weighted sum. The gradients of the return travel
out to the experts, those of the way out come back. Source: megatron/core/transformer/moe/token_dispatcher.py,
MoEAlltoAllTokenDispatcher. It also exchanges the numbers of rows, a few bytes, which are left out here.
"""

from __future__ import annotations

from clustersim.workload.kernel import Kernel
from clustersim.workload.mlp import dense
from clustersim.workload.operator import CollectiveOp, Exchange, Operator
from clustersim.workload.pointwise import add, copy
from clustersim.workload.rank import Rank

Steps = tuple[Kernel | Exchange, ...]


def dispatch(rank: Rank) -> Operator:
    """Return the way out; its gradient adds the topk copies up and meets those of router and shared experts."""
    shape, traffic = (rank.local, rank.model.hidden), (1 + rank.model.topk) * rank.size
    meetings = 2 if rank.model.shared_experts else 1
    return Operator(
        "dispatch",
        (copy(rank, "permute", *shape, traffic), rank.across("dispatch"), *spread(rank, "all_gather"), *sort(rank)),
        (
            *sort(rank),
            *spread(rank, "reduce_scatter"),
            rank.across("combine"),
            copy(rank, "permute_backward", *shape, traffic),
            *(add(rank, *shape),) * meetings,
        ),
    )


def combine(rank: Rank) -> Operator:
    """Return the way back and the weighted sum of the topk outputs of each token; keeps the outputs that it weighs."""
    k, shape, z = rank.model.topk, (rank.local, rank.model.hidden), rank.size
    joined = (add(rank, *shape),) if rank.model.shared_experts else ()
    back = (*sort(rank), *spread(rank, "reduce_scatter"), rank.across("combine"))
    return Operator(
        "combine",
        (*back, copy(rank, "unpermute", *shape, (1 + k) * z), *joined),
        (
            copy(rank, "unpermute_backward", *shape, (1 + 2 * k) * z),
            rank.across("dispatch"),
            *spread(rank, "all_gather"),
            *sort(rank),
        ),
        saved=z * k * shape[0] * shape[1],
    )


def spread(rank: Rank, op: CollectiveOp) -> tuple[Exchange, ...]:
    """Return the tp collective on the rows that the experts of the tp ranks, each a slice of them, work on."""
    return rank.exchange(op, rank.rows, rank.model.hidden) if rank.rows else ()


def sort(rank: Rank) -> Steps:
    """Return the copy of the received rows into the order of their experts, or back; one expert needs none."""
    if rank.experts == 1 or not rank.rows:
        return ()
    return (copy(rank, "sort_rows", rank.rows, rank.model.hidden, 2 * rank.size),)


def dense_experts(rank: Rank) -> tuple[Operator, ...]:
    """Return the experts that every token visits, as one dense MLP that each ep rank runs on its own tokens."""
    count = rank.model.shared_experts
    return dense(rank, "shared_", rank.ffn * count) if count else ()
