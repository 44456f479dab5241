"""The links that the pairs of a phase cross on a cluster, pairs with a switch included."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from clustersim.collectives.model import NETWORK, Ints, Phase
from clustersim.errors import InputError
from clustersim.topology.model import Routes, Topology
from clustersim.topology.rows import divide, ones


def split(phase: Phase) -> tuple[Phase, ...]:
    """Return the pairs of GPUs of a phase, and its pairs with switches, as phases; one that would be empty is left out."""
    switched = np.minimum(phase.source, phase.destination) < 0
    cuts = np.flatnonzero(switched[1:] != switched[:-1]) + 1
    if len(cuts) > 1:
        return split(_taken(phase, np.argsort(switched, kind="stable")))
    ends = [0, *cuts.tolist(), len(switched)]
    return tuple(_taken(phase, slice(*part)) for part in pairwise(ends))


def _taken(phase: Phase, pairs: Ints | slice) -> Phase:
    return Phase(phase.rounds, phase.source[pairs], phase.destination[pairs], phase.fraction[pairs])


def route(topology: Topology, ranks: Ints, phase: Phase) -> Routes:
    """Return the routes of all pairs of a phase that is `split`, in every group, group after group.

    ranks: GPUs (groups, n) by position. A pair with the switch inside a node crosses the GPU's own link to it, one with the
    switches of the network the link of its NIC; what lies above a leaf carries sums and copies, no more than a NIC's worth.
    Raises InputError when the cluster has no NICs for a pair that needs them.
    """
    if len(phase.source) == 0 or min(phase.source[0], phase.destination[0]) >= 0:
        return topology.route(ranks[:, phase.source].ravel(), ranks[:, phase.destination].ravel())
    links = _switched(topology, ranks, phase).ravel()
    return Routes(np.arange(len(links) + 1), links, ones(len(links)), topology.latency[links])


def _switched(topology: Topology, ranks: Ints, phase: Phase) -> Ints:
    """Return the one link between a GPU and a switch; its tier is that of the GPU's or the NIC's, up or down."""
    gpu = ranks[:, np.maximum(phase.source, phase.destination)]
    upwards, network = phase.source >= 0, np.minimum(phase.source, phase.destination) <= NETWORK
    first = {tier.name.replace("pcie", "nvlink"): tier.first for tier in topology.tiers}
    inside = np.where(upwards, first["nvlink-up"], first["nvlink-down"])
    if not network.any():
        return inside + gpu
    if "nic-up" not in first:
        raise InputError("the switches of a network need NICs; this cluster has none, add a fabric")
    node, local = divide(gpu, topology.gpus_per_node)
    port = node * max(topology.node.nics, 1) + np.asarray(topology.node.nic_of)[local]
    outside = np.where(upwards, first["nic-up"], first["nic-down"])
    return np.where(network, outside + port, inside + gpu)


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
