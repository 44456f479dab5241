"""CollNet chain: one chain of GPUs per rail inside each node, and network switches that add (SHARP).

Like `rail_tree`, with the switches of rail c instead of its trees: 2(g-1)·a + b for g GPUs per node, hop latency a inside nodes
and b to the switches, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, halves, network_switch, nodes_of
from clustersim.collectives.shared_steps import rail_phase

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` with one chunk per rail: along the rail's chain to its head, to the rail's switches, and back."""
    return halves(op, _copies(group))


def _copies(group: Group) -> Iterator[Step]:
    """Yield the steps from the switches of each rail to the head of its chain in every node, and along the chain."""
    inside, nodes = nodes_of(group)
    for rail in range(inside):
        for rank in range(group.n):
            distance = (rail - rank) % inside  # 0 is the head
            if distance:
                above = rank // inside * inside + (rank + 1) % inside
                yield Step(distance, above, rank, rail, reduce=False)
            elif nodes > 1:
                yield Step(0, network_switch(rail), rank, rail, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: the chains of all rails inside nodes, and each head to the switches of its rail and back."""
    inside, _ = nodes_of(group)
    rank = np.arange(group.n, dtype=np.int64)
    above = rank // inside * inside + (rank + 1) % inside
    chain_share = (inside - 1) / inside
    chains = [(rank, above, chain_share), (above, rank, chain_share)] if inside > 1 else []
    return (rail_phase(op, group, 2 * (inside - 1), chains),)
