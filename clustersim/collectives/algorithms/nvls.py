"""NVLS: the switches of a node add and copy, so that each array crosses a GPU's links once (NVIDIA/nccl, NVLink SHARP).

all_reduce: every GPU sends its array up. The switch hands slice c of the sum to GPU c, takes it back, and copies it to all GPUs:
(1 + 1/g)·S in each direction on the links of each of g GPUs, where a ring has 2(g-1)/g·S. Between nodes, slice c goes through
the network switches, which add too (SHARP).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.model import Group, Phase, Step, halves, network_switch, node_switch, nodes_of
from clustersim.collectives.shared_steps import copies, rail_phase

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of an all_reduce, all_gather or reduce_scatter; other operations are not supported.

    In an all_reduce, the GPUs of rail c pass on the sum of chunk c. Otherwise chunk r starts or ends on rank r.
    """
    return _all_reduce(group) if op == "all_reduce" else halves(op, copies(op, group, partial(_within, group)))


def _all_reduce(group: Group) -> Iterator[Step]:
    """Yield the steps of an all_reduce: sums in the node's switch, over rails between nodes, and copies to all ranks."""
    inside, nodes = nodes_of(group)
    across = 2 if nodes > 1 else 0
    for rank in range(group.n):
        node, rail = divmod(rank, inside)
        switch = node_switch(node)
        for chunk in range(inside):
            yield Step(0, rank, switch, chunk, reduce=True)
            yield Step(3 + across, switch, rank, chunk, reduce=False)
        yield Step(1, switch, rank, rail, reduce=False)
        if across:
            yield Step(2, rank, network_switch(rail), rail, reduce=True)
            yield Step(3, network_switch(rail), rank, rail, reduce=False)
        yield Step(2 + across, rank, switch, rail, reduce=False)


def _within(group: Group, node: int, head: int, chunk: int) -> Iterator[Step]:
    """Yield the steps in which the head of a chunk sends it to the switch of its node, and the switch to the other GPUs."""
    inside, _ = nodes_of(group)
    if inside > 1:
        yield Step(2, head, node_switch(node), chunk, reduce=False)
    for rank in range(node * inside, (node + 1) * inside):
        if rank != head:
            yield Step(3, node_switch(node), rank, chunk, reduce=False)


def switches(group: Group) -> tuple[Ints, Ints]:
    """Return two arrays over all ranks: the rank, and the switch of its node."""
    inside, _ = nodes_of(group)
    rank = np.arange(group.n, dtype=np.int64)
    return rank, node_switch(0) - rank // inside


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return the phase of an all_reduce, all_gather or reduce_scatter; other operations are not supported.

    Each rank sends to the switch of its node and, with several nodes, to the network switch of its rail, and back.
    """
    n, (inside, nodes) = group.n, nodes_of(group)
    rank, switch = switches(group)
    if op == "all_reduce":
        part = 1 + 1 / inside
        return (rail_phase(op, group, 4, [(rank, switch, part), (switch, rank, part)]),)
    parts = [(rank, switch, nodes / n), (switch, rank, (n - nodes) / n)] if inside > 1 else []
    return (rail_phase(op, group, 2 * (inside > 1), parts),)
