"""DeepEP: a token crosses to each node once, on its own rail, and is copied there to each GPU that has its experts.

Models the normal kernels of deepseek-ai/DeepEP (csrc/kernels/internode.cu). Transfers between and inside nodes run as one
pipeline, so they are one phase. With k experts per token that lie on v of N nodes and w of n GPUs on average, dispatch sends (1
- 1/N)·v/k·S over a NIC and (1 - 1/g)·w/k·S over the links of a GPU, with g GPUs per node. Combine takes the same way back and
adds on the way. Without a router each row is a token of its own, which saves nothing.
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
    """Yield the steps if each row is a token of its own: over the rail of the token's rank, then inside the destination node."""
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
    """Return one phase; dispatch and combine carry equal bytes. Raises InputError if ranks have different numbers of rows."""
    across, within = pairs_of("deepep", group)
    return (merged(bool(across) + bool(within), *across, *within),)


def pairs_of(name: str, group: Group) -> tuple[list[tuple[Ints, Ints, float]], ...]:
    """Return the pairs between nodes and the pairs inside nodes, each a list of (sources, destinations, fraction of S per pair).

    `name` is the algorithm named in the InputError, which is raised if ranks have different numbers of rows.
    """
    if group.shares:
        remedy = "leave training.expert_imbalance at 1 or write nccl"
        raise InputError(f"{name} takes rows that fall evenly on all ranks; {remedy}")
    inside, nodes = nodes_of(group)
    router = group.router or ExpertRouter(group.n, 1)
    ranks = np.arange(group.n, dtype=np.int64)
    shifts = [np.roll(ranks.reshape(nodes, inside), shift, axis=0).ravel() for shift in range(1, nodes)]
    turns = [np.roll(ranks.reshape(nodes, inside), shift, axis=1).ravel() for shift in range(1, inside)]
    across = visited(router, nodes) / nodes / router.topk
    within = visited(router, group.n) / inside / router.topk
    return [(ranks, to, across) for to in shifts], [(ranks, to, within) for to in turns]
