"""DeepEP: a token crosses to a node once, by its own rail, and is copied there to each GPU that has experts of it.

Normal kernels of deepseek-ai/DeepEP (csrc/kernels/internode.cu): both ways run as one pipeline, so they are one phase. With k
experts a token, which lie on v of N nodes and w of n GPUs in the mean, dispatch sends (1 - 1/N)·v/k·S over a NIC and
(1 - 1/g)·w/k·S over the links of a GPU, g of which are a node; combine goes the same way back and adds up on the way.
Without a router each row is a token of its own, which saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of
from clustersim.errors import InputError
from clustersim.model.router import ExpertRouter, visited

OPS = frozenset({"dispatch", "combine"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of rows that are tokens of their own: over the rail of whose token it is, the rest inside a node."""
    n, inside = group.n, nodes_of(group)[0]
    for rank in range(n):
        for other in range(n):
            chunk = rank * n + other
            turn = (
                other // inside * inside + rank % inside
                if op == "dispatch"
                else rank // inside * inside + other % inside
            )
            if turn != rank:
                yield Step(0, rank, turn, chunk, reduce=False)
            if other != turn:
                yield Step(1, turn, other, chunk, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase; both ways carry as much. Raises InputError where ranks have different rows."""
    across, within = pairs_of("deepep", group)
    return (merged(bool(across) + bool(within), *across, *within),)


def pairs_of(name: str, group: Group) -> tuple[list[tuple[Ints, Ints, float]], ...]:
    """Return the pairs of a token's way between nodes and of that inside its nodes, as (sources, destinations, fraction).

    Raises InputError, which says the name of the algorithm, where ranks have different rows.
    """
    if group.shares:
        raise InputError(
            f"{name} takes rows that fall evenly on all ranks; leave training.expert_imbalance at 1 or write nccl"
        )
    inside, nodes = nodes_of(group)
    router = group.router or ExpertRouter(group.n, 1)
    ranks = np.arange(group.n, dtype=np.int64)
    shifts = [np.roll(ranks.reshape(nodes, inside), shift, axis=0).ravel() for shift in range(1, nodes)]
    turns = [np.roll(ranks.reshape(nodes, inside), shift, axis=1).ravel() for shift in range(1, inside)]
    across = visited(router, nodes) / nodes / router.topk
    within = visited(router, group.n) / inside / router.topk
    return [(ranks, to, across) for to in shifts], [(ranks, to, within) for to in turns]
