"""The loads of a phase in which all ranks of a group send to all others, without a route for each of its n² pairs.

Pairs inside a node are routed one by one. What leaves a node is three parts, each summed up on its own: from every GPU to its
NIC (or that of the receiver's rail, by PXN), from every NIC to its GPU, and between NICs from class to class (`Classes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct
from clustersim.collectives.loads import Feeders, PhaseLoads, TooManyRoutesError, bounds, width
from clustersim.collectives.model import AllPairs
from clustersim.topology.hops import EndpointClasses, RouteSegment
from clustersim.topology.model import Routes, Topology

MANY = 1 << 20
"""Pairs of classes from which on routes between NICs are loaded segment by segment, where they fall apart into such."""


def all_pairs_loads(topology: Topology, ranks: Ints, phase: AllPairs) -> PhaseLoads:
    """Return the loads of such a phase in groups of GPUs `ranks` (groups, n).

    Raises TooManyRoutesError when the routing tells too many pairs apart.
    """
    symmetry = topology.endpoint_classes()
    totals = LoadTotals(topology, symmetry, len(ranks))
    senders, receivers = (_endpoints(topology, ranks, weight) for weight in (phase.sent, phase.received))
    unknown_senders, unknown_receivers = symmetry.unknown[senders.gpu], symmetry.unknown[receivers.gpu]
    _inside(totals, senders, receivers)
    _apart(totals, senders.only(unknown_senders), receivers)
    _apart(totals, senders.only(~unknown_senders), receivers.only(unknown_receivers))
    _between_nodes(totals, symmetry, senders.only(~unknown_senders), receivers.only(~unknown_receivers))
    return totals.phase_loads(phase.rounds)


def _endpoints(topology: Topology, ranks: Ints, weight: Floats) -> Endpoints:
    groups, n = ranks.shape
    gpu = ranks.ravel()
    found = Endpoints(np.repeat(np.arange(groups), n), topology.numbering.node_of(gpu), gpu, np.tile(weight, groups))
    return found.only(found.weight > 0).ordered()


def _inside(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Load the pairs of one node."""
    nodes = totals.topology.nodes
    for i, j in crossed(*(endpoints.key * nodes + endpoints.node for endpoints in (senders, receivers))):
        other = senders.gpu[i] != receivers.gpu[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _apart(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Load the pairs of different nodes one by one."""
    totals.check(int(runs(receivers.key, senders.key)[1].sum()))
    for i, j in crossed(senders.key, receivers.key):
        other = senders.node[i] != receivers.node[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _load(totals: LoadTotals, source: Endpoints, destination: Endpoints) -> None:
    routes = totals.topology.route(source.gpu, destination.gpu)
    totals.note_latency(source.key, routes.latency)
    totals.add(routes, source.key, source.weight * destination.weight, nic_range=totals.nic_ranges_of(routes))


def _between_nodes(totals: LoadTotals, symmetry: EndpointClasses, senders: Endpoints, receivers: Endpoints) -> None:
    """Load what goes from node to node."""
    rails, nodes = symmetry.source.shape[1], totals.topology.nodes
    rail = np.tile(np.arange(rails), len(senders.gpu))
    out = senders.only(np.repeat(np.arange(len(senders.gpu)), rails))
    out = out._replace(key=out.key * rails + rail)
    into = receivers._replace(key=receivers.key * rails + symmetry.rail[receivers.gpu]).ordered()
    received, there = others(into, out, nodes)
    sent, here = others(senders, into._replace(key=into.key // rails), nodes)
    apart, reached = np.flatnonzero(there >= 0), np.flatnonzero(here >= 0)
    up = _node_links(totals, out.only(apart), rails, into.gpu[there[apart]], received[apart], symmetry.leaves)
    down = _node_links(totals, into.only(reached), rails, senders.gpu[here[reached]], sent[reached], symmetry.enters)
    out, rail, into = out.only(apart), rail[apart], into.only(reached)
    if not len(out.key) or not len(into.key):
        return
    place = totals.place[0][symmetry.up[out.gpu, rail]], totals.place[1][symmetry.down[into.gpu]]
    number = symmetry.source[out.gpu, rail], symmetry.destination[into.gpu]
    pairs = paired(Side(out, number[0], place[0], up), Side(into, number[1], place[1], down), rails)
    segments = symmetry.segments() if pairs.routes > MANY else ()
    if not segments:
        totals.check(pairs.routes)
        load_classes(totals, pairs, totals.between, timed=True)
        return
    most = _most(totals, out.key // rails, up) + _most(totals, into.key // rails, down)
    for segment in segments:
        from_, to = symmetry.start[out.gpu, rail], symmetry.to[into.gpu]
        parts = paired(
            _side(out, segment, segment.source, from_, place[0]),
            _side(into, segment, segment.destination, to, place[1]),
            rails,
        )
        part = np.zeros(totals.links, bool)
        part[symmetry.base + segment.first : symmetry.base + segment.end] = True
        totals.check(parts.routes)
        most += load_classes(totals, parts, part, timed=False)
    if not sample(totals, pairs, most):
        totals.check(pairs.routes)
        for i, j, _ in pairs.blocks():
            note_latencies(totals, pairs, i, j)


def _most(totals: LoadTotals, group: Ints, seconds: Floats) -> Floats:
    """Return the most seconds of each group."""
    most = np.zeros(len(totals.latency))
    np.maximum.at(most, group, seconds)
    return most


def _side(endpoints: Endpoints, segment: RouteSegment, number: Ints, endpoint: Ints, place: Ints) -> Side:
    """Return one side of a segment. Endpoints in one scope never share this segment, as if on one node."""
    scoped = endpoints if segment.scope is None else endpoints._replace(node=segment.scope[endpoint])
    return Side(scoped, number[endpoint], place, np.zeros(len(endpoint)))


def _node_links(
    totals: LoadTotals, endpoints: Endpoints, rails: int, other: Ints, factor: Floats, part: Mask
) -> Floats:
    """Load what crosses the links in `part` on the routes from or to `other` GPUs, and return the seconds on them."""
    seconds: list[Floats] = []
    for first in range(0, len(other), BLOCK):
        own, apart = endpoints.only(slice(first, first + BLOCK)), other[first : first + BLOCK]
        outwards = part is totals.symmetry.leaves
        routes = totals.topology.route(*((own.gpu, apart) if outwards else (apart, own.gpu)))
        totals.add(routes, own.key // rails, own.weight * factor[first : first + BLOCK], part)
        route = np.repeat(np.arange(len(apart)), np.diff(routes.start))
        kept = part[routes.links]
        latency = totals.topology.latency[routes.links] * routes.share
        seconds.append(np.asarray(np.bincount(route[kept], latency[kept], len(apart)), np.float64))
    return np.concatenate(seconds or [factor[:0]])


# The routes between NICs that stand for those from class to class.

SAMPLE = 1 << 18
"""Ways that are tried to find one that takes as long as any could."""


def load_classes(totals: LoadTotals, pairs: Pairs, part: Mask, timed: bool) -> Floats:
    """Load the bytes from class to class on the links in `part`.

    timed: the totals take note of how long whole routes take. Else the most seconds on these links are returned, by group.
    """
    most = np.zeros(len(totals.latency))
    for i, j, weight in pairs.blocks():
        s, d, met, sure = _slowest(pairs, i, j)
        routes = totals.topology.route(pairs.one.endpoints.gpu[s[met]], pairs.two.endpoints.gpu[d[met]])
        group = pairs.one.key[i[met]] // pairs.rails
        nic_range = np.concatenate([pairs.one.nic_range[:, i[met]], pairs.two.nic_range[:, j[met]]])
        totals.add(routes, group, weight[met], part, nic_range)
        if timed:
            totals.note_latency(group, routes.latency)
            note_latencies(totals, pairs, i[met & ~sure], j[met & ~sure])
        else:
            np.maximum.at(most, group, totals.seconds(routes, part))
    return most


def _slowest(pairs: Pairs, i: Ints, j: Ints) -> tuple[Ints, Ints, Mask, Mask]:
    """Return for each pair of classes one of its routes between nodes, if there is any, and whether none takes longer."""
    one, two = pairs.one, pairs.two
    s, d, sure = _met(one, two, one.slow[:, i], two.slow[:, j])
    met, rest = sure.copy(), np.flatnonzero(~sure)  # the slowest of both classes are all on one node
    s[rest], d[rest], met[rest] = _met(one, two, one.endpoints_of(i[rest]), two.endpoints_of(j[rest]))
    return s, d, met, sure


def _met(one: Classes, two: Classes, sources: Ints, destinations: Ints) -> tuple[Ints, Ints, Mask]:
    """Return an endpoint of either side on different nodes, and whether there are; given those on the first and last node."""
    s, d = sources[0], destinations[0]
    s = np.where(one.endpoints.node[s] == two.endpoints.node[d], sources[1], s)
    d = np.where(one.endpoints.node[s] == two.endpoints.node[d], destinations[1], d)
    return s, d, one.endpoints.node[s] != two.endpoints.node[d]


def note_latencies(totals: LoadTotals, pairs: Pairs, i: Ints, j: Ints) -> None:
    """Take note of how long all routes from classes i to classes j take."""
    one, two = pairs.one, pairs.two
    count = one.size[i] * two.size[j]
    for first, end in blocks(count):
        p, x = ragged(np.zeros(end - first, np.int64), count[first:end])
        a, b = i[first:end][p], j[first:end][p]
        s, d = one.start[a] + x // two.size[b], two.start[b] + x % two.size[b]
        apart = one.endpoints.node[s] != two.endpoints.node[d]
        routes = totals.topology.route(one.endpoints.gpu[s[apart]], two.endpoints.gpu[d[apart]])
        totals.note_latency(one.key[a[apart]] // pairs.rails, routes.latency)


def sample(totals: LoadTotals, pairs: Pairs, most: Floats) -> bool:
    """Take note of how long some routes take, and return whether the slowest of every group is as slow as it could be.

    most: seconds that no route of a group exceeds.
    """
    sources, destinations = pairs.one.endpoints, pairs.two.endpoints
    start, size = runs(destinations.key, sources.key)
    draw = np.random.default_rng(0)
    tried = draw.permutation(np.repeat(np.flatnonzero(size), -(-SAMPLE // len(size))))[:SAMPLE]
    other = start[tried] + draw.integers(size[tried])
    for first in range(0, len(tried), BLOCK):
        a, b = tried[first : first + BLOCK], other[first : first + BLOCK]
        apart = sources.node[a] != destinations.node[b]
        routes = totals.topology.route(sources.gpu[a[apart]], destinations.gpu[b[apart]])
        totals.note_latency(sources.key[a[apart]] // pairs.rails, routes.latency)
    return bool((totals.latency >= most * (1 - 1e-12)).all())


# Senders and receivers over all groups, and their pairs.

BLOCK = 1 << 14
"""Pairs that are looked at together: their arrays stay in the cache."""


class Endpoints(NamedTuple):
    """Senders or receivers."""

    key: Ints
    """Their group, or group and rail."""
    node: Ints
    gpu: Ints
    weight: Floats
    """Bytes for each byte of S."""

    def only(self, kept: Mask | Ints | slice) -> Endpoints:
        """Return some of them."""
        return Endpoints(self.key[kept], self.node[kept], self.gpu[kept], self.weight[kept])

    def ordered(self) -> Endpoints:
        """Return them sorted by key and node."""
        return self.only(np.lexsort((self.node, self.key)))


def runs(keys: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Return where each asked key begins in sorted `keys`, and how often it stands there."""
    start = np.searchsorted(keys, asked)
    return start, np.searchsorted(keys, asked, side="right") - start


def blocks(counts: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, end) of items that make no more than BLOCK pairs together, or are one; each makes `counts`."""
    ends, first = np.cumsum(counts), 0
    while first < len(counts):
        done = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, done + BLOCK, side="right")))
        yield first, end
        first = end


def ragged(start: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return (i, start[i]), (i, start[i] + 1), … `count[i]` times for each i."""
    i = np.repeat(np.arange(len(count)), count)
    return i, start[i] + np.arange(len(i)) - (np.cumsum(count) - count)[i]


def crossed(left: Ints, right: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the pairs (i, j) with left[i] == right[j] block by block; `right` is sorted."""
    start, count = runs(right, left)
    for first, end in blocks(count):
        i, j = ragged(start[first:end], count[first:end])
        yield i + first, j


def others(endpoints: Endpoints, asked: Endpoints, nodes: int) -> tuple[Floats, Ints]:
    """Return the weight of all `endpoints` of the key of each one asked that are on other nodes, and one of these (-1: none).

    endpoints: ordered. nodes: how many there are.
    """
    start, count = runs(endpoints.key, asked.key)
    place = endpoints.key * nodes + endpoints.node
    _, here = runs(place, asked.key * nodes + asked.node)
    whole, part = (
        _sums(own, endpoints.weight, wanted)
        for own, wanted in ((endpoints.key, asked.key), (place, asked.key * nodes + asked.node))
    )
    first, last = np.minimum(start, len(endpoints.key) - 1), start + count - 1
    one = np.where(endpoints.node[first] == asked.node, last, first) if len(endpoints.key) else start
    return whole - part, np.where(count > here, one, -1)


def _sums(keys: Ints, weight: Floats, asked: Ints) -> Floats:
    """Return the sum of the weights of each asked key."""
    found, inverse = np.unique(np.concatenate([keys, asked]), return_inverse=True)
    sums = np.asarray(np.bincount(inverse[: len(keys)], weight, len(found)), np.float64)
    return sums[inverse[len(keys) :]]


# What is put on the links between NICs, from class to class.
#
# A class are the endpoints of a group (and rail) that the routing cannot tell apart, such as the NICs of a leaf under adaptive
# routing; a hash tells all apart. Bytes from class to class are the product of what the one sends and the other receives,
# less what stays in a node, and go the route of any of their pairs.


class Side(NamedTuple):
    """One side of the routes between nodes."""

    endpoints: Endpoints
    """Their keys are group and rail."""
    number: Ints
    """That of the class of each, in its key."""
    place: Ints
    """That of the NIC among all, rail by rail."""
    seconds: Floats
    """From the GPU to the NIC, or back."""


class Classes(NamedTuple):
    """The classes of one side, sorted by key."""

    endpoints: Endpoints
    """Sorted likewise."""
    key: Ints
    weight: Floats
    start: Ints
    """The first of its endpoints …"""
    size: Ints
    """… and how many they are."""
    slow: Ints
    """Of those with the most seconds, the endpoints on the first and on the last node, (2, classes)."""
    nic_range: Ints
    """Places of the first and the last NIC."""

    @property
    def members(self) -> Ints:
        """The class of each end."""
        return np.repeat(np.arange(len(self.size)), self.size)

    def endpoints_of(self, number: Ints) -> Ints:
        """Return the endpoints of some classes on their first and on their last node, (2, classes)."""
        found: Ints = self.start[number] + np.stack([number * 0, self.size[number] - 1])
        return found


def classes(side: Side) -> Classes:
    """Return the classes of one side."""
    order = np.lexsort((side.endpoints.node, side.number, side.endpoints.key))
    endpoints, number, place, seconds = side.endpoints.only(order), *(x[order] for x in side[1:])
    start = np.flatnonzero((np.diff(endpoints.key, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
    count = np.diff(start, append=len(number))
    at = np.arange(len(number))
    slow = seconds >= np.repeat(np.maximum.reduceat(seconds, start), count) * (1 - 1e-12)
    return Classes(
        endpoints,
        endpoints.key[start],
        np.add.reduceat(endpoints.weight, start),
        start,
        count,
        np.stack(
            [
                np.minimum.reduceat(np.where(slow, at, len(at)), start),
                np.maximum.reduceat(np.where(slow, at, -1), start),
            ]
        ),
        np.stack([np.minimum.reduceat(place, start), np.maximum.reduceat(place, start)]),
    )


class Pairs(NamedTuple):
    """The pairs of classes with equal keys."""

    one: Classes
    two: Classes
    start: Ints
    """By class of `one`, the first of `two` with its key …"""
    size: Ints
    """… and how many these are."""
    rails: int
    """A key is the group times this, plus the rail."""

    @property
    def routes(self) -> int:
        """How many there are."""
        return int(self.size.sum())

    def blocks(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield classes i and j of either side, and the bytes from the one to the other."""
        number = np.cumsum(self.size) - self.size  # of the first pair of each class
        pair, inside = _inside_classes(self.one, self.two, number - self.start)
        for first, end in blocks(self.size):
            i, j = ragged(self.start[first:end], self.size[first:end])
            i += first
            weight = self.one.weight[i] * self.two.weight[j]
            low, high = np.searchsorted(pair, [number[first], number[end - 1] + self.size[end - 1]])
            weight[pair[low:high] - number[first]] -= inside[low:high]
            yield i, j, np.maximum(weight, 0.0)


def paired(out: Side, into: Side, rails: int) -> Pairs:
    """Return the pairs of the classes of two sides; neither is empty."""
    one, two = classes(out), classes(into)
    return Pairs(one, two, *runs(two.key, one.key), rails)


def _inside_classes(one: Classes, two: Classes, shift: Ints) -> tuple[Ints, Floats]:
    """Return the pairs of classes, by number, that meet in nodes, and the product of what they send and receive there."""
    nodes = 1 + int(max(one.endpoints.node.max(), two.endpoints.node.max()))
    (a, key, sent), (b, other, received) = (_by_node(side, nodes) for side in (one, two))
    found = [(shift[a[i]] + b[j], sent[i] * received[j]) for i, j in crossed(key, other)]
    pair, inverse = np.unique(np.concatenate([p for p, _ in found] or [a[:0]]), return_inverse=True)
    return pair, np.asarray(
        np.bincount(inverse, np.concatenate([w for _, w in found] or [sent[:0]]), len(pair)), np.float64
    )


def _by_node(side: Classes, nodes: int) -> tuple[Ints, Ints, Floats]:
    """Return the class, the key and node as one number, and the weight of what each class has in each node, by the second."""
    member, node = side.members, side.endpoints.node
    start = np.flatnonzero((np.diff(member, prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0))
    place = (side.endpoints.key * nodes + node)[start]
    order = np.argsort(place, kind="stable")
    return member[start][order], place[order], np.add.reduceat(side.endpoints.weight, start)[order]


# Bytes on links, summed up block by block, so that memory follows the links and not the pairs.

MOST = 1 << 26
"""Links of the routes that are loaded one by one at most: 8.4 million routes of 8 links, some 8 s."""
_DENSE = 1 << 22
"""Groups times links up to which every group has a sum for every link."""
_FITS = 1 + 1e-9
_NOWHERE = np.iinfo(np.int64).max


class LoadTotals:
    """The loads of one phase in `groups` groups while its routes are loaded.

    latency: of the slowest route so far, by group. Of every link between NICs it keeps from which to which NIC, in the order of
    rails and numbers, its bytes come, and to which they go: these are its feeders.
    """

    def __init__(self, topology: Topology, symmetry: EndpointClasses, groups: int) -> None:
        self.topology, self.symmetry, self.links = topology, symmetry, len(topology.capacity)
        self.latency = np.zeros(groups)
        self.between: Mask = ~(symmetry.leaves | symmetry.enters)
        self.nics = (
            _rail_by_rail(symmetry.up, np.arange(symmetry.up.shape[1])),
            _rail_by_rail(symmetry.down[:, None], symmetry.rail[:, None]),
        )
        self.place = np.full((2, self.links), -1)
        for place, nics in zip(self.place, self.nics, strict=True):
            place[nics] = np.arange(len(nics))
        self.low = np.full((2, self.links), _NOWHERE)
        self.high = np.full((2, self.links), -1)
        self.dense = np.zeros(groups * self.links) if groups * self.links <= _DENSE else None
        self.sums: list[tuple[Ints, Floats]] = []

    def add(
        self, routes: Routes, group: Ints, weight: Floats, part: Mask | None = None, nic_range: Ints | None = None
    ) -> None:
        """Add the bytes `weight` of each route on its links, or on those in `part`.

        nic_range: the places of the first and last NIC by which the bytes of each route leave, and of those by which they arrive,
        an array (4, routes); None for routes inside nodes.
        """
        route, link, share = np.repeat(np.arange(len(weight)), np.diff(routes.start)), routes.links, routes.share
        if part is not None:
            kept = np.flatnonzero(part[link])
            route, link, share = route[kept], link[kept], share[kept]
        self._sum(group[route] * self.links + link, weight[route] * share)
        if nic_range is not None:
            inner = np.flatnonzero(self.between[link])
            route, link = route[inner], link[inner]
            for side in (0, 1):
                np.minimum.at(self.low[side], link, nic_range[2 * side][route])
                np.maximum.at(self.high[side], link, nic_range[2 * side + 1][route])

    def check(self, routes: int) -> None:
        """Raise TooManyRoutesError when there are too many routes to load them one by one."""
        most = MOST // width(self.topology)
        if routes > most:
            raise TooManyRoutesError(
                f"the routing and the faults of this cluster give the pairs of an all-to-all {routes} different routes, more "
                f"than {most} at once; use smaller groups, or adaptive routing"
            )

    def nic_ranges_of(self, routes: Routes) -> Ints | None:
        """Return the ranges of NICs of routes that each have one NIC at either end; None in a cluster that does not tell."""
        if self.between.all():
            return None
        route, link = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start)), routes.links
        found = np.full((2, len(routes.latency)), -1)
        for side in (0, 1):
            crossed = np.flatnonzero(self.place[side][link] >= 0)
            found[side][route[crossed]] = self.place[side][link[crossed]]
        return found.repeat(2, axis=0)

    def seconds(self, routes: Routes, part: Mask) -> Floats:
        """Return the seconds that each route takes on the links in `part`."""
        route = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start))
        kept = np.flatnonzero(part[routes.links])
        latency = self.topology.latency[routes.links[kept]] * routes.share[kept]
        return np.asarray(np.bincount(route[kept], latency, len(routes.latency)), np.float64)

    def note_latency(self, group: Ints, latency: Floats) -> None:
        """Take note of the seconds that routes of groups take."""
        np.maximum.at(self.latency, group, latency)

    def _sum(self, key: Ints, weight: Floats) -> None:
        if self.dense is not None:
            self.dense += np.bincount(key, weight, len(self.dense))
        elif len(key):
            self.sums.append(_summed(key, weight))

    def phase_loads(self, rounds: float) -> PhaseLoads:
        """Return the loads of all that has been added, in a phase of so many rounds."""
        if self.dense is not None:
            key = np.flatnonzero(self.dense)
            weight = self.dense[key]
        else:
            key, weight = _summed(*(np.concatenate(arrays) for arrays in zip(*self.sums, strict=True)))
        link = key % self.links
        used = distinct(link)
        feeders = self._feeders(used, 0), self._feeders(used, 1)
        group = key // self.links
        bound = bounds(self.topology, len(self.latency), group, link, weight)
        return PhaseLoads(rounds * self.latency, bound, group, link, weight, lambda: feeders)

    def _feeders(self, used: Ints, side: int) -> Feeders:
        """Return the NICs of each link between NICs if they could not fill it; links of nodes and NICs feed themselves."""
        low, high = self.low[side][used], self.high[side][used]
        fed = np.concatenate(([0.0], np.cumsum(self.topology.capacity[self.nics[side]])))
        fits = high >= 0
        fits[fits] = fed[high[fits] + 1] - fed[low[fits]] <= self.topology.capacity[used[fits]] * _FITS
        count = np.where(fits, high - low + 1, 0)
        first = np.repeat(low - np.cumsum(count) + count, count)
        feeding = self.nics[side][first + np.arange(len(first))]
        rest = used[~fits]
        itself = np.where(self.between[rest], self.links, rest)
        return np.concatenate([used.repeat(count), rest]), np.concatenate([feeding, itself])


def _rail_by_rail(nics: Ints, rails: Ints) -> Ints:
    """Return each NIC once, rail by rail."""
    rail = np.broadcast_to(rails, nics.shape).ravel()
    found, first = np.unique(nics.ravel(), return_index=True)
    return found[np.argsort(rail[first], kind="stable")]


def _summed(key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Return each key once, and the sum of its weights."""
    found, inverse = np.unique(key, return_inverse=True)
    return found, np.asarray(np.bincount(inverse, weight, len(found)), np.float64)
