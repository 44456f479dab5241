"""RCCL's rings where a link joins every two GPUs of a node (ROCm/rccl, src/graph/rome_models.cc, models 79 and 81).

Ring c enters a node by NIC c, visits all GPUs on one path, and leaves by the NIC of the last GPU. The next node is crossed
backwards, so that rings stay on rails (RCCL 2.20.5; the last of an odd number of nodes leaves by another NIC). Paths are the
zigzags c, c+1, c-1, c+2, … (mod g), the row-complete Latin square of Williams (1949). Together they use each of the g(g-1)
directed links equally often (once for even g; odd g adds the mirrored zigzags). So each link and each NIC carries 2(n-1)/n·S/g
of an all_reduce. RCCL's table is another such square. On one node, rings close inside the node and load every link equally:
`direct`, and for rooted operations a spread of n-1 parts that the other ranks pass on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms import direct, rail_ring, ring
from clustersim.collectives.model import AllPairs, Group, Phase, Step, halves, merged, node_pairs, nodes_of

OPS = ring.OPS
ROOTED = ("broadcast", "reduce")
"""Operations with rank 0 as root."""


def paths(inside: int) -> Ints:
    """Return the paths through a node of `inside` GPUs, an array (paths, GPUs), each from the GPU whose NIC it enters by."""
    places = np.arange(inside)
    zigzag = np.where(places % 2, (places + 1) // 2, -(places // 2))
    offsets = (zigzag,) if inside % 2 == 0 or inside == 1 else (zigzag, -zigzag)
    return np.concatenate([(places[:, None] + offset) % inside for offset in offsets])


def orders(group: Group) -> Ints:
    """Return the ranks of a group on several nodes in the order of each ring, an array (rings, n)."""
    inside, nodes = nodes_of(group)
    local = paths(inside)
    directions = np.stack([local, local[:, ::-1]], axis=1)[:, np.arange(nodes) % 2]
    return (np.arange(nodes)[:, None] * inside + directions).reshape(len(local), -1)


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op`: along the rings over several nodes; on one, `_spread` for broadcast and reduce, else `direct`."""
    if nodes_of(group)[1] > 1:
        return rail_ring.along(op, group, orders(group))
    return halves(op, _spread(group.n)) if op in ROOTED else direct.steps(op, group)


def phases(op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the rings' phase, which loads links in nodes equally and NICs equally; on one node that of `direct` or a spread."""
    inside, nodes = nodes_of(group)
    if nodes == 1:
        return (_spreading(op, group.n),) if op in ROOTED else direct.phases(op, group)
    if op in ROOTED:
        return rail_ring.chains(op, group, orders(group))
    times = 2 if op == "all_reduce" else 1
    part = times * (group.n - 1) / group.n / inside
    rings = orders(group)
    leaving, entering = rings[:, inside - 1 :: inside].ravel(), np.roll(rings[:, ::inside], -1, axis=1).ravel()
    shared = part * inside / len(rings)
    return (merged(times * (group.n - 1), (*node_pairs(group), part), (leaving, entering, shared)),)


def _spread(n: int) -> Iterator[Step]:
    """Yield the steps of a broadcast in two rounds: part r goes from rank 0 to rank r and from there to all others."""
    for rank in range(1, n):
        yield Step(0, 0, rank, rank - 1, reduce=False)
        yield from (Step(1, rank, other, rank - 1, reduce=False) for other in range(1, n) if other != rank)


def _spreading(op: str, n: int) -> Phase:
    """Return the phase of `_spread`: part r of n - 1 parts of S between rank 0 and rank r, and between rank r and all others."""
    source, destination = node_pairs(Group(n, (n, 1)))
    useful = destination != 0
    pairs = (source[useful], destination[useful]) if op == "broadcast" else (destination[useful], source[useful])
    return merged(min(n - 1, 2), (*pairs, 1 / (n - 1)))
