"""The way of tokens to experts on other ranks and back, as Megatron's all-to-all dispatcher goes it.

Forward: all ranks tell each other how many rows they have for each expert; each copies its tokens to their topk experts,
exchanges the rows over ep, gathers what the other slices of its experts received, and sorts it by expert. After the experts the
same backwards, and a weighted sum. The gradients of the return travel out to the experts, those of the way out come back.
Source: megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
"""

from __future__ import annotations

from clustersim.workload.kernel import Kernel
from clustersim.workload.mlp import dense
from clustersim.workload.operator import Exchange, Operator
from clustersim.workload.pointwise import add, copy
from clustersim.workload.rank import Rank

Steps = tuple[Kernel | Exchange, ...]


def dispatch(rank: Rank) -> Operator:
    """Return the way out; its gradient adds the topk copies up and meets those of router and shared experts."""
    shape, traffic = (rank.local, rank.model.hidden), (1 + rank.model.topk) * rank.size
    meetings = 2 if rank.model.shared_experts else 1
    return Operator(
        "dispatch",
        (
            counts(rank),
            copy(rank, "permute", *shape, traffic),
            *rank.across("dispatch"),
            *rank.sliced("all_gather"),
            *sort(rank),
        ),
        (
            *sort(rank),
            *rank.sliced("reduce_scatter"),
            *rank.across("combine"),
            copy(rank, "permute_backward", *shape, traffic),
            *(add(rank, *shape),) * meetings,
        ),
    )


def combine(rank: Rank) -> Operator:
    """Return the way back and the weighted sum of the topk outputs of each token; keeps the outputs that it weighs."""
    k, shape, z = rank.model.topk, (rank.local, rank.model.hidden), rank.size
    joined = (add(rank, *shape),) if rank.model.shared_experts else ()
    back = (*sort(rank), *rank.sliced("reduce_scatter"), *rank.across("combine"))
    return Operator(
        "combine",
        (*back, copy(rank, "unpermute", *shape, (1 + k) * z), *joined),
        (
            copy(rank, "unpermute_backward", *shape, (1 + 2 * k) * z),
            *rank.across("dispatch"),
            *rank.sliced("all_gather"),
            *sort(rank),
        ),
        saved=z * k * shape[0] * shape[1],
    )


def counts(rank: Rank) -> Exchange:
    """Return the gathering of everyone's rows by expert, 8 bytes each, over the ranks that share all experts."""
    return Exchange("tp_ep", "all_gather", 8.0 * (rank.model.experts or 1) * rank.ep * rank.parallelism.etp)


def sort(rank: Rank) -> Steps:
    """Return the copy of the received rows into the order of their experts, or back; one expert needs none."""
    if rank.experts == 1 or not rank.rows:
        return ()
    return (copy(rank, "sort_rows", rank.rows, rank.model.hidden, 2 * rank.size),)


def dense_experts(rank: Rank) -> tuple[Operator, ...]:
    """Return the experts that every token visits, as one dense MLP that each ep rank runs on its own tokens."""
    count = rank.model.shared_experts
    return dense(rank, "shared_", rank.ffn * count) if count else ()
