"""Which algorithm a collective uses: the one that the workload names, or with `nccl` the one that NCCL would choose."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.engine.traffic import Family
from clustersim.topology.model import Topology

NCCL = "nccl"


class Chosen(NamedTuple):
    """The file of `collectives/` that carries a collective, for groups of `levels`, and what its protocol adds.

    latency: seconds before the bytes move, launch included (None: the launch, and rounds times the slowest hop). rate: bytes/s
    of the collective's size that the protocol can reach at most.
    """

    algorithm: str
    levels: tuple[int, ...]
    latency: float | None = None
    rate: float = float("inf")


def chosen(topology: Topology, family: Family, op: str, size: float) -> Chosen:
    """Return what a collective `op` of `size` bytes uses in the groups of a family.

    Where groups lie on nodes in different ways, NCCL's choice is that of the one with the longest time.
    """
    if family.algorithm != NCCL:
        return Chosen(family.algorithm, family.levels)
    from clustersim.collectives.nccl.choose import choose, seconds
    from clustersim.collectives.nccl.shape import shapes

    launch = topology.node.nccl.launch or 0.0
    kinds, _ = shapes(topology, family.ranks, family.shares)
    found = [(kind, choose(op, size, kind, topology.node)) for kind in kinds]
    kind, choice = max(found, key=lambda one: seconds(one[1], size))
    return Chosen(choice.file, kind.group.levels, launch + choice.latency_s, choice.rate_bytes_per_s)
