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
    """Return what a collective `op` of `size` bytes uses in the groups of a family (the first stands for all)."""
    if family.algorithm != NCCL:
        return Chosen(family.algorithm, family.levels)
    from clustersim.collectives.nccl.choose import choose
    from clustersim.collectives.nccl.shape import shape

    form = shape(topology, family.ranks[0])
    found = choose(op, size, form, topology.node)
    latency = found.latency_s + (topology.node.nccl.launch or 0.0)
    return Chosen(found.file, form.group.levels, latency, found.rate_bytes_per_s)
