"""The rate of a collective on a fabric without other traffic, for many groups at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats, Ints, distinct
from clustersim.collectives.all_to_all import all_pairs_loads
from clustersim.collectives.loads import PhaseLoads, pair_loads, width
from clustersim.collectives.model import AllPairs, Phase
from clustersim.topology.model import Topology

FEW = 1 << 21
"""Largest number of links on all routes for which an AllPairs is routed pair by pair; about 200 MB."""


def loads(topology: Topology, ranks: Ints, phase: Phase | AllPairs) -> PhaseLoads:
    """Return the loads of a phase in the groups `ranks` (groups, n), the GPU of each position.

    Raises InputError if a pair needs missing NICs, and TooManyRoutesError if an AllPairs has too many distinct routes.
    """
    if isinstance(phase, Phase):
        return pair_loads(topology, ranks, phase)
    if ranks.size * ranks.shape[1] * width(topology) <= FEW:
        return pair_loads(topology, ranks, phase.pairs())
    return all_pairs_loads(topology, ranks, phase)


def idle_rates(topology: Topology, ranks: Ints, phases: Sequence[Phase | AllPairs]) -> Floats:
    """Return the bytes/s of the collective's size that links allow each group if it has the fabric to itself (groups,).

    `ranks` (groups, n) is the GPU of each position. `phases` run in sequence; without phases the rate is inf. Raises
    errors as `loads` does.
    """
    seconds = np.zeros(len(ranks))
    for phase in phases:
        seconds += 1 / loads(topology, ranks, phase).bound
    with np.errstate(divide="ignore"):
        return 1 / seconds


def even_rate(topology: Topology, ranks: Ints, pairs: int = 1 << 16) -> float:
    """Return the bytes/s that links allow for an all_to_all over many GPUs `ranks` (n,), from a sample of its n(n-1) pairs.

    `pairs` is the approximate number of sampled pairs. The rate counts the bytes that one rank sends; it is inf without links.
    Random permutations with a fixed seed use every rank equally often as source and destination. The bytes of each tier are
    divided by the capacity of all its links that they touch. This is exact if the all_to_all loads each tier evenly, as it does
    over a whole fabric.
    """
    n = len(ranks)
    rng = np.random.default_rng(0)
    repeats = -(-pairs // n)
    target = np.concatenate([rng.permutation(n) for _ in range(repeats)])
    source = np.tile(np.arange(n), repeats)
    different = source != target
    routes = topology.route(ranks[source[different]], ranks[target[different]])
    weight = (n - 1) / int(different.sum())  # each sampled pair stands for n(n-1) / sampled pairs of 1/n of the bytes
    slowest = 0.0
    for tier in topology.tiers:
        in_tier = (routes.links >= tier.first) & (routes.links < tier.first + tier.links)
        capacity = float(topology.capacity[distinct(routes.links[in_tier])].sum())
        slowest = max(slowest, weight * float(routes.share[in_tier].sum()) / capacity) if capacity else slowest
    return 1 / slowest if slowest else float("inf")
