"""The links that the pairs of a phase cross on a cluster, pairs with a switch included."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clustersim.collectives.model import NETWORK, Ints, Phase
from clustersim.errors import InputError
from clustersim.topology.model import Routes, Topology

Mask = NDArray[np.bool_]


def route(topology: Topology, ranks: Ints, phase: Phase) -> Routes:
    """Return the routes of all pairs of a phase in every group, group after group.

    ranks: GPUs (groups, n) by position. A pair with the switch inside a node crosses the GPU's own link to it, one with the
    switches of the network the link of its NIC; what lies above a leaf carries sums and copies, no more than a NIC's worth.
    Raises InputError when the cluster has no NICs for a pair that needs them.
    """
    low = np.minimum(phase.source, phase.destination)
    if len(low) == 0 or low.min() >= 0:
        return topology.route(ranks[:, phase.source].ravel(), ranks[:, phase.destination].ravel())
    groups = len(ranks)
    switched = np.tile(low < 0, groups)
    source, destination = (_gpus(ranks, ends) for ends in (phase.source, phase.destination))
    plain = topology.route(source[~switched], destination[~switched])
    links = _switched(topology, source[switched], destination[switched], np.tile(low, groups)[switched] <= NETWORK)
    return _woven(topology, switched, plain, links)


def _gpus(ranks: Ints, ends: Ints) -> Ints:
    """Return the GPUs at one end of every pair, -1 for a switch."""
    return np.where(ends >= 0, ranks[:, np.maximum(ends, 0)], -1).ravel()


def _switched(topology: Topology, source: Ints, destination: Ints, network: Mask) -> Ints:
    """Return the one link between a GPU and a switch; its tier is that of the GPU's or the NIC's, up or down."""
    gpu, upwards = np.maximum(source, destination), source >= 0
    first = {tier.name.replace("pcie", "nvlink"): tier.first for tier in topology.tiers}
    if network.any() and "nic-up" not in first:
        raise InputError("the switches of a network need NICs; this cluster has none, add a fabric")
    node, local = np.divmod(gpu, topology.gpus_per_node)
    port = node * max(topology.node.nics, 1) + np.asarray(topology.node.nic_of)[local]
    inside = np.where(upwards, first["nvlink-up"], first["nvlink-down"]) + gpu
    outside = np.where(upwards, first.get("nic-up", 0), first.get("nic-down", 0)) + port
    return np.where(network, outside, inside)


def _woven(topology: Topology, switched: Mask, plain: Routes, links: Ints) -> Routes:
    """Return the routes of all pairs in their order, given those of the others and the links of the switched."""
    lengths = np.ones(len(switched), np.int64)
    lengths[~switched] = np.diff(plain.start)
    start = np.concatenate(([0], np.cumsum(lengths)))
    one = start[:-1][switched]
    others = np.ones(start[-1], bool)
    others[one] = False
    crossed, share, latency = np.empty(len(others), np.int64), np.ones(len(others)), np.empty(len(switched))
    crossed[one], crossed[others], share[others] = links, plain.links, plain.share
    latency[switched], latency[~switched] = topology.latency[links], plain.latency
    return Routes(start, crossed, share, latency)


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
