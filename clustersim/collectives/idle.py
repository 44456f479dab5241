"""What the phases of a collective take on a fabric without other traffic, for many groups at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.collectives.all_to_all import all_pairs_loads
from clustersim.collectives.loads import PhaseLoads, pair_loads, width
from clustersim.collectives.model import AllPairs, Phase
from clustersim.topology.model import Topology

FEW = 1 << 21
"""Links of all routes up to which an AllPairs is routed pair by pair: some 200 MB."""


def loads(topology: Topology, ranks: Ints, phase: Phase | AllPairs) -> PhaseLoads:
    """Return the loads of a phase; ranks: GPUs (groups, n) by position.

    Raises InputError when the cluster has no NICs for a pair that needs them, TooManyRoutesError for an AllPairs.
    """
    if isinstance(phase, Phase):
        return pair_loads(topology, ranks, phase)
    if ranks.size * ranks.shape[1] * width(topology) <= FEW:
        return pair_loads(topology, ranks, phase.pairs())
    return all_pairs_loads(topology, ranks, phase)


def idle_rates(topology: Topology, ranks: Ints, phases: Sequence[Phase | AllPairs]) -> Floats:
    """Return bytes/s of the collective's size that the links give each group of GPUs `ranks` (groups, n) on its own."""
    seconds = np.zeros(len(ranks))
    for phase in phases:
        seconds += 1 / loads(topology, ranks, phase).bound
    with np.errstate(divide="ignore"):
        return 1 / seconds


def even_rate(topology: Topology, ranks: Ints, pairs: int = 1 << 16) -> float:
    """Return bytes/s that the links give an all_to_all over many GPUs `ranks` (n,), from about `pairs` of its n(n-1) pairs.

    Seeded permutations take every rank as often for a source as for a destination. Each tier's bytes are held against the
    links of it that they touch, all together: exact where the all_to_all loads a tier evenly, as it does all over a fabric.
    """
    n = len(ranks)
    rng = np.random.default_rng(0)
    turns = -(-pairs // n)
    target = np.concatenate([rng.permutation(n) for _ in range(turns)])
    source = np.tile(np.arange(n), turns)
    kept = source != target
    routes = topology.route(ranks[source[kept]], ranks[target[kept]])
    part = (n - 1) / int(kept.sum())  # each pair taken stands for n(n-1) / kept pairs of 1/n of the bytes
    slowest = 0.0
    for tier in topology.tiers:
        mine = (routes.links >= tier.first) & (routes.links < tier.first + tier.links)
        room = float(topology.capacity[np.unique(routes.links[mine])].sum())
        slowest = max(slowest, part * float(routes.share[mine].sum()) / room) if room else slowest
    return 1 / slowest if slowest else float("inf")
