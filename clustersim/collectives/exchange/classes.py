"""What an exchange puts on the links between NICs, from class to class.

A class are the ends of a group (and rail) that the routing cannot tell apart, such as the NICs of a leaf under adaptive routing;
a hash tells all apart. Bytes from class to class are the product of what the one sends and the other receives, less what
stays in a node, and go the way of any of their pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.collectives.exchange.ends import Ends, blocks, crossed, ragged, runs
from clustersim.collectives.exchange.ledger import Ledger
from clustersim.topology.model import Floats, Ints, Mask

SAMPLE = 1 << 18
"""Ways that are tried to find one that takes as long as any could."""


class Side(NamedTuple):
    """One side of the ways between nodes. ends: keys are group and rail. number: of the class, in its key. place: of the NIC
    among all, in the ledger's order. seconds: to the NIC or from it."""

    ends: Ends
    number: Ints
    place: Ints
    seconds: Floats


class Classes(NamedTuple):
    """The classes of one side, sorted by key: those of `ends` (sorted likewise) from `start`, `size` of them.

    slow: of those with the most seconds, the ends on the first and on the last node, (2, classes). spans: places of the
    first and the last NIC.
    """

    ends: Ends
    key: Ints
    weight: Floats
    start: Ints
    size: Ints
    slow: Ints
    spans: Ints

    @property
    def members(self) -> Ints:
        """The class of each end."""
        return np.repeat(np.arange(len(self.size)), self.size)

    def ends_of(self, number: Ints) -> Ints:
        """Return the ends of some classes on their first and on their last node, (2, classes)."""
        return self.start[number] + np.stack([number * 0, self.size[number] - 1])


