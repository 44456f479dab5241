"""The bytes that a phase of a collective puts on links, pair by pair, for many groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct, distinct_rows, divide, offsets, ones, summed
from clustersim.collectives.model import NETWORK, Phase
from clustersim.errors import InputError
from clustersim.topology.model import Routes, Topology

Feeders = tuple[Ints, Ints]
"""Two arrays of equal length: links, and for each of them a link that all its bytes also cross."""
_FEW = 1 << 13
"""Number of GPUs below which routing all pairs is faster than searching for groups with the same layout."""
_KINDS = 32
"""Largest number of distinct group layouts for which the loads are computed once per layout."""


class TooManyRoutesError(InputError):
    """The pairs of an AllPairs have more distinct routes than can be loaded one by one."""


class PhaseLoads(NamedTuple):
    """Loads of one phase on links, in every group. On an idle fabric S bytes take latency + S / bound seconds."""

    latency: Floats
    """Seconds of each group: rounds times the latency of the slowest pair (groups,)."""
    bound: Floats
    """Bytes/s of the collective's size of each group, set by the link with the least capacity per load (groups,)."""
    group: Ints
    """Group of each load, ascending (loads,)."""
    link: Ints
    """Link of each load (loads,)."""
    weight: Floats
    """Bytes over the link per byte of the collective's size S (loads,)."""
    find: Callable[[], tuple[Feeders, Feeders]]
    """Function that computes `feeders`, called on first use."""

    @property
    def feeders(self) -> tuple[Feeders, Feeders]:
        """Links and feeders, for sources and for destinations: all bytes over a link also cross one of its feeders.

        A feeder is the narrowest link of a route, the first or the last one. A feeder number beyond the last link means that the
        feeders together can fill the link.
        """
        return self.find()


