"""What an exchange puts on the links between NICs, from class to class.

A class are the ends of a group (and rail) that the routing cannot tell apart, such as the NICs of a leaf under adaptive routing;
a hash tells all apart. Bytes from class to class are the product of what the one sends and the other receives, less what
stays in a node, and go the way of any of their pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.collectives.exchange.ends import Ends, blocks, check, crossed, ragged, runs
from clustersim.collectives.exchange.ledger import Ledger
from clustersim.topology.model import Floats, Ints, Mask


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


def between(ledger: Ledger, rails: int, out: Side, into: Side) -> None:
    """Lay the bytes between NICs. Raises InputError when there are too many pairs of classes."""
    if not len(out.number) or not len(into.number):
        return
    one, two = classes(out), classes(into)
    start, count = runs(two.key, one.key)
    check(int(count.sum()))
    number = np.cumsum(count) - count  # of the first pair of each class
    pair, inside = _inside(ledger.topology.nodes, one, two, number - start)
    for first, end in blocks(count):
        i, j = ragged(start[first:end], count[first:end])
        i += first
        weight = one.weight[i] * two.weight[j]
        low, high = np.searchsorted(pair, [number[first], number[end - 1] + count[end - 1]])
        weight[pair[low:high] - number[first]] -= inside[low:high]
        _lay(ledger, rails, one, two, i, j, weight)


def _inside(nodes: int, one: Classes, two: Classes, shift: Ints) -> tuple[Ints, Floats]:
    """Return the pairs of classes, by number, that meet in nodes, and the product of what they send and receive there."""
    (a, key, sent), (b, other, received) = (_by_node(nodes, side) for side in (one, two))
    found = [(shift[a[i]] + b[j], sent[i] * received[j]) for i, j in crossed(key, other)]
    pair, inverse = np.unique(np.concatenate([p for p, _ in found] or [a[:0]]), return_inverse=True)
    return pair, np.asarray(
        np.bincount(inverse, np.concatenate([w for _, w in found] or [sent[:0]]), len(pair)), np.float64
    )


def _by_node(nodes: int, side: Classes) -> tuple[Ints, Ints, Floats]:
    """Return the class, the key and node as one number, and the weight of what each class has in each node, by the second."""
    member, node = side.members, side.ends.node
    start = np.flatnonzero((np.diff(member, prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0))
    place = (side.ends.key * nodes + node)[start]
    order = np.argsort(place, kind="stable")
    return member[start][order], place[order], np.add.reduceat(side.ends.weight, start)[order]


def _lay(ledger: Ledger, rails: int, one: Classes, two: Classes, i: Ints, j: Ints, weight: Floats) -> None:
    """Lay the bytes of pairs (i, j) of classes along the way of a pair of ends that takes longest."""
    s, d, met = _met(one, two, one.slow[:, i], two.slow[:, j])
    rest = np.flatnonzero(~met)  # the slowest of both classes are all on one node
    s[rest], d[rest], met[rest] = _met(one, two, one.ends_of(i[rest]), two.ends_of(j[rest]))
    rest = rest[met[rest]]
    _wait(ledger, rails, one, two, i[rest], j[rest])
    (i, j, s, d), weight = (x[met] for x in (i, j, s, d)), weight[met]
    routes = ledger.topology.route(one.ends.gpu[s], two.ends.gpu[d])
    group = one.key[i] // rails
    ledger.wait(group, routes.latency)
    ledger.lay(
        routes, group, np.maximum(weight, 0.0), ledger.between, np.concatenate([one.spans[:, i], two.spans[:, j]])
    )


def _met(one: Classes, two: Classes, sources: Ints, destinations: Ints) -> tuple[Ints, Ints, Mask]:
    """Return an end of either side on different nodes, and whether there are; given those on the first and last node."""
    s, d = sources[0], destinations[0]
    s = np.where(one.ends.node[s] == two.ends.node[d], sources[1], s)
    d = np.where(one.ends.node[s] == two.ends.node[d], destinations[1], d)
    return s, d, one.ends.node[s] != two.ends.node[d]


def _wait(ledger: Ledger, rails: int, one: Classes, two: Classes, i: Ints, j: Ints) -> None:
    """Take note of how long each way takes from class to class."""
    pairs = one.size[i] * two.size[j]
    for first, end in blocks(pairs):
        p, x = ragged(np.zeros(end - first, np.int64), pairs[first:end])
        a, b = i[first:end][p], j[first:end][p]
        s, d = one.start[a] + x // two.size[b], two.start[b] + x % two.size[b]
        far = one.ends.node[s] != two.ends.node[d]
        ledger.wait(one.key[a[far]] // rails, ledger.topology.route(one.ends.gpu[s[far]], two.ends.gpu[d[far]]).latency)
