"""CollNet direct: GPUs hand their slices to the rail heads of their node, and network switches add (SHARP).

Slice c of an all_reduce goes straight to GPU c of the same node, through the switches of rail c, and back the same way. A NIC
sends S/g once, where a ring sends 2(n-1)/n·S/g. Time does not grow with the number of nodes, except for a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, merged, network_switch, node_pairs, nodes_of
from clustersim.collectives.rail_steps import all_gather, steps_of

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of an all_reduce, all_gather or reduce_scatter; other operations are not supported.

    In an all_reduce, the GPUs of rail c sum chunk c. Otherwise chunk r starts or ends on rank r.
    """
    return steps_of(op, _all_reduce(group), all_gather(group, partial(_within, group)), last=2)


def _all_reduce(group: Group) -> Iterator[Step]:
    """Yield the steps of an all_reduce: sums to each rail's head, over the network's switches, and back to all ranks."""
    inside, nodes = nodes_of(group)
    across = 2 if nodes > 1 else 0
    for head in range(group.n):
        node, rail = divmod(head, inside)
        for rank in range(node * inside, (node + 1) * inside):
            if rank != head:
                yield Step(0, rank, head, rail, reduce=True)
                yield Step(1 + across, head, rank, rail, reduce=False)
        if across:
            yield Step(1, head, network_switch(rail), rail, reduce=True)
            yield Step(2, network_switch(rail), head, rail, reduce=False)


def _within(group: Group, node: int, head: int, chunk: int) -> Iterator[Step]:
    """Yield the steps in which the head of a chunk sends it to the other GPUs of its node."""
    inside, _ = nodes_of(group)
    for rank in range(node * inside, (node + 1) * inside):
        if rank != head:
            yield Step(2, head, rank, chunk, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: all pairs inside nodes, and each rank to the switches of its rail and back."""
    n, (inside, nodes) = group.n, nodes_of(group)
    rank = np.arange(n, dtype=np.int64)
    network = network_switch(0) - rank % inside
    a, b = node_pairs(group)
    if op == "all_reduce":
        within_nodes = [(a, b, 2 / inside)] if inside > 1 else []
        between = [(rank, network, 1 / inside), (network, rank, 1 / inside)] if nodes > 1 else []
        return (merged(2 * (inside > 1) + 2 * (nodes > 1), *within_nodes, *between),)
    parts = [(a, b, nodes / n)] if inside > 1 else []
    if nodes > 1:
        parts += [(rank, network, 1 / n), (network, rank, (nodes - 1) / n)]
    if op == "reduce_scatter":
        parts = [(y, x, fraction) for x, y, fraction in parts]
    return (merged((inside > 1) + 2 * (nodes > 1), *parts),)
