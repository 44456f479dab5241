"""NCCL's rings: one per rail, each entering every node at the GPU of that rail (NVIDIA/nccl, src/graph/connect.cc).

Ring c visits the GPUs c, c-1, … c+1 of a node and goes on to GPU c of the next node, with 1/g of the array for g GPUs per node.
Every NIC carries 2(n-1)/n·S/g of an all_reduce, where a single ring would put all of it on one NIC of each node. If nodes have
different numbers of GPUs, the smallest sets the number of rings. On one node, and with one GPU per node, it is `ring`. broadcast
and reduce run the same rings as chains from or to rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms import ring
from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of, uniform
from clustersim.collectives.shared_steps import rail_chains

OPS = ring.OPS


def orders(group: Group) -> Ints:
    """Return the ranks in the order of each ring, an array (rings, n)."""
    inside, nodes = nodes_of(group)
    if nodes > 1 and not group.rings:
        return np.concatenate(rail_chains(group), axis=1)
    local = np.array(group.rings) if group.rings else np.arange(inside)[None]
    local = local if nodes == 1 else _entering(local)
    return (np.arange(nodes)[:, None] * inside + local[:, None, :]).reshape(len(local), -1)


def _entering(rings: Ints) -> Ints:
    """Return for each GPU g of a node ring g modulo the rings, from g on (GPUs, GPUs). rings: the node's own (rings, GPUs)."""
    entered = [rings[gpu % len(rings)] for gpu in range(rings.shape[1])]
    return np.stack([np.roll(order, -int((order == gpu).argmax())) for gpu, order in enumerate(entered)])


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on the rings of all rails."""
    return along(op, group, orders(group))


def along(op: str, group: Group, rings: Ints) -> Iterator[Step]:
    """Yield the steps of `ring` along each row of `rings` (rings, n). Ring c carries chunks c, c + rings, c + 2·rings, …."""
    for c, order in enumerate(_from_root(rings) if op in ("broadcast", "reduce") else rings):
        ranks, rooted = order.tolist(), op in ("broadcast", "reduce")
        for step in ring.steps(op, group):
            chunk = c if rooted else ranks[step.chunk] * len(rings) + c
            yield Step(step.round, ranks[step.source], ranks[step.destination], chunk, step.reduce)


def _from_root(rings: Ints) -> Ints:
    """Return the ring orders, an array (rings, n), rotated so that each begins with rank 0."""
    start = (rings == 0).argmax(axis=1)
    return np.take_along_axis(rings, (start[:, None] + np.arange(rings.shape[1])) % rings.shape[1], axis=1)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: with equal nodes, links inside nodes carry all rings but one, and links between nodes one ring.

    With unequal nodes, given rings or one node, each hop carries its ring's part. Broadcast and reduce use `chains`.
    """
    n, (inside, nodes) = group.n, nodes_of(group)
    if op in ("broadcast", "reduce"):
        return chains(op, group, orders(group))
    times = 2 if op == "all_reduce" else 1
    part = times * (n - 1) / n
    if group.sizes or group.rings:
        rings = orders(group)
        return (uniform(times * (n - 1), rings.ravel(), np.roll(rings, -1, axis=1).ravel(), part / len(rings)),)
    rank = np.arange(n, dtype=np.int64)
    if nodes == 1 or inside == 1:
        return (uniform(times * (n - 1), rank, np.roll(rank, -1), part),)
    node, local = np.divmod(rank, inside)
    previous = node * inside + (local - 1) % inside
    leaving = node * inside + (local + 1) % inside  # ring `local` leaves the node here
    next_node = (node + 1) % nodes * inside + local
    return (
        merged(times * (n - 1), (rank, previous, part * (inside - 1) / inside), (leaving, next_node, part / inside)),
    )


def chains(op: str, group: Group, rings: Ints) -> tuple[Phase, ...]:
    """Return the phase of a broadcast from rank 0, or a reduce to it: each of `rings` (rings, n) is a chain with S / rings."""
    opened = _from_root(rings)
    low, high = opened[:, :-1].ravel(), opened[:, 1:].ravel()
    source, destination = (low, high) if op == "broadcast" else (high, low)
    return (uniform(group.n - 1, source, destination, 1 / len(rings)),)
