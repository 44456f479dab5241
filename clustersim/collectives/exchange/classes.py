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
from clustersim.topology.model import Floats, Ints


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