def bounds(topology: Topology, groups: int, group: Ints, link: Ints, weight: Floats) -> Floats:
    """Return the idle rate of each group in bytes/s of the collective's size, set by the link with least capacity per load."""
    links = len(topology.capacity)
    if groups == 1:
        total = np.bincount(link, weight, links)
        used = total > 0
        return np.array([(topology.capacity[used] / total[used]).min()])
    owner = np.zeros(links, np.int64)
    owner[link] = group
    several = np.zeros(links, bool)  # groups that share links, where the sum over a link is not one group's sum
    several[link[owner[link] != group]] = True
    bound, shared = np.full(groups, np.inf), several[link]
    own = np.flatnonzero(~shared)
    load = np.bincount(link, weight, links)
    np.minimum.at(bound, group[own], topology.capacity[link[own]] / load[link[own]])
    if len(own) < len(link):
        key, inverse = np.unique(group[shared] * links + link[shared], return_inverse=True)
        load = np.bincount(inverse, weight[shared])
        np.minimum.at(bound, key // links, topology.capacity[key % links] / load)
    return bound


def pair_latency(topology: Topology, ranks: Ints, phase: Phase) -> Floats:
    """Return the `latency` of PhaseLoads for each group, in seconds, without computing loads."""
    found = np.zeros(len(ranks))
    for part in split(phase):
        if len(part.source) == 0 or min(part.source[0], part.destination[0]) >= 0:
            delay = topology.latencies(ranks[:, part.source].ravel(), ranks[:, part.destination].ravel())
        else:
            delay = topology.latency[_switched(topology, ranks, part)]
        np.maximum(found, phase.rounds * delay.reshape(len(ranks), -1).max(axis=1), out=found)
    return found


def width(topology: Topology) -> int:
    """Return the approximate number of links of a long route, all its parallel paths together; at least 8."""
    return max(8, len(topology.route(np.zeros(1, np.int64), np.full(1, topology.gpus - 1)).links))


def pair_loads(topology: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads of the pairs of a phase in the groups `ranks` (groups, n), the GPU of each position.

    Raises InputError if a pair needs NICs that the cluster does not have.
    """
    found = unbounded_loads(topology, ranks, phase)
    return found._replace(bound=bounds(topology, len(ranks), *found[2:5]))


def unbounded_loads(topology: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads of `pair_loads` with an infinite `bound`, which is faster."""
    parts = [_loaded(topology, len(ranks), route(topology, ranks, part), part) for part in split(phase)]
    if len(parts) == 1:
        return parts[0]
    latency = np.max([part.latency for part in parts], axis=0)
    group, link, weight = (np.concatenate([part[i] for part in parts]) for i in (2, 3, 4))
    if len(ranks) == 1:
        group = np.broadcast_to(0, len(link))  # a broadcast view needs no memory
    else:
        order = np.argsort(group, kind="stable")
        group, link, weight = group[order], link[order], weight[order]
    bound = np.full(len(ranks), np.inf)
    return PhaseLoads(latency, bound, group, link, weight, cache(partial(_together, parts)))


def node_loads(near: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads of a phase on links inside nodes, computed once for each layout of groups.

    `near` is a topology with the links inside nodes only. Groups with the same layout on other nodes load the same links there.
    """
    steps = near.same_in_next_node()
    if steps is None or ranks.size < _FEW or len(ranks) < 2:
        return pair_loads(near, ranks, phase)
    node = near.numbering.node_of(ranks[:, 0])
    firsts, which = distinct_rows(ranks - near.numbering.first[node][:, np.newaxis])
    if len(firsts) > _KINDS:
        return pair_loads(near, ranks, phase)
    kinds = [_by_link(pair_loads(near, ranks[[first]], phase)) for first in firsts]
    moved = node - node[firsts][which]
    lengths = np.array([len(one.link) for one in kinds])[which]
    start = offsets(lengths)
    link, weight = np.empty(start[-1], np.int64), np.empty(start[-1])
    for kind, one in enumerate(kinds):
        own = np.flatnonzero(which == kind)
        places = start[own][:, np.newaxis] + np.arange(len(one.link))
        link[places] = one.link + moved[own][:, np.newaxis] * steps[one.link]
        weight[places] = one.weight
    group: Ints = np.repeat(np.arange(len(ranks)), lengths)
    latency, bound = (np.concatenate([one[i] for one in kinds])[which] for i in (0, 1))
    shifts = [moved[which == kind] for kind in range(len(kinds))]
    return PhaseLoads(latency, bound, group, link, weight, cache(partial(_moved, kinds, shifts, steps)))


def _by_link(loads: PhaseLoads) -> PhaseLoads:
    """Return the loads of one group with the entries of each link summed into one."""
    link, inverse = np.unique(loads.link, return_inverse=True)
    return loads._replace(
        group=np.broadcast_to(0, len(link)), link=link, weight=summed(inverse, loads.weight, len(link))
    )


def bytes_on_links(topology: Topology, ranks: Ints, phase: Phase, size: Floats) -> Floats:
    """Return the bytes that all groups together put on every link (links,). `size` is the bytes of each group's collective.

    Links inside nodes are computed as in `node_loads`, links between switches once for each pair of GPU classes.
    """
    near, classes = topology.up_to_nics(), topology.endpoint_classes()
    links = len(topology.capacity)
    if near is None or classes.unknown.any():
        whole = unbounded_loads(topology, ranks, phase)
        return summed(whole.link, whole.weight * size[whole.group], links)
    own = node_loads(near, ranks, phase)
    total = summed(own.link, own.weight * size[own.group], links)
    pairs = np.flatnonzero(np.minimum(phase.source, phase.destination) >= 0)
    source, destination = ranks[:, phase.source[pairs]], ranks[:, phase.destination[pairs]]
    away = topology.numbering.node_of(source) != topology.numbering.node_of(destination)
    sent = (phase.fraction[pairs] * size[:, np.newaxis])[away]
    source, destination = source[away], destination[away]
    kind = classes.source[source, classes.rail[destination]] * (int(classes.destination.max()) + 1)
    _, first, of = np.unique(kind + classes.destination[destination], return_index=True, return_inverse=True)
    routes = topology.route(source[first], destination[first])
    weight = np.repeat(summed(of, sent, len(first)), np.diff(routes.start)) * routes.share
    between = ~(classes.leaves | classes.enters)[routes.links]
    return total + summed(routes.links[between], weight[between], links)


def _moved(kinds: Sequence[PhaseLoads], shifts: Sequence[Ints], steps: Ints) -> tuple[Feeders, Feeders]:
    """Return the feeders of all groups. `kinds` are the loads of each layout, `shifts` the node offsets of its groups, and
    `steps` the links per node."""
    found: list[Feeders] = []
    for side in (0, 1):
        parts: list[tuple[Ints, Ints]] = []
        for one, shift in zip(kinds, shifts, strict=True):
            pairs = divide(distinct(one.feeders[side][0] * len(steps) + one.feeders[side][1]), len(steps))
            link, feeder = ((shift[:, np.newaxis] * steps[own] + own).ravel() for own in pairs)
            parts.append((link, feeder))
        link, feeder = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        found.append((link, feeder))
    return found[0], found[1]


def _loaded(topology: Topology, groups: int, routes: Routes, phase: Phase) -> PhaseLoads:
    """Return the loads of each group's pairs on their routes, with an infinite `bound`."""
    hops = len(phase.fraction)
    weight = np.repeat(np.tile(phase.fraction.astype(float, copy=False), groups), np.diff(routes.start))
    weight *= routes.share
    each = np.diff(routes.start[:: max(hops, 1)])
    group: Ints = np.repeat(np.arange(groups), each) if groups > 1 else np.broadcast_to(0, len(weight))
    return PhaseLoads(
        phase.rounds * routes.latency.reshape(groups, hops).max(axis=1),
        np.full(groups, np.inf),
        group,
        routes.links,
        weight,
        cache(partial(_narrowest_links, topology.capacity, routes)),
    )


def _together(parts: Sequence[PhaseLoads]) -> tuple[Feeders, Feeders]:
    """Return the feeders of several PhaseLoads, concatenated."""
    feeders = [part.feeders for part in parts]
    a, b, c, d = (np.concatenate([p[side][i] for p in feeders]) for side in (0, 1) for i in (0, 1))
    return (a, b), (c, d)


def _narrowest_links(capacity: Floats, routes: Routes) -> tuple[Feeders, Feeders]:
    """Return (links of routes, each route's narrowest link) twice: with the first of equally narrow links, and the last."""
    first, last = narrowest(capacity[routes.links], routes)
    lengths = np.diff(routes.start)
    return (routes.links, np.repeat(first, lengths)), (routes.links, np.repeat(last, lengths))


def narrowest(capacity: Floats, routes: Routes) -> tuple[Ints, Ints]:
    """Return the first and the last link of least capacity on each route; 0 for a route without links."""
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


def split(phase: Phase) -> tuple[Phase, ...]:
    """Return a phase as up to two phases: its pairs of GPUs, and its pairs of a GPU and a switch. An empty one is left out."""
    switched = np.minimum(phase.source, phase.destination) < 0
    cuts = np.flatnonzero(switched[1:] != switched[:-1]) + 1
    if len(cuts) > 1:
        return split(_taken(phase, np.argsort(switched, kind="stable")))
    ends = [0, *cuts.tolist(), len(switched)]
    return tuple(_taken(phase, slice(*part)) for part in pairwise(ends))


def _taken(phase: Phase, pairs: Ints | slice) -> Phase:
    """Return the phase with only some of its pairs."""
    return Phase(phase.rounds, phase.source[pairs], phase.destination[pairs], phase.fraction[pairs])


def route(topology: Topology, ranks: Ints, phase: Phase) -> Routes:
    """Return the routes of all pairs of a phase from `split`, group after group. `ranks` (groups, n) are the GPUs by position.

    A pair with a switch inside a node crosses the GPU's link to that switch. A pair with a network switch crosses the link of
    the GPU's NIC; links above a leaf carry sums and copies, at most one NIC's bytes. Raises InputError if a pair needs NICs that
    the cluster does not have.
    """
    if len(phase.source) == 0 or min(phase.source[0], phase.destination[0]) >= 0:
        return topology.route(ranks[:, phase.source].ravel(), ranks[:, phase.destination].ravel())
    links = _switched(topology, ranks, phase).ravel()
    return Routes(np.arange(len(links) + 1), links, ones(len(links)), topology.latency[links])


def _switched(topology: Topology, ranks: Ints, phase: Phase) -> Ints:
    """Return the link between the GPU and the switch of each pair: in the GPU's or the NIC's tier, up or down."""
    gpu = ranks[:, np.maximum(phase.source, phase.destination)]
    upwards, network = phase.source >= 0, np.minimum(phase.source, phase.destination) <= NETWORK
    first = {tier.name.replace("pcie", "nvlink"): tier.first for tier in topology.tiers}
    inside = np.where(upwards, first["nvlink-up"], first["nvlink-down"])
    if not network.any():
        return inside + gpu
    if "nic-up" not in first:
        raise InputError("the switches of a network need NICs; this cluster has none, add a fabric")
    outside = np.where(upwards, first["nic-up"], first["nic-down"])
    return np.where(network, outside + topology.numbering.nic[gpu], inside + gpu)
