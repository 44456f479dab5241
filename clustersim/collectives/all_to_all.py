"""The loads of an all-to-all phase, without a route for each of its n² pairs.

Pairs inside a node are routed one by one. Traffic between nodes has three parts, each summed on its own: from every GPU to its
NIC (or the NIC of the receiver's rail, by PXN), from every NIC to its GPU, and between NICs from class to class. A class holds
the NICs that the routing treats alike, such as those of one leaf under adaptive routing. Bytes from class i to class j are
sent[i]·received[j] minus those that stay inside a node, and take the route of any pair of the two classes.

Example: 96 nodes of one GPU on 4 leaves have 96·95 = 9,120 pairs, but only 4·4 = 16 pairs of classes. If each GPU sends S/96 to
each GPU, 24 senders and 24 receivers of two different leaves exchange 24·24·S/96 = 6·S on one route. From a leaf to itself, the
24 pairs of a node with itself are subtracted: (24·24 - 24)·S/96 = 5.75·S. Links from a GPU to its leaf carry 95/96·S each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct, summed
from clustersim.collectives.loads import Feeders, PhaseLoads, TooManyRoutesError, bounds, width
from clustersim.collectives.model import AllPairs
from clustersim.topology.hops import EndpointClasses, RouteSegment
from clustersim.topology.model import Routes, Topology

MANY = 1 << 20
"""Number of class-to-class routes from which routes are loaded segment by segment, if the routing has segments."""
SAMPLE = 1 << 18
"""Number of routes that are drawn at random to find one as slow as the upper bound."""
BLOCK = 1 << 14
"""Number of pairs that are processed together, chosen so that the arrays fit into the CPU cache."""
MOST = 1 << 26
"""Largest number of link loads that may be added route by route: 8.4 million routes of 8 links, about 8 s."""
_DENSE = 1 << 22
"""Largest number of groups times links for which each group has an array of sums over all links."""
_FITS = 1 + 1e-9
_NOWHERE = np.iinfo(np.int64).max


def all_pairs_loads(topology: Topology, ranks: Ints, phase: AllPairs) -> PhaseLoads:
    """Return the loads of an all-to-all phase in the groups `ranks` (groups, n), an array of GPUs.

    Raises TooManyRoutesError if the routing distinguishes too many pairs to load them one by one.
    """
    symmetry = topology.endpoint_classes()
    totals = LoadTotals(topology, symmetry, len(ranks))
    senders, receivers = (_endpoints(topology, ranks, weight) for weight in (phase.sent, phase.received))
    # Endpoints without a routing class (behind a fault, for example) have every route looked up; all others are loaded by class.
    unknown_senders, unknown_receivers = symmetry.unknown[senders.gpu], symmetry.unknown[receivers.gpu]
    _on_the_same_node(totals, senders, receivers)
    _on_different_nodes(totals, senders.only(unknown_senders), receivers)
    _on_different_nodes(totals, senders.only(~unknown_senders), receivers.only(unknown_receivers))
    _between_nodes(totals, symmetry, senders.only(~unknown_senders), receivers.only(~unknown_receivers))
    return totals.phase_loads(phase.rounds)


def _endpoints(topology: Topology, ranks: Ints, weight: Floats) -> Endpoints:
    """Return the senders or receivers of all groups that have bytes, sorted by group and node. `weight` (n,) is the bytes of
    each position per byte of S."""
    groups, n = ranks.shape
    gpu = ranks.ravel()
    found = Endpoints(np.repeat(np.arange(groups), n), topology.numbering.node_of(gpu), gpu, np.tile(weight, groups))
    return found.only(found.weight > 0).ordered()


def _on_the_same_node(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads of all pairs of different GPUs on the same node."""
    nodes = totals.topology.nodes
    for i, j in equal_pairs(*(endpoints.key * nodes + endpoints.node for endpoints in (senders, receivers))):
        other = senders.gpu[i] != receivers.gpu[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _on_different_nodes(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads of all pairs on different nodes, one route for each pair."""
    totals.check(int(runs(receivers.key, senders.key)[1].sum()))
    for i, j in equal_pairs(senders.key, receivers.key):
        other = senders.node[i] != receivers.node[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _load(totals: LoadTotals, source: Endpoints, destination: Endpoints) -> None:
    """Add the loads of one route from each source to the destination at the same index."""
    routes = totals.topology.route(source.gpu, destination.gpu)
    totals.note_latency(source.key, routes.latency)
    totals.add(routes, source.key, source.weight * destination.weight, nic_range=totals.nic_ranges_of(routes))


def _between_nodes(totals: LoadTotals, symmetry: EndpointClasses, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads of all traffic between nodes, class by class."""
    rails, nodes = symmetry.source.shape[1], totals.topology.nodes
    # A GPU's bytes leave by the NIC of the receiver's rail (PXN), so that it is one sender per rail: key = group · rails + rail.
    rail = np.tile(np.arange(rails), len(senders.gpu))
    out = senders.only(np.repeat(np.arange(len(senders.gpu)), rails))
    out = out._replace(key=out.key * rails + rail)
    into = receivers._replace(key=receivers.key * rails + symmetry.rail[receivers.gpu]).ordered()
    # All bytes from a sender to the receivers of a rail use the same links up to the NIC, whichever the receiver. So
    # one route to any receiver on another node shows these links, and the sum of the receivers' weights is the factor.
    received, there = weight_elsewhere(into, out, nodes)
    sent, here = weight_elsewhere(senders, into._replace(key=into.key // rails), nodes)
    apart, reached = np.flatnonzero(there >= 0), np.flatnonzero(here >= 0)
    up = _node_links(totals, out.only(apart), rails, into.gpu[there[apart]], received[apart], symmetry.leaves)
    down = _node_links(totals, into.only(reached), rails, senders.gpu[here[reached]], sent[reached], symmetry.enters)
    out, rail, into = out.only(apart), rail[apart], into.only(reached)
    if not len(out.key) or not len(into.key):
        return
    place = totals.place[0][symmetry.up[out.gpu, rail]], totals.place[1][symmetry.down[into.gpu]]
    number = symmetry.source[out.gpu, rail], symmetry.destination[into.gpu]
    pairs = paired(Side(out, number[0], place[0], up), Side(into, number[1], place[1], down), rails)
    # Too many pairs of classes (for example a hash that distinguishes all NICs): the part of a route up to a switch depends on
    # the source alone and the rest on the destination alone, so each segment has its own, far coarser classes.
    segments = symmetry.segments() if pairs.routes > MANY else ()
    if not segments:
        totals.check(pairs.routes)
        load_classes(totals, pairs, totals.between, timed=True)
        return
    # Loads are exact by segments, but the latency of a whole route is not known: bound it by the sum of the slowest segments,
    # and look for a route that reaches the bound. If none of a sample does, all routes are looked up.
    most = _largest_by_group(totals, out.key // rails, up) + _largest_by_group(totals, into.key // rails, down)
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


def _largest_by_group(totals: LoadTotals, group: Ints, seconds: Floats) -> Floats:
    """Return the largest of `seconds` in each group, an array (groups,). `group` is the group index of each item."""
    most = np.zeros(len(totals.latency))
    np.maximum.at(most, group, seconds)
    return most


def _side(endpoints: Endpoints, segment: RouteSegment, number: Ints, endpoint: Ints, place: Ints) -> Side:
    """Return one end of a route segment. Endpoints with the same scope never use the segment, like endpoints on one node.
    `number` is each endpoint's routing class, `endpoint` its NIC and `place` the NIC's position in the order of rails."""
    scoped = endpoints if segment.scope is None else endpoints._replace(node=segment.scope[endpoint])
    return Side(scoped, number[endpoint], place, np.zeros(len(endpoint)))


def _node_links(
    totals: LoadTotals, endpoints: Endpoints, rails: int, other: Ints, factor: Floats, part: Mask
) -> Floats:
    """Add the loads of the links in `part` on routes between `endpoints` and one `other` GPU each. Return the seconds on these
    links per route. `factor` scales each endpoint's bytes."""
    seconds: list[Floats] = []
    for first in range(0, len(other), BLOCK):
        own, apart = endpoints.only(slice(first, first + BLOCK)), other[first : first + BLOCK]
        outwards = part is totals.symmetry.leaves
        routes = totals.topology.route(*((own.gpu, apart) if outwards else (apart, own.gpu)))
        totals.add(routes, own.key // rails, own.weight * factor[first : first + BLOCK], part)
        seconds.append(totals.seconds(routes, part))
    return np.concatenate(seconds or [factor[:0]])


def load_classes(totals: LoadTotals, pairs: Pairs, part: Mask, timed: bool) -> Floats:
    """Add the bytes between classes on the links in `part`. Return each group's largest seconds on these links, unless `timed`.

    With `timed`, the totals record the latency of whole routes instead, and the seconds are zeros.
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
    """Return for each pair of classes (i, j) one slow route between different nodes.

    The result is (source, destination, whether such a route exists, whether no other route of the pair is slower).
    """
    one, two = pairs.one, pairs.two
    s, d, sure = _endpoints_on_different_nodes(one, two, one.slow[:, i], two.slow[:, j])
    met, rest = sure.copy(), np.flatnonzero(~sure)  # the slowest endpoints of both classes are all on one node
    s[rest], d[rest], met[rest] = _endpoints_on_different_nodes(
        one, two, one.endpoints_of(i[rest]), two.endpoints_of(j[rest])
    )
    return s, d, met, sure


def _endpoints_on_different_nodes(
    one: Classes, two: Classes, sources: Ints, destinations: Ints
) -> tuple[Ints, Ints, Mask]:
    """Return a source and a destination on different nodes for each pair, and a mask of the pairs that have such endpoints.

    `sources` and `destinations` (2, pairs) are the endpoints on the first and on the last node of each class.
    """
    s, d = sources[0], destinations[0]
    s = np.where(one.endpoints.node[s] == two.endpoints.node[d], sources[1], s)
    d = np.where(one.endpoints.node[s] == two.endpoints.node[d], destinations[1], d)
    return s, d, one.endpoints.node[s] != two.endpoints.node[d]


def note_latencies(totals: LoadTotals, pairs: Pairs, i: Ints, j: Ints) -> None:
    """Record the latency of every route from the classes `i` to the classes `j` in the totals."""
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
    """Record the latency of random routes. Return whether every group's slowest recorded route reaches its upper bound.

    `most` is the upper bound of each group, in seconds.
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


class Endpoints(NamedTuple):
    """Senders or receivers of an all-to-all, as columns of equal length."""

    key: Ints
    """Group of each endpoint, or group · rails + rail."""
    node: Ints
    gpu: Ints
    weight: Floats
    """Bytes sent or received per byte of the collective's size S."""

    def only(self, kept: Mask | Ints | slice) -> Endpoints:
        """Return the endpoints selected by a mask, indices or a slice."""
        return Endpoints(self.key[kept], self.node[kept], self.gpu[kept], self.weight[kept])

    def ordered(self) -> Endpoints:
        """Return the endpoints sorted by key, then by node."""
        return self.only(np.lexsort((self.node, self.key)))


def runs(keys: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Return the first index of each key of `asked` in the sorted `keys`, and the number of times it occurs there."""
    start = np.searchsorted(keys, asked)
    return start, np.searchsorted(keys, asked, side="right") - start


def blocks(counts: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, end) of items with at most BLOCK pairs together, or of one larger item. Item i has counts[i] pairs."""
    ends, first = np.cumsum(counts), 0
    while first < len(counts):
        done = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, done + BLOCK, side="right")))
        yield first, end
        first = end


def ragged(start: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return two arrays: each index i repeated `count[i]` times, and the values start[i], start[i] + 1, … in the same order.

    >>> [column.tolist() for column in ragged(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    i = np.repeat(np.arange(len(count)), count)
    return i, start[i] + np.arange(len(i)) - (np.cumsum(count) - count)[i]


def equal_pairs(left: Ints, right: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield, block by block, arrays (i, j) of all pairs with left[i] == right[j]. `right` is sorted."""
    start, count = runs(right, left)
    for first, end in blocks(count):
        i, j = ragged(start[first:end], count[first:end])
        yield i + first, j


def weight_elsewhere(endpoints: Endpoints, asked: Endpoints, nodes: int) -> tuple[Floats, Ints]:
    """Return two arrays over `asked`: weight of the `endpoints` with the same key on other nodes, and the index of one of them or
    -1.

    `endpoints` are sorted by key and node. `nodes` is the number of nodes.
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
    """Return the sum of `weight` over the items whose key is asked[i], for each i."""
    found, inverse = np.unique(np.concatenate([keys, asked]), return_inverse=True)
    return summed(inverse[: len(keys)], weight, len(found))[inverse[len(keys) :]]


class Side(NamedTuple):
    """One end of all routes between nodes, as columns over its endpoints."""

    endpoints: Endpoints
    """Endpoints whose keys are group · rails + rail."""
    number: Ints
    """Routing class of each endpoint, an index within its key."""
    place: Ints
    """Position of each endpoint's NIC in the order of rails."""
    seconds: Floats
    """Latency from the GPU to its NIC or from the NIC to its GPU, in seconds."""


class Classes(NamedTuple):
    """Routing classes of one side, as columns sorted by key."""

    endpoints: Endpoints
    """Endpoints, sorted by key, class and node."""
    key: Ints
    weight: Floats
    """Bytes of all endpoints of the class per byte of S."""
    start: Ints
    """Index of the first endpoint of each class."""
    size: Ints
    """Number of endpoints of each class."""
    slow: Ints
    """Indices of the slowest endpoints of each class on the first and on the last node, an array (2, classes)."""
    nic_range: Ints
    """Positions of the first and of the last NIC of each class, an array (2, classes)."""

    @property
    def members(self) -> Ints:
        """Index of the class of each endpoint."""
        return np.repeat(np.arange(len(self.size)), self.size)

    def endpoints_of(self, number: Ints) -> Ints:
        """Return the endpoints of the classes `number` on their first and on their last node, an array (2, classes)."""
        found: Ints = self.start[number] + np.stack([number * 0, self.size[number] - 1])
        return found


def classes(side: Side) -> Classes:
    """Return the routing classes of one side."""
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
    """Pairs of sending and receiving classes with equal keys."""

    one: Classes
    two: Classes
    start: Ints
    """Index of the first class of `two` with the key of each class of `one`."""
    size: Ints
    """Number of classes of `two` with the key of each class of `one`."""
    rails: int
    """Number of rails; a key is group · rails + rail."""

    @property
    def routes(self) -> int:
        """Number of pairs of classes."""
        return int(self.size.sum())

    def blocks(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield, block by block, arrays (i, j, bytes per byte of S) over pairs of a class i of `one` and a class j of `two`."""
        number = np.cumsum(self.size) - self.size  # of the first pair of each class
        pair, inside = _inside_classes(self.one, self.two, number - self.start)
        for first, end in blocks(self.size):
            i, j = ragged(self.start[first:end], self.size[first:end])
            i += first
            weight = self.one.weight[i] * self.two.weight[j]
            low, high = np.searchsorted(pair, [number[first], number[end - 1] + self.size[end - 1]])
            # Bytes that stay in a node do not cross a NIC. The difference of equal sums can be -1e-17, hence the maximum.
            weight[pair[low:high] - number[first]] -= inside[low:high]
            yield i, j, np.maximum(weight, 0.0)


def paired(out: Side, into: Side, rails: int) -> Pairs:
    """Return the pairs of the classes of two sides that have endpoints."""
    one, two = classes(out), classes(into)
    return Pairs(one, two, *runs(two.key, one.key), rails)


def _inside_classes(one: Classes, two: Classes, shift: Ints) -> tuple[Ints, Floats]:
    """Return the indices of the pairs of classes that share a node, and the bytes per byte of S of each pair that stay inside
    nodes."""
    nodes = 1 + int(max(one.endpoints.node.max(), two.endpoints.node.max()))
    (a, key, sent), (b, other, received) = (_by_node(side, nodes) for side in (one, two))
    found = [(shift[a[i]] + b[j], sent[i] * received[j]) for i, j in equal_pairs(key, other)]
    return _summed(*(np.concatenate(arrays) for arrays in zip((a[:0], sent[:0]), *found, strict=True)))


def _by_node(side: Classes, nodes: int) -> tuple[Ints, Ints, Floats]:
    """Return three columns sorted by the second: class, key · nodes + node, and weight of the class on that node."""
    member, node = side.members, side.endpoints.node
    start = np.flatnonzero((np.diff(member, prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0))
    place = (side.endpoints.key * nodes + node)[start]
    order = np.argsort(place, kind="stable")
    return member[start][order], place[order], np.add.reduceat(side.endpoints.weight, start)[order]


class LoadTotals:
    """Sums of the loads of one phase in `groups` groups, while its routes are added.

    `latency` is the slowest route of each group, in seconds. For every link between NICs, `low` and `high` are the first and last
    NIC, in the order of rails, whose bytes cross it: row 0 as sources, row 1 as destinations. These NICs are the link's feeders.
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
        """Add `weight` bytes per byte of S on each route to its links, or to those of its links in `part`.

        `nic_range` (4, routes) has the positions of the first and last NIC that the bytes leave by and arrive by; None for
        routes inside nodes.
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
        """Raise TooManyRoutesError if `routes`, a number of routes, are too many to load them one by one."""
        most = MOST // width(self.topology)
        if routes > most:
            raise TooManyRoutesError(
                f"the routing and the faults of this cluster give the pairs of an all-to-all {routes} different routes, more "
                f"than {most} at once; use smaller groups, or adaptive routing"
            )

    def nic_ranges_of(self, routes: Routes) -> Ints | None:
        """Return the NIC ranges (4, routes) of routes with one NIC at each end, or None if routes name no NICs."""
        if self.between.all():
            return None
        route, link = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start)), routes.links
        found = np.full((2, len(routes.latency)), -1)
        for side in (0, 1):
            crossed = np.flatnonzero(self.place[side][link] >= 0)
            found[side][route[crossed]] = self.place[side][link[crossed]]
        return found.repeat(2, axis=0)

    def seconds(self, routes: Routes, part: Mask) -> Floats:
        """Return the latency of each route on the links in `part`, in seconds."""
        route = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start))
        kept = np.flatnonzero(part[routes.links])
        latency = self.topology.latency[routes.links[kept]] * routes.share[kept]
        return summed(route[kept], latency, len(routes.latency))

    def note_latency(self, group: Ints, latency: Floats) -> None:
        """Raise the recorded latency of each group to the largest of its routes' `latency`, in seconds."""
        np.maximum.at(self.latency, group, latency)

    def _sum(self, key: Ints, weight: Floats) -> None:
        """Add weights to the sums at keys, in an array of all keys if there are few."""
        if self.dense is not None:
            self.dense += np.bincount(key, weight, len(self.dense))
        elif len(key):
            self.sums.append(_summed(key, weight))

    def phase_loads(self, rounds: float) -> PhaseLoads:
        """Return the loads of everything added so far, in a phase of `rounds` rounds."""
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
        """Return (link, feeder) pairs for sources (`side` 0) or destinations (1). Feeders of a link between NICs are the NICs
        that cannot fill it together; other links feed themselves."""
        # NICs that feed a link are a range of the rail order. A range that is too wide only keeps a link that could have been
        # dropped, so that first and last suffice; the capacity of a range is a difference of cumulative sums.
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
    """Return each NIC once, sorted by the position of its rail."""
    rail = np.broadcast_to(rails, nics.shape).ravel()
    found, first = np.unique(nics.ravel(), return_index=True)
    return found[np.argsort(rail[first], kind="stable")]


def _summed(key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Return the distinct keys, ascending, and the sum of the weights of each."""
    found, inverse = np.unique(key, return_inverse=True)
    return found, summed(inverse, weight, len(found))