def classes(side: Side) -> Classes:
    """Return the classes of one side."""
    order = np.lexsort((side.ends.node, side.number, side.ends.key))
    ends, number, place, seconds = side.ends.only(order), *(x[order] for x in side[1:])
    start = np.flatnonzero((np.diff(ends.key, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
    count = np.diff(start, append=len(number))
    at = np.arange(len(number))
    slow = seconds >= np.repeat(np.maximum.reduceat(seconds, start), count) * (1 - 1e-12)
    return Classes(
        ends,
        ends.key[start],
        np.add.reduceat(ends.weight, start),
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
    """The pairs of classes with equal keys: class i of `one` with `size[i]` of `two` from `start[i]`.

    A key is the group times `rails`, plus the rail.
    """

    one: Classes
    two: Classes
    start: Ints
    size: Ints
    rails: int

    @property
    def ways(self) -> int:
        """How many there are."""
        return int(self.size.sum())

    def blocks(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield classes i and j of either side, and the bytes from the one to the other."""
        number = np.cumsum(self.size) - self.size  # of the first pair of each class
        pair, inside = _inside(self.one, self.two, number - self.start)
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


def lay(ledger: Ledger, pairs: Pairs, part: Mask, timed: bool) -> Floats:
    """Lay the bytes from class to class on the links in `part`, and return the most seconds on them, by group.

    timed: the ledger is told how long whole ways take, too.
    """
    most = np.zeros(len(ledger.latency))
    for i, j, weight in pairs.blocks():
        s, d, met, sure = _slowest(pairs, i, j)
        if timed:
            wait(ledger, pairs, i[met & ~sure], j[met & ~sure])
        routes = ledger.topology.route(pairs.one.ends.gpu[s[met]], pairs.two.ends.gpu[d[met]])
        group = pairs.one.key[i[met]] // pairs.rails
        if timed:
            ledger.wait(group, routes.latency)
        spans = np.concatenate([pairs.one.spans[:, i[met]], pairs.two.spans[:, j[met]]])
        ledger.lay(routes, group, weight[met], part, spans)
        np.maximum.at(most, group, ledger.seconds(routes, part))
    return most


def _slowest(pairs: Pairs, i: Ints, j: Ints) -> tuple[Ints, Ints, Mask, Mask]:
    """Return for each pair of classes one of its ways between nodes, if there is any, and whether none takes longer."""
    one, two = pairs.one, pairs.two
    s, d, sure = _met(one, two, one.slow[:, i], two.slow[:, j])
    met, rest = sure.copy(), np.flatnonzero(~sure)  # the slowest of both classes are all on one node
    s[rest], d[rest], met[rest] = _met(one, two, one.ends_of(i[rest]), two.ends_of(j[rest]))
    return s, d, met, sure


def _met(one: Classes, two: Classes, sources: Ints, destinations: Ints) -> tuple[Ints, Ints, Mask]:
    """Return an end of either side on different nodes, and whether there are; given those on the first and last node."""
    s, d = sources[0], destinations[0]
    s = np.where(one.ends.node[s] == two.ends.node[d], sources[1], s)
    d = np.where(one.ends.node[s] == two.ends.node[d], destinations[1], d)
    return s, d, one.ends.node[s] != two.ends.node[d]


def wait(ledger: Ledger, pairs: Pairs, i: Ints, j: Ints) -> None:
    """Take note of how long all ways from classes i to classes j take."""
    one, two = pairs.one, pairs.two
    ways = one.size[i] * two.size[j]
    for first, end in blocks(ways):
        p, x = ragged(np.zeros(end - first, np.int64), ways[first:end])
        a, b = i[first:end][p], j[first:end][p]
        s, d = one.start[a] + x // two.size[b], two.start[b] + x % two.size[b]
        far = one.ends.node[s] != two.ends.node[d]
        routes = ledger.topology.route(one.ends.gpu[s[far]], two.ends.gpu[d[far]])
        ledger.wait(one.key[a[far]] // pairs.rails, routes.latency)


def sample(ledger: Ledger, pairs: Pairs, most: Floats) -> bool:
    """Take note of how long some ways take, and return whether the slowest of every group is as slow as it could be.

    most: seconds that no way of a group exceeds.
    """
    sources, destinations = pairs.one.ends, pairs.two.ends
    start, size = runs(destinations.key, sources.key)
    draw = np.random.default_rng(0)
    tried = draw.permutation(np.repeat(np.flatnonzero(size), -(-SAMPLE // len(size))))[:SAMPLE]
    other = start[tried] + draw.integers(size[tried])
    far = sources.node[tried] != destinations.node[other]
    routes = ledger.topology.route(sources.gpu[tried[far]], destinations.gpu[other[far]])
    ledger.wait(sources.key[tried[far]] // pairs.rails, routes.latency)
    return bool((ledger.latency >= most * (1 - 1e-12)).all())


def _inside(one: Classes, two: Classes, shift: Ints) -> tuple[Ints, Floats]:
    """Return the pairs of classes, by number, that meet in nodes, and the product of what they send and receive there."""
    nodes = 1 + int(max(one.ends.node.max(), two.ends.node.max()))
    (a, key, sent), (b, other, received) = (_by_node(side, nodes) for side in (one, two))
    found = [(shift[a[i]] + b[j], sent[i] * received[j]) for i, j in crossed(key, other)]
    pair, inverse = np.unique(np.concatenate([p for p, _ in found] or [a[:0]]), return_inverse=True)
    return pair, np.asarray(
        np.bincount(inverse, np.concatenate([w for _, w in found] or [sent[:0]]), len(pair)), np.float64
    )


def _by_node(side: Classes, nodes: int) -> tuple[Ints, Ints, Floats]:
    """Return the class, the key and node as one number, and the weight of what each class has in each node, by the second."""
    member, node = side.members, side.ends.node
    start = np.flatnonzero((np.diff(member, prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0))
    place = (side.ends.key * nodes + node)[start]
    order = np.argsort(place, kind="stable")
    return member[start][order], place[order], np.add.reduceat(side.ends.weight, start)[order]
