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
"""Factor of a capacity up to which a sum of capacities fits, against rounding."""
_NOWHERE = np.iinfo(np.int64).max
"""First NIC of a link that no bytes cross."""


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
    """Return the positions with bytes in all groups, sorted by group and node.

    `ranks` (groups, n) is the GPU of each position, `weight` (n,) the weight of each position in AllPairs.
    """
    groups, n = ranks.shape
    gpu = ranks.ravel()
    every = Endpoints(np.repeat(np.arange(groups), n), topology.numbering.node_of(gpu), gpu, np.tile(weight, groups))
    return every.only(every.weight > 0).ordered()


def _on_the_same_node(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads of each sender and receiver of a group that are different GPUs of the same node."""
    nodes = totals.topology.nodes
    for i, j in equal_pairs(*(endpoints.key * nodes + endpoints.node for endpoints in (senders, receivers))):
        other = senders.gpu[i] != receivers.gpu[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _on_different_nodes(totals: LoadTotals, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads of each sender and receiver of a group on different nodes, route by route. Raises TooManyRoutesError."""
    totals.check(int(runs(receivers.key, senders.key)[1].sum()))
    for i, j in equal_pairs(senders.key, receivers.key):
        other = senders.node[i] != receivers.node[j]
        _load(totals, senders.only(i[other]), receivers.only(j[other]))


def _load(totals: LoadTotals, source: Endpoints, destination: Endpoints) -> None:
    """Add the loads and latency of the route from each source to the destination at the same index."""
    routes = totals.topology.route(source.gpu, destination.gpu)
    totals.note_latency(source.key, routes.latency)
    totals.add(routes, source.key, source.weight * destination.weight, nic_range=totals.nic_ranges_of(routes))


def _between_nodes(totals: LoadTotals, symmetry: EndpointClasses, senders: Endpoints, receivers: Endpoints) -> None:
    """Add the loads and latencies of all traffic between nodes, class by class. All endpoints have routing classes."""
    rails, nodes = symmetry.source.shape[1], totals.topology.nodes
    # A GPU's bytes leave by the NIC of the receiver's rail (PXN), so that it is one sender per rail: key = group · rails + rail.
    rail = np.tile(np.arange(rails), len(senders.gpu))
    out = senders.only(np.repeat(np.arange(len(senders.gpu)), rails))
    out = out._replace(key=out.key * rails + rail)
    into = receivers._replace(key=receivers.key * rails + symmetry.rail[receivers.gpu]).ordered()
    # All bytes from a sender to the receivers of a rail use the same links up to the NIC, whichever the receiver. So
    # one route to any receiver on another node shows these links, and the sum of the receivers' weights is the factor.
    received, receiver = weight_elsewhere(into, out, nodes)
    sent, sender = weight_elsewhere(senders, into._replace(key=into.key // rails), nodes)
    sending, reached = np.flatnonzero(receiver >= 0), np.flatnonzero(sender >= 0)
    up = _node_links(totals, out.only(sending), rails, into.gpu[receiver[sending]], received[sending], symmetry.leaves)
    down = _node_links(totals, into.only(reached), rails, senders.gpu[sender[reached]], sent[reached], symmetry.enters)
    out, rail, into = out.only(sending), rail[sending], into.only(reached)
    if not len(out.key) or not len(into.key):
        return
    nic_position = totals.nic_position[0][symmetry.up[out.gpu, rail]], totals.nic_position[1][symmetry.down[into.gpu]]
    number = symmetry.source[out.gpu, rail], symmetry.destination[into.gpu]
    pairs = paired(Side(out, number[0], nic_position[0], up), Side(into, number[1], nic_position[1], down), rails)
    # Too many pairs of classes (for example a hash that distinguishes all NICs): the part of a route up to a switch depends on
    # the source alone and the rest on the destination alone, so each segment has its own, far coarser classes.
    segments = symmetry.segments() if pairs.routes > MANY else ()
    if not segments:
        totals.check(pairs.routes)
        load_classes(totals, pairs, totals.between, timed=True)
        return
    # Loads are exact by segments, but the latency of a whole route is not known: bound it by the sum of the slowest segments,
    # and look for a route that reaches the bound. If none of a sample does, all routes are looked up.
    bound = _largest_by_group(totals, out.key // rails, up) + _largest_by_group(totals, into.key // rails, down)
    for segment in segments:
        from_, to = symmetry.start[out.gpu, rail], symmetry.to[into.gpu]
        segment_pairs = paired(
            _side(out, segment, segment.source, from_, nic_position[0]),
            _side(into, segment, segment.destination, to, nic_position[1]),
            rails,
        )
        in_segment = np.zeros(totals.links, bool)
        in_segment[symmetry.base + segment.first : symmetry.base + segment.end] = True
        totals.check(segment_pairs.routes)
        bound += load_classes(totals, segment_pairs, in_segment, timed=False)
    if not sample(totals, pairs, bound):
        totals.check(pairs.routes)
        for i, j, _ in pairs.blocks():
            note_latencies(totals, pairs, i, j)


def _largest_by_group(totals: LoadTotals, group: Ints, seconds: Floats) -> Floats:
    """Return the largest of `seconds` in each group, an array (groups,). `group` is the group index of each item."""
    largest = np.zeros(len(totals.latency))
    np.maximum.at(largest, group, seconds)
    return largest


def _side(endpoints: Endpoints, segment: RouteSegment, class_of: Ints, endpoint: Ints, nic_position: Ints) -> Side:
    """Return one end of a route segment. Endpoints with the same scope never use the segment, like endpoints on one node.

    `class_of` and `segment.scope` have an entry for each endpoint of the fabric, and `endpoint` is the index into them.
    `nic_position` is the position of the NIC in the order of rails.
    """
    scoped = endpoints if segment.scope is None else endpoints._replace(node=segment.scope[endpoint])
    return Side(scoped, class_of[endpoint], nic_position, np.zeros(len(endpoint)))


def _node_links(
    totals: LoadTotals, endpoints: Endpoints, rails: int, other: Ints, factor: Floats, part: Mask
) -> Floats:
    """Add the loads of the links in `part` (links,) on the routes between `endpoints` and one `other` GPU each.

    Routes start at the endpoints if `part` is `symmetry.leaves`, else they end there. `factor` is the weight that each endpoint's
    weight is multiplied by. Return the seconds of each route on these links.
    """
    seconds: list[Floats] = []
    for first in range(0, len(other), BLOCK):
        block, others = endpoints.only(slice(first, first + BLOCK)), other[first : first + BLOCK]
        outwards = part is totals.symmetry.leaves
        routes = totals.topology.route(*((block.gpu, others) if outwards else (others, block.gpu)))
        totals.add(routes, block.key // rails, block.weight * factor[first : first + BLOCK], part)
        seconds.append(totals.seconds(routes, part))
    return np.concatenate(seconds or [factor[:0]])


def load_classes(totals: LoadTotals, pairs: Pairs, part: Mask, timed: bool) -> Floats:
    """Add the bytes between classes on the links in `part` (links,). Return each group's largest seconds on them (groups,).

    With `timed`, record the latency of whole routes in the totals instead and return zeros.
    """
    slowest = np.zeros(len(totals.latency))
    for i, j, weight in pairs.blocks():
        source, target, exists = _slowest(pairs, i, j)
        routes = totals.topology.route(
            pairs.out.endpoints.gpu[source[exists]], pairs.into.endpoints.gpu[target[exists]]
        )
        group = pairs.out.key[i[exists]] // pairs.rails
        nic_range = np.concatenate([pairs.out.nic_range[:, i[exists]], pairs.into.nic_range[:, j[exists]]])
        totals.add(routes, group, weight[exists], part, nic_range)
        if timed:
            totals.note_latency(group, routes.latency)
        else:
            np.maximum.at(slowest, group, totals.seconds(routes, part))
    return slowest


def _slowest(pairs: Pairs, i: Ints, j: Ints) -> tuple[Ints, Ints, Mask]:
    """Return for each pair of classes (i, j) the slowest route between different nodes.

    The arrays (pairs,) are: source endpoint, destination endpoint, whether such a route exists.
    """
    # Routes of a pair of classes differ in the seconds of their ends alone. If the slowest ends share a node, one of them gives
    # way to the slowest on another node of its class.
    out, into = pairs.out, pairs.into
    sources, targets = out.slow[[0, 0, 1, 1]][:, i], into.slow[[0, 1, 0, 1]][:, j]
    seconds = out.seconds[sources] + into.seconds[targets]
    seconds[out.endpoints.node[sources] == into.endpoints.node[targets]] = -1.0
    best = seconds.argmax(axis=0), np.arange(len(i))
    return sources[best], targets[best], seconds[best] >= 0


def note_latencies(totals: LoadTotals, pairs: Pairs, i: Ints, j: Ints) -> None:
    """Record in the totals the latency of every route from class i[k] to class j[k], for all k."""
    out, into = pairs.out, pairs.into
    count = out.size[i] * into.size[j]
    for first, end in blocks(count):
        p, pair = ragged(np.zeros(end - first, np.int64), count[first:end])
        a, b = i[first:end][p], j[first:end][p]
        source, target = out.start[a] + pair // into.size[b], into.start[b] + pair % into.size[b]
        apart = out.endpoints.node[source] != into.endpoints.node[target]
        routes = totals.topology.route(out.endpoints.gpu[source[apart]], into.endpoints.gpu[target[apart]])
        totals.note_latency(out.key[a[apart]] // pairs.rails, routes.latency)


def sample(totals: LoadTotals, pairs: Pairs, bound: Floats) -> bool:
    """Record the latency of random routes. Return whether every group's slowest recorded route reaches its upper bound.

    bound: upper bound of each group, in seconds (groups,).
    """
    sources, destinations = pairs.out.endpoints, pairs.into.endpoints
    start, size = runs(destinations.key, sources.key)
    draw = np.random.default_rng(0)
    drawn = draw.permutation(np.repeat(np.flatnonzero(size), -(-SAMPLE // len(size))))[:SAMPLE]
    other = start[drawn] + draw.integers(size[drawn])
    for first in range(0, len(drawn), BLOCK):
        a, b = drawn[first : first + BLOCK], other[first : first + BLOCK]
        apart = sources.node[a] != destinations.node[b]
        routes = totals.topology.route(sources.gpu[a[apart]], destinations.gpu[b[apart]])
        totals.note_latency(sources.key[a[apart]] // pairs.rails, routes.latency)
    return bool((totals.latency >= bound * (1 - 1e-12)).all())


class Endpoints(NamedTuple):
    """Senders or receivers of an all-to-all, as columns of equal length."""

    key: Ints
    """Group of each endpoint, or group · rails + rail."""
    node: Ints
    """Node of each endpoint."""
    gpu: Ints
    """GPU of each endpoint."""
    weight: Floats
    """Bytes sent or received per byte of the collective's size S."""

    def only(self, selection: Mask | Ints | slice) -> Endpoints:
        """Return the endpoints selected by a mask, indices or a slice."""
        return Endpoints(self.key[selection], self.node[selection], self.gpu[selection], self.weight[selection])

    def ordered(self) -> Endpoints:
        """Return the endpoints sorted by key, then by node."""
        return self.only(np.lexsort((self.node, self.key)))


def runs(keys: Ints, queries: Ints) -> tuple[Ints, Ints]:
    """Return for each of `queries` the index of its first occurrence in the sorted `keys`, and its number of occurrences."""
    start = np.searchsorted(keys, queries)
    return start, np.searchsorted(keys, queries, side="right") - start


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


def weight_elsewhere(endpoints: Endpoints, queries: Endpoints, nodes: int) -> tuple[Floats, Ints]:
    """Return for each of `queries` the weight of the `endpoints` with the same key on other nodes, and the index of one of them.

    The index is -1 if there is none. `endpoints` are sorted by key and node. `nodes` is the number of nodes.
    """
    start, count = runs(endpoints.key, queries.key)
    node_key = endpoints.key * nodes + endpoints.node
    _, on_node = runs(node_key, queries.key * nodes + queries.node)
    total, same_node = (
        _sums(keys, endpoints.weight, query_keys)
        for keys, query_keys in ((endpoints.key, queries.key), (node_key, queries.key * nodes + queries.node))
    )
    first, last = np.minimum(start, len(endpoints.key) - 1), start + count - 1
    elsewhere = np.where(endpoints.node[first] == queries.node, last, first) if len(endpoints.key) else start
    return total - same_node, np.where(count > on_node, elsewhere, -1)


def _sums(keys: Ints, weight: Floats, queries: Ints) -> Floats:
    """Return for each of `queries` the sum of `weight` over the items with that key; 0 without items."""
    distinct_keys, inverse = np.unique(np.concatenate([keys, queries]), return_inverse=True)
    return summed(inverse[: len(keys)], weight, len(distinct_keys))[inverse[len(keys) :]]


class Side(NamedTuple):
    """One end of all routes between nodes, as columns over its endpoints."""

    endpoints: Endpoints
    """Endpoints whose keys are group · rails + rail."""
    route_class: Ints
    """Routing class of each endpoint; meaningful only among endpoints with the same key."""
    nic_position: Ints
    """Position of each endpoint's NIC in the order of rails."""
    seconds: Floats
    """Latency from the GPU to its NIC or from the NIC to its GPU, in seconds."""


class Classes(NamedTuple):
    """Routing classes of one side, as columns sorted by key."""

    endpoints: Endpoints
    """Endpoints, sorted by key, class and node."""
    key: Ints
    """Key of each class, as in Endpoints."""
    weight: Floats
    """Bytes of all endpoints of the class per byte of S."""
    start: Ints
    """Index of the first endpoint of each class."""
    size: Ints
    """Number of endpoints of each class."""
    seconds: Floats
    """Latency of each endpoint, as in Side."""
    slow: Ints
    """Indices of the slowest endpoint of each class, and of the slowest on any other node (the first one without another node),
    an array (2, classes)."""
    nic_range: Ints
    """Positions of the first and of the last NIC of each class, an array (2, classes)."""

    @property
    def members(self) -> Ints:
        """Index of the class of each endpoint."""
        return np.repeat(np.arange(len(self.size)), self.size)


def classes(side: Side) -> Classes:
    """Return the routing classes of one side: endpoints with equal key and `route_class` form a class."""
    order = np.lexsort((side.endpoints.node, side.route_class, side.endpoints.key))
    endpoints, seconds = side.endpoints.only(order), side.seconds[order]
    number, nic_position = side.route_class[order], side.nic_position[order]
    start = np.flatnonzero((np.diff(endpoints.key, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
    size = np.diff(start, append=len(number))
    slowest = _first_largest(seconds, start, size)
    elsewhere = endpoints.node != np.repeat(endpoints.node[slowest], size)
    second = _first_largest(np.where(elsewhere, seconds, -1.0), start, size)
    return Classes(
        endpoints,
        endpoints.key[start],
        np.add.reduceat(endpoints.weight, start),
        start,
        size,
        seconds,
        np.stack([slowest, np.where(elsewhere[second], second, slowest)]),
        np.stack([np.minimum.reduceat(nic_position, start), np.maximum.reduceat(nic_position, start)]),
    )


def _first_largest(values: Floats, start: Ints, size: Ints) -> Ints:
    """Return the index of the first largest value in each run of `size` values from `start` on (runs,)."""
    largest = np.repeat(np.maximum.reduceat(values, start), size)
    index: Ints = np.minimum.reduceat(np.where(values == largest, np.arange(len(values)), len(values)), start)
    return index


class Pairs(NamedTuple):
    """Pairs of sending and receiving classes with equal keys."""

    out: Classes
    """Classes of senders."""
    into: Classes
    """Classes of receivers."""
    start: Ints
    """Index of the first class of `into` with the key of each class of `out`."""
    size: Ints
    """Number of classes of `into` with the key of each class of `out`."""
    rails: int
    """Number of rails; a key is group · rails + rail."""

    @property
    def routes(self) -> int:
        """Number of pairs of classes."""
        return int(self.size.sum())

    def blocks(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield, block by block, arrays (i, j, bytes per byte of S) over pairs of a class i of `out` and a class j of `into`."""
        number = np.cumsum(self.size) - self.size  # of the first pair of each class
        pair, inside = _inside_classes(self.out, self.into, number - self.start)
        for first, end in blocks(self.size):
            i, j = ragged(self.start[first:end], self.size[first:end])
            i += first
            weight = self.out.weight[i] * self.into.weight[j]
            low, high = np.searchsorted(pair, [number[first], number[end - 1] + self.size[end - 1]])
            # Bytes that stay in a node do not cross a NIC. The difference of equal sums can be -1e-17, hence the maximum.
            weight[pair[low:high] - number[first]] -= inside[low:high]
            yield i, j, np.maximum(weight, 0.0)


def paired(out: Side, into: Side, rails: int) -> Pairs:
    """Return the pairs of a class of `out` and a class of `into` with the same key."""
    senders, receivers = classes(out), classes(into)
    return Pairs(senders, receivers, *runs(receivers.key, senders.key), rails)


def _inside_classes(out: Classes, into: Classes, shift: Ints) -> tuple[Ints, Floats]:
    """Return the pairs of classes that share a node, and the bytes of each that stay inside nodes, per byte of S.

    `shift` (classes of `out`,) is added to the index of the class of `into` to number the pairs.
    """
    nodes = 1 + int(max(out.endpoints.node.max(), into.endpoints.node.max()))
    (a, out_key, sent), (b, in_key, received) = (_by_node(side, nodes) for side in (out, into))
    shared = [(shift[a[i]] + b[j], sent[i] * received[j]) for i, j in equal_pairs(out_key, in_key)]
    return _summed(*(np.concatenate(arrays) for arrays in zip((a[:0], sent[:0]), *shared, strict=True)))


def _by_node(side: Classes, nodes: int) -> tuple[Ints, Ints, Floats]:
    """Return three columns sorted by the second: class, key · nodes + node, and weight of the class on that node."""
    member, node = side.members, side.endpoints.node
    start = np.flatnonzero((np.diff(member, prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0))
    node_key = (side.endpoints.key * nodes + node)[start]
    order = np.argsort(node_key, kind="stable")
    return member[start][order], node_key[order], np.add.reduceat(side.endpoints.weight, start)[order]


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
        self.nic_position = np.full((2, self.links), -1)
        for positions, nics in zip(self.nic_position, self.nics, strict=True):
            positions[nics] = np.arange(len(nics))
        self.low = np.full((2, self.links), _NOWHERE)
        self.high = np.full((2, self.links), -1)
        self.dense = np.zeros(groups * self.links) if groups * self.links <= _DENSE else None
        self.sums: list[tuple[Ints, Floats]] = []

    def add(
        self, routes: Routes, group: Ints, weight: Floats, part: Mask | None = None, nic_range: Ints | None = None
    ) -> None:
        """Add `weight` bytes per byte of S on each route to its links, or to those of its links in `part` (links,).

        `group` is the group of each route. `nic_range` (4, routes) has the positions of the first and last NIC that bytes leave
        by and arrive by; None for routes inside nodes.
        """
        route, link, share = np.repeat(np.arange(len(weight)), np.diff(routes.start)), routes.links, routes.share
        if part is not None:
            in_part = np.flatnonzero(part[link])
            route, link, share = route[in_part], link[in_part], share[in_part]
        self._sum(group[route] * self.links + link, weight[route] * share)
        if nic_range is not None:
            inner = np.flatnonzero(self.between[link])
            route, link = route[inner], link[inner]
            for side in (0, 1):
                np.minimum.at(self.low[side], link, nic_range[2 * side][route])
                np.maximum.at(self.high[side], link, nic_range[2 * side + 1][route])

    def check(self, routes: int) -> None:
        """Raise TooManyRoutesError if `routes`, a number of routes, are too many to load them one by one."""
        limit = MOST // width(self.topology)
        if routes > limit:
            raise TooManyRoutesError(
                f"the routing and the faults of this cluster give the pairs of an all-to-all {routes} different routes, more "
                f"than {limit} at once; use smaller groups, or adaptive routing"
            )

    def nic_ranges_of(self, routes: Routes) -> Ints | None:
        """Return `nic_range` of `add` for routes with one NIC at each end; -1 for a route without NICs, None without any NICs."""
        if self.between.all():
            return None
        route, link = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start)), routes.links
        nic_position = np.full((2, len(routes.latency)), -1)
        for side in (0, 1):
            crossed = np.flatnonzero(self.nic_position[side][link] >= 0)
            nic_position[side][route[crossed]] = self.nic_position[side][link[crossed]]
        return nic_position.repeat(2, axis=0)

    def seconds(self, routes: Routes, part: Mask) -> Floats:
        """Return the latency of each route on the links in `part`, in seconds."""
        route = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start))
        in_part = np.flatnonzero(part[routes.links])
        latency = self.topology.latency[routes.links[in_part]] * routes.share[in_part]
        return summed(route[in_part], latency, len(routes.latency))

    def note_latency(self, group: Ints, latency: Floats) -> None:
        """Increase the recorded latency of each group to the largest of its routes' `latency`, in seconds."""
        np.maximum.at(self.latency, group, latency)

    def _sum(self, key: Ints, weight: Floats) -> None:
        """Add each weight to the total of its key, group · links + link: in a dense array, or else a list of sums per call."""
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
    """Return each of `nics` once, sorted by its rail. `rails` has the rail of each entry and broadcasts to `nics`."""
    rail = np.broadcast_to(rails, nics.shape).ravel()
    distinct_nics, first = np.unique(nics.ravel(), return_index=True)
    return distinct_nics[np.argsort(rail[first], kind="stable")]


def _summed(key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Return the distinct keys, ascending, and the sum of the weights of each."""
    distinct_keys, inverse = np.unique(key, return_inverse=True)
    return distinct_keys, summed(inverse, weight, len(distinct_keys))
