"""The bytes that the phases of a collective put on links, for many groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, divide, ones
from clustersim.collectives.model import NETWORK, Exchange, Phase
from clustersim.errors import InputError
from clustersim.topology.model import Routes, Topology

Pins = tuple[Ints, Ints]
_MOST = 1 << 21
"""Links of all ways up to which an exchange is routed pair by pair: some 200 MB."""


class TooManyWaysError(InputError):
    """An exchange has more different ways than can be laid one by one."""


class Loads(NamedTuple):
    """What one phase puts on links, in every group.

    latency: seconds of the slowest pair, by group. The arrays `group`, `link`, `weight` list, sorted by group, the bytes over a
    link for each byte of the collective's size. pins, which `find` finds: two lists of (link, pin), so that all bytes over a
    link also cross one of its pins; the narrowest links of the way, the first and the last of them. A pin beyond the last link
    stands for more than fit through the link.
    """

    latency: Floats
    group: Ints
    link: Ints
    weight: Floats
    find: Callable[[], tuple[Pins, Pins]]

    @property
    def pins(self) -> tuple[Pins, Pins]:
        """The first and the last pins, (link, pin) each."""
        return self.find()


def loads(topology: Topology, ranks: Ints, phase: Phase | Exchange) -> Loads:
    """Return the loads of a phase; ranks: GPUs (groups, n) by position.

    Raises InputError when the cluster has no NICs for a pair that needs them, TooManyWaysError for an exchange.
    """
    if isinstance(phase, Phase):
        return _pairs(topology, ranks, phase)
    if ranks.size * ranks.shape[1] * width(topology) <= _MOST:
        return _pairs(topology, ranks, phase.pairs())
    from clustersim.collectives.all_to_all import exchanged

    return exchanged(topology, ranks, phase)


def width(topology: Topology) -> int:
    """Return how many links a long way has about, all its paths together; no fewer than 8."""
    return max(8, len(topology.route(np.zeros(1, np.int64), np.full(1, topology.gpus - 1)).links))


def _pairs(topology: Topology, ranks: Ints, phase: Phase) -> Loads:
    parts = [_laid(topology, len(ranks), route(topology, ranks, part), part.fraction) for part in split(phase)]
    if len(parts) == 1:
        return parts[0]
    latency = np.max([part.latency for part in parts], axis=0)
    link, weight = (np.concatenate([part[i] for part in parts]) for i in (2, 3))
    find = cache(partial(_together, parts))
    if len(ranks) == 1:
        return Loads(latency, np.broadcast_to(0, len(link)), link, weight, find)  # which takes no memory
    group = np.concatenate([part.group for part in parts])
    order = np.argsort(group, kind="stable")
    return Loads(latency, group[order], link[order], weight[order], find)


def _laid(topology: Topology, groups: int, routes: Routes, fraction: Floats) -> Loads:
    """Return the loads of the pairs of each group on their routes."""
    hops = len(fraction)
    weight = np.repeat(np.tile(fraction.astype(float, copy=False), groups), np.diff(routes.start))
    weight *= routes.share
    each = np.diff(routes.start[:: max(hops, 1)])
    group: Ints = np.repeat(np.arange(groups), each) if groups > 1 else np.broadcast_to(0, len(weight))
    return Loads(
        routes.latency.reshape(groups, hops).max(axis=1),
        group,
        routes.links,
        weight,
        cache(partial(_pins, topology, routes)),
    )


def _together(parts: Sequence[Loads]) -> tuple[Pins, Pins]:
    """Return the pins of all parts."""
    pins = [part.pins for part in parts]
    a, b, c, d = (np.concatenate([p[side][i] for p in pins]) for side in (0, 1) for i in (0, 1))
    return (a, b), (c, d)


def _pins(topology: Topology, routes: Routes) -> tuple[Pins, Pins]:
    first, last = narrowest(topology.capacity[routes.links], routes)
    lengths = np.diff(routes.start)
    return (routes.links, np.repeat(first, lengths)), (routes.links, np.repeat(last, lengths))


def narrowest(capacity: Floats, routes: Routes) -> tuple[Ints, Ints]:
    """Return the first and the last link of least capacity on each route (0 where a route is empty)."""
    lengths = np.diff(routes.start)
    first, last = np.zeros((2, len(lengths)), np.int64)
    full = np.flatnonzero(lengths)
    if len(full):
        least = np.repeat(np.minimum.reduceat(capacity, routes.start[full]), lengths[full])
        narrow = np.flatnonzero(capacity == least)
        begins = np.searchsorted(narrow, routes.start[full])
        first[full] = routes.links[narrow[begins]]
        last[full] = routes.links[narrow[np.append(begins[1:], len(narrow)) - 1]]
    return first, last


def bounds(topology: Topology, groups: int, group: Ints, link: Ints, weight: Floats) -> Floats:
    """Return the idle rate of each group in bytes/s: the link with the least capacity for its load decides."""
    links = len(topology.capacity)
    if groups == 1:
        total = np.bincount(link, weight, links)
        used = total > 0
        return np.array([(topology.capacity[used] / total[used]).min()])
    key, inverse = np.unique(group * links + link, return_inverse=True)
    load = np.bincount(inverse, weight)
    bound = np.full(groups, np.inf)
    np.minimum.at(bound, key // links, topology.capacity[key % links] / load)
    return bound


class Idle(NamedTuple):
    """A phase on a fabric without other traffic, by group: it takes latency + S / bound on S bytes of the collective.

    latency: seconds, rounds times the slowest pair. bound: bytes/s of the collective's size.
    """

    latency: Floats
    bound: Floats
    loads: Loads


def idle(topology: Topology, ranks: Ints, phase: Phase | Exchange) -> Idle:
    """Return what a phase takes in each group of GPUs `ranks` (groups, n) on its own; raises as `loads` does."""
    found = loads(topology, ranks, phase)
    bound = bounds(topology, len(ranks), found.group, found.link, found.weight)
    return Idle(phase.rounds * found.latency, bound, found)


def idle_rates(topology: Topology, ranks: Ints, phases: Sequence[Phase | Exchange]) -> Floats:
    """Return bytes/s of the collective's size that the links give each group of GPUs `ranks` (groups, n) on its own."""
    seconds = np.zeros(len(ranks))
    for phase in phases:
        seconds += 1 / idle(topology, ranks, phase).bound
    with np.errstate(divide="ignore"):
        return 1 / seconds


# The links that the pairs of a phase cross on a cluster, pairs with a switch included.


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
