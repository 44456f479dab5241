"""CollNet chain: one chain of GPUs per rail inside each node, and network switches that add (SHARP).

Like `rail_tree`, with the switches of rail c instead of its trees: 2(g-1)·a + b for g GPUs per node, hop latency a inside nodes
and b to the switches, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, merged, network_switch, nodes_of

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` with one chunk per rail: along the rail's chain to its head, to the rail's switches, and back."""
    inside, nodes = nodes_of(group)
    across = 2 if nodes > 1 else 0
    for rail in range(inside):
        for rank in range(group.n):
            distance = (rail - rank) % inside  # 0 is the head
            if distance:
                above = rank // inside * inside + (rank + 1) % inside
                yield Step(inside - 1 - distance, rank, above, rail, reduce=True)
                yield Step(inside - 1 + across + distance - 1, above, rank, rail, reduce=False)
            elif across:
                yield Step(inside - 1, rank, network_switch(rail), rail, reduce=True)
                yield Step(inside, network_switch(rail), rank, rail, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: the chains of all rails inside nodes, and each head to the switches of its rail and back."""
    inside, nodes = nodes_of(group)
    rank = np.arange(group.n, dtype=np.int64)
    above = rank // inside * inside + (rank + 1) % inside
    switches = network_switch(0) - rank % inside
    chain_share = (inside - 1) / inside
    chains = [(rank, above, chain_share), (above, rank, chain_share)] if inside > 1 else []
    between = [(rank, switches, 1 / inside), (switches, rank, 1 / inside)] if nodes > 1 else []
    return (merged(2 * (inside - 1) + 2 * (nodes > 1), *chains, *between),)
