"""Equivalent ranks, groups and links are merged by colour refinement.

The vertices are the job's ranks, its communication groups and the links that can be short; edges say who is a member of
which group and which group loads which link by how much. Refinement splits vertices until all of one colour see the same
colours in the same numbers: an equitable partition, on whose cells max-min rates and hence all times are constant. The
quotient therefore gives the same result as the whole (docs/explanation.md, "Folding").
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Ints, distinct
from clustersim.engine.traffic import Family, Traffic

Colours = NDArray[np.uint64]
_BATCH = 1 << 15  # edges whose arrays stay in the cache


class Cells(NamedTuple):
    """A partition of one kind of vertex: `of[v]` is the cell of v, `first[c]` its smallest member, `size[c]` its size."""

    of: Ints
    first: Ints
    size: Ints


class Partition(NamedTuple):
    """Cells of equivalent ranks, groups and links."""

    ranks: Cells
    groups: dict[str, Cells]
    """{family: cells of its groups}"""
    links: Cells
    """Cells of links, by index among the links that can be bottlenecks."""
    key: Hashable = None
    """Key of this partition in the cluster's cache."""


def partition(
    seeds: Ints,
    families: Sequence[Family],
    all_traffic: Sequence[Traffic],
    loads: Sequence[Traffic],
    capacity: NDArray[np.float64],
    fold: bool = True,
) -> Partition:
    """Return the coarsest equitable partition; with `fold` off the finest, with every vertex in its own cell.

    seeds: an integer per rank; ranks of different seeds (stage, speed) stay separate. loads: loads of each traffic on the links
    that can be bottlenecks. capacity: bytes/s of those links.
    """
    starts = dict(zip((f.name for f in families), _starts(families), strict=False))
    count = sum(len(f.ranks) for f in families)
    if fold:
        own = _group_colours(families, all_traffic, starts, count)
        first = _mix(seeds.astype(np.uint64)), own, _mix(_rounded(capacity))
        ranks, groups, links = _refine(*first, _members(families, starts), _loading(loads, starts))
    else:
        ranks, groups, links = (np.arange(n, dtype=np.uint64) for n in (len(seeds), count, len(capacity)))
    of_families = {f.name: _cells(groups[starts[f.name] :][: len(f.ranks)]) for f in families}
    return Partition(_cells(ranks), of_families, _cells(links))


def _starts(families: Sequence[Family]) -> list[int]:
    """Return the number of the first group of each family, with all groups numbered consecutively."""
    return [0, *accumulate(len(family.ranks) for family in families)]


def _group_colours(
    families: Sequence[Family], all_traffic: Sequence[Traffic], starts: Mapping[str, int], count: int
) -> Colours:
    """Return first colours of all groups: equal for groups of one family with the same latency and rate bound."""
    colours = np.zeros(count, np.uint64)
    for i, family in enumerate(families):
        colours[starts[family.name] :][: len(family.ranks)] = _mix(np.array([1000 + i], np.uint64))
    for i, t in enumerate(all_traffic):
        own = colours[starts[t.family] :][: len(t.latency)]
        own += _mix(_rounded(t.latency) ^ _mix(_rounded(t.bound)) ^ np.uint64(i))
    return colours


class _Edges(NamedTuple):
    """Edges between groups and ranks or links: parallel arrays of ends, and a label for each edge."""

    beside: Ints
    group: Ints
    label: Colours


def _members(families: Sequence[Family], starts: Mapping[str, int]) -> _Edges:
    """Return the edges between ranks and their groups."""
    edges = []
    for family in families:
        groups, n = family.ranks.shape
        label = np.tile(_mix(_roles(family, n).astype(np.uint64) + np.uint64(7)), groups)
        edges.append(_Edges(family.ranks.ravel(), starts[family.name] + np.repeat(np.arange(groups), n), label))
    return _joined(edges)


def _loading(loads: Sequence[Traffic], starts: Mapping[str, int]) -> _Edges:
    """Return the edges between links and the groups that load them."""
    return _joined(
        [
            _Edges(one.link, starts[one.family] + one.group, _mix(_rounded(one.weight) + np.uint64(31 + i)))
            for i, one in enumerate(loads)
        ]
    )


def _joined(edges: Sequence[_Edges]) -> _Edges:
    """Return several sets of edges as one, in order."""
    none = _Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
    return _Edges(*map(np.concatenate, zip(none, *edges, strict=True)))


def _roles(family: Family, n: int) -> Ints:
    """Return a role for each position of a group (n,). Positions with one role are interchangeable."""
    if family.name.startswith("p2p"):
        return np.arange(n)
    return np.unique(family.shares, return_inverse=True)[1] if family.shares else np.zeros(n, np.int64)


def _refine(
    ranks: Colours, groups: Colours, links: Colours, members: _Edges, loads: _Edges
) -> tuple[Colours, Colours, Colours]:
    """Give every vertex the multiset of its neighbours' colours until no colour splits.

    Ranks and groups come first, which settles most jobs; links, with many more neighbours, follow afterwards.
    """
    while True:
        while True:
            groups = _hear(groups, ranks, members.group, members.beside, members.label)
            fresh = _hear(ranks, groups, members.beside, members.group, members.label)
            if len(distinct(fresh)) == len(distinct(ranks)):
                break
            ranks = fresh
        links = _hear(links, groups, loads.beside, loads.group, loads.label)
        fresh = _hear(groups, links, loads.group, loads.beside, loads.label)
        if len(distinct(fresh)) == len(distinct(groups)):
            return ranks, groups, links
        groups = fresh


def _hear(own: Colours, others: Colours, listens: Ints, speaks: Ints, label: Colours) -> Colours:
    """Return new colours: a hash of the old colour and the sum of the neighbours' hashes, which does not depend on order."""
    total = np.zeros_like(own)
    for first in range(0, len(label), _BATCH):
        part = slice(first, first + _BATCH)
        said = others[speaks[part]]
        said ^= label[part]
        np.add.at(total, listens[part], _mix(said))
    found = _mix(own)
    found += _mix(total)
    return found


def _mix(x: Colours) -> Colours:
    """Return 64-bit values scrambled by the finalizer of splitmix64 (Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    high = x >> np.uint64(30)
    for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):  # in place: memory is what takes time
        x ^= high
        x *= np.uint64(factor)
        np.right_shift(x, np.uint64(shift), out=high)
    x ^= high
    return x


def _rounded(x: NDArray[np.float64]) -> Colours:
    """Return the bits of x without the last 16 of its mantissa: sums in another order stay equal (to 1e-11)."""
    return (np.ascontiguousarray(x, np.float64).view(np.uint64) + np.uint64(1 << 15)) >> np.uint64(16)


def _cells(colours: Colours) -> Cells:
    """Return the cells of equal colours, numbered by their first member."""
    kinds = distinct(colours)
    of = np.searchsorted(kinds, colours)
    first = np.zeros(len(kinds), np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]  # of those that are written to one place the last one stays
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Cells(rank[of], first[order], np.bincount(of, minlength=len(kinds))[order])
