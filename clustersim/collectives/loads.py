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
from clustersim.topology.routing import concatenated

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
    """Seconds of all rounds for each group: number of rounds times the latency of the slowest pair (groups,)."""
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
        """Feeders of links, one pair of arrays near the sources and one near the destinations.

        All bytes over a link also cross one of its feeders. A feeder is the narrowest link of a route; among equally narrow links
        the first pair names the one nearest to the source, the second the one nearest to the destination. A feeder number beyond
        the last link means that the feeders together can fill the link.
        """
        return self.find()


def bounds(topology: Topology, groups: int, group: Ints, link: Ints, weight: Floats) -> Floats:
    """Return the idle rate of each group in bytes/s of the collective's size (groups,): the least capacity / load of its links.

    `groups` is the number of groups; `group`, `link` and `weight` (loads,) are the columns of PhaseLoads. One of several groups
    without loads has inf; a single group must have loads.
    """
    links = len(topology.capacity)
    if groups == 1:
        total = np.bincount(link, weight, links)
        used = total > 0
        return np.array([(topology.capacity[used] / total[used]).min()])
    last_group = np.zeros(links, np.int64)
    last_group[link] = group
    contended = np.zeros(links, bool)  # groups that share links, where the sum over a link is not one group's sum
    contended[link[last_group[link] != group]] = True
    bound, shared = np.full(groups, np.inf), contended[link]
    unshared = np.flatnonzero(~shared)
    load = np.bincount(link, weight, links)
    np.minimum.at(bound, group[unshared], topology.capacity[link[unshared]] / load[link[unshared]])
    if len(unshared) < len(link):
        key, inverse = np.unique(group[shared] * links + link[shared], return_inverse=True)
        load = np.bincount(inverse, weight[shared])
        np.minimum.at(bound, key // links, topology.capacity[key % links] / load)
    return bound


def pair_latency(topology: Topology, ranks: Ints, phase: Phase) -> Floats:
    """Return for each group the rounds of the phase times the latency of the slowest pair, in seconds (groups,).

    `ranks` (groups, n) is the GPU of each position. No loads are computed. Raises InputError if a pair needs missing NICs.
    """
    latency = np.zeros(len(ranks))
    for part in split(phase):
        if len(part.source) == 0 or min(part.source[0], part.destination[0]) >= 0:
            delay = topology.latencies(ranks[:, part.source].ravel(), ranks[:, part.destination].ravel())
        else:
            delay = topology.latency[_switched(topology, ranks, part)]
        np.maximum(latency, phase.rounds * delay.reshape(len(ranks), -1).max(axis=1), out=latency)
    return latency


def width(topology: Topology) -> int:
    """Return the approximate number of links of a long route, all its parallel paths together; at least 8."""
    return max(8, len(topology.route(np.zeros(1, np.int64), np.full(1, topology.gpus - 1)).links))


def pair_loads(topology: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads of the pairs of a phase in the groups `ranks` (groups, n), the GPU of each position.

    Raises InputError if a pair needs NICs that the cluster does not have.
    """
    unbounded = unbounded_loads(topology, ranks, phase)
    return unbounded._replace(bound=bounds(topology, len(ranks), *unbounded[2:5]))


def unbounded_loads(topology: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads as `pair_loads` does, but with infinity as `bound` of each group; this is faster."""
    groups, parts = len(ranks), split(phase)
    routed = [route(topology, ranks, part) for part in parts]
    latency = phase.rounds * np.max([part.latency.reshape(groups, -1).max(axis=1) for part in routed], axis=0)
    routes = concatenated(routed)
    lengths, link, bound = np.diff(routes.start), routes.links, np.full(groups, np.inf)
    fractions = [np.tile(part.fraction.astype(float, copy=False), groups) for part in parts]
    weight = np.repeat(np.concatenate(fractions), lengths) * routes.share
    group: Ints = np.broadcast_to(0, len(weight))  # a broadcast view needs no memory
    if groups > 1:
        group_of_route = np.concatenate([np.repeat(np.arange(groups), len(part.fraction)) for part in parts])
        group = np.repeat(group_of_route, lengths)
    if groups > 1 and len(parts) > 1:
        order = np.argsort(group, kind="stable")
        group, link, weight = group[order], link[order], weight[order]
    find = cache(partial(_narrowest_links, topology.capacity, routes))
    return PhaseLoads(latency, bound, group, link, weight, find)


def node_loads(near: Topology, ranks: Ints, phase: Phase) -> PhaseLoads:
    """Return the loads of a phase in the groups `ranks` (groups, n), computed once for each layout of groups.

    `near` is a topology without links between switches (`Topology.up_to_nics`). Groups with the same layout on other nodes load
    the same links there.
    """
    steps = near.same_in_next_node()
    if steps is None or ranks.size < _FEW or len(ranks) < 2:
        return pair_loads(near, ranks, phase)
    node = near.numbering.node_of(ranks[:, 0])
    firsts, layout_of = distinct_rows(ranks - near.numbering.first[node][:, np.newaxis])
    if len(firsts) > _KINDS:
        return pair_loads(near, ranks, phase)
    layouts = [_by_link(pair_loads(near, ranks[[first]], phase)) for first in firsts]
    shift = node - node[firsts][layout_of]
    lengths = np.array([len(loads.link) for loads in layouts])[layout_of]
    start = offsets(lengths)
    link, weight = np.empty(start[-1], np.int64), np.empty(start[-1])
    for layout, loads in enumerate(layouts):
        members = np.flatnonzero(layout_of == layout)
        places = start[members][:, np.newaxis] + np.arange(len(loads.link))
        link[places] = loads.link + shift[members][:, np.newaxis] * steps[loads.link]
        weight[places] = loads.weight
    group: Ints = np.repeat(np.arange(len(ranks)), lengths)
    latency, bound = (np.concatenate([loads[i] for loads in layouts])[layout_of] for i in (0, 1))
    shifts = [shift[layout_of == layout] for layout in range(len(layouts))]
    return PhaseLoads(latency, bound, group, link, weight, cache(partial(_moved, layouts, shifts, steps)))


def _by_link(loads: PhaseLoads) -> PhaseLoads:
    """Return the loads of one group with the entries of each link summed into one."""
    link, inverse = np.unique(loads.link, return_inverse=True)
    return loads._replace(
        group=np.broadcast_to(0, len(link)), link=link, weight=summed(inverse, loads.weight, len(link))
    )


def bytes_on_links(topology: Topology, ranks: Ints, phase: Phase, size: Floats) -> Floats:
    """Return the bytes that all groups together put on every link (links,) in one phase.

    `ranks` (groups, n) is the GPU of each position, `size` the bytes of each group's collective (groups,).

    Links inside nodes are computed as in `node_loads`, links between switches once for each pair of GPU classes.
    """
    near, classes = topology.up_to_nics(), topology.endpoint_classes()
    links = len(topology.capacity)
    if near is None or classes.unknown.any():
        loads = unbounded_loads(topology, ranks, phase)
        return summed(loads.link, loads.weight * size[loads.group], links)
    inside = node_loads(near, ranks, phase)
    total = summed(inside.link, inside.weight * size[inside.group], links)
    pairs = np.flatnonzero(np.minimum(phase.source, phase.destination) >= 0)
    source, destination = ranks[:, phase.source[pairs]], ranks[:, phase.destination[pairs]]
    apart = topology.numbering.node_of(source) != topology.numbering.node_of(destination)
    sent = (phase.fraction[pairs] * size[:, np.newaxis])[apart]
    source, destination = source[apart], destination[apart]
    kind = classes.source[source, classes.rail[destination]] * (int(classes.destination.max()) + 1)
    _, first, pair_class = np.unique(kind + classes.destination[destination], return_index=True, return_inverse=True)
    routes = topology.route(source[first], destination[first])
    weight = np.repeat(summed(pair_class, sent, len(first)), np.diff(routes.start)) * routes.share
    is_between = ~(classes.leaves | classes.enters)[routes.links]
    return total + summed(routes.links[is_between], weight[is_between], links)


def _moved(layouts: Sequence[PhaseLoads], shifts: Sequence[Ints], steps: Ints) -> tuple[Feeders, Feeders]:
    """Return the feeders of all groups, near sources and near destinations.

    `layouts` are the loads of the first group of each layout, `shifts` the number of nodes by which each of its groups is
    shifted. `steps` (links,) is the distance of each link from the same link of the next node.
    """
    sides: list[Feeders] = []
    for side in (0, 1):
        parts: list[tuple[Ints, Ints]] = []
        for loads, shift in zip(layouts, shifts, strict=True):
            pairs = divide(distinct(loads.feeders[side][0] * len(steps) + loads.feeders[side][1]), len(steps))
            link, feeder = ((shift[:, np.newaxis] * steps[column] + column).ravel() for column in pairs)
            parts.append((link, feeder))
        link, feeder = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        sides.append((link, feeder))
    return sides[0], sides[1]


def _narrowest_links(capacity: Floats, routes: Routes) -> tuple[Feeders, Feeders]:
    """Return two pairs of arrays (link, narrowest link of its route), with an entry for each link of each route.

    Where several links are narrowest, the first pair names the first of them, the second pair the last. `capacity` (links,) is
    in bytes/s.
    """
    crossed, lengths = capacity[routes.links], np.diff(routes.start)
    start, lengths = routes.start[:-1][lengths > 0], lengths[lengths > 0]
    if not len(start):
        return (routes.links, routes.links), (routes.links, routes.links)
    narrow_at = np.flatnonzero(crossed == np.repeat(np.minimum.reduceat(crossed, start), lengths))
    first = np.searchsorted(narrow_at, start)
    last = np.append(first[1:], len(narrow_at)) - 1
    near_source, near_destination = (np.repeat(routes.links[narrow_at[at]], lengths) for at in (first, last))
    return (routes.links, near_source), (routes.links, near_destination)


def split(phase: Phase) -> tuple[Phase, ...]:
    """Return the phase in two parts: pairs of GPUs, and pairs of a GPU and a switch. Return one part if the other is empty."""
    switched = np.minimum(phase.source, phase.destination) < 0
    cuts = np.flatnonzero(switched[1:] != switched[:-1]) + 1
    if len(cuts) > 1:
        return split(_only(phase, np.argsort(switched, kind="stable")))
    ends = [0, *cuts.tolist(), len(switched)]
    return tuple(_only(phase, slice(*part)) for part in pairwise(ends))


def _only(phase: Phase, pairs: Ints | slice) -> Phase:
    """Return the phase with only the `pairs`, selected by indices or a slice."""
    return Phase(phase.rounds, phase.source[pairs], phase.destination[pairs], phase.fraction[pairs])


def route(topology: Topology, ranks: Ints, phase: Phase) -> Routes:
    """Return the routes of all pairs of a phase, group after group. `ranks` (groups, n) is the GPU of each position.

    The phase is one part of `split`: it has only pairs of GPUs or only pairs of a GPU and a switch.

    A pair with a switch inside a node crosses the GPU's link to that switch. A pair with a network switch crosses the link of
    the GPU's NIC; links above a leaf carry sums and copies, at most one NIC's bytes. Raises InputError if a pair needs NICs that
    the cluster does not have.
    """
    if len(phase.source) == 0 or min(phase.source[0], phase.destination[0]) >= 0:
        return topology.route(ranks[:, phase.source].ravel(), ranks[:, phase.destination].ravel())
    links = _switched(topology, ranks, phase).ravel()
    return Routes(np.arange(len(links) + 1), links, ones(len(links)), topology.latency[links])


def _switched(topology: Topology, ranks: Ints, phase: Phase) -> Ints:
    """Return the GPU's or NIC's link that each pair with a switch crosses (groups, pairs). Raises InputError without NICs."""
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
