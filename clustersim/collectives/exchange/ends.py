"""Who sends and who receives in an exchange, over all groups, and the pairs that they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.topology.model import Floats, Ints, Mask

BLOCK = 1 << 14
"""Pairs that are looked at together: their arrays stay in the cache."""


class Ends(NamedTuple):
    """Senders or receivers: their `key` (group, or group and rail), node and GPU, and the bytes for each byte of S."""

    key: Ints
    node: Ints
    gpu: Ints
    weight: Floats

    def only(self, kept: Mask | Ints | slice) -> Ends:
        """Return some of the ends."""
        return Ends(self.key[kept], self.node[kept], self.gpu[kept], self.weight[kept])

    def ordered(self) -> Ends:
        """Return the ends sorted by key and node."""
        return self.only(np.lexsort((self.node, self.key)))


def runs(keys: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Return where each asked key begins in sorted `keys`, and how often it stands there."""
    start = np.searchsorted(keys, asked)
    return start, np.searchsorted(keys, asked, side="right") - start


def blocks(counts: Ints) -> Iterator[tuple[int, int]]:
    """Yield spans (first, end) of items that make no more than BLOCK pairs together, or are one; each makes `counts`."""
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


def others(ends: Ends, asked: Ends, nodes: int) -> tuple[Floats, Ints]:
    """Return the weight of all `ends` of the key of each one asked that are on other nodes, and one of these (-1: none).

    ends: ordered. nodes: how many there are.
    """
    start, count = runs(ends.key, asked.key)
    place = ends.key * nodes + ends.node
    _, here = runs(place, asked.key * nodes + asked.node)
    whole, part = (
        _sums(own, ends.weight, wanted)
        for own, wanted in ((ends.key, asked.key), (place, asked.key * nodes + asked.node))
    )
    first, last = np.minimum(start, len(ends.key) - 1), start + count - 1
    one = np.where(ends.node[first] == asked.node, last, first) if len(ends.key) else start
    return whole - part, np.where(count > here, one, -1)


def _sums(keys: Ints, weight: Floats, asked: Ints) -> Floats:
    """Return the sum of the weights of each asked key."""
    found, inverse = np.unique(np.concatenate([keys, asked]), return_inverse=True)
    sums = np.asarray(np.bincount(inverse[: len(keys)], weight, len(found)), np.float64)
    return sums[inverse[len(keys) :]]
