"""Equivalent ranks, groups and links are merged by colour refinement.

The vertices are the job's ranks, its communication groups and the links that can be bottlenecks. Edges join each group with its
members, and with the links that it loads. Refinement splits colours until all vertices of one colour have the same colours, in
the same numbers, as neighbours: an equitable partition, on whose cells max-min rates and hence all times are constant. So the
folded job has the same times as the whole (docs/explanation.md, "Folding").
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
"""Hash of each vertex; vertices of equal hashes are equivalent so far."""
_BATCH = 1 << 15  # number of edges whose arrays stay in the processor's cache


class Cells(NamedTuple):
    """A partition of ranks, of the groups of a family, or of links."""

    of: Ints
    """Cell of each vertex; cells are numbered by their first member (vertices,)."""
    first: Ints
    """Smallest member of each cell (cells,)."""
    size: Ints
    """Number of members of each cell (cells,)."""


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
    """Return the coarsest equitable partition; without `fold` the finest, in which every vertex is a cell.

    seeds: an integer per rank; ranks with different ones (role, speed) stay separate. families: families on these ranks.
    all_traffic: traffic of all phases, which has latencies and bounds. loads: the same with loads on the links that can be
    bottlenecks, by index among them. capacity: bytes/s of these links.
    """
    # all groups are numbered consecutively, family after family
    starts = [0, *accumulate(len(family.ranks) for family in families)]
    first_group, group_count = dict(zip((f.name for f in families), starts, strict=False)), starts[-1]
    if fold:
        # groups of one family start with one colour if their latencies and bounds are equal in all phases
        group_colours = np.zeros(group_count, np.uint64)
        for i, family in enumerate(families):
            group_colours[first_group[family.name] :][: len(family.ranks)] = _mix(np.array([1000 + i], np.uint64))
        for i, traffic in enumerate(all_traffic):
            family_colours = group_colours[first_group[traffic.family] :][: len(traffic.latency)]
            family_colours += _mix(_rounded(traffic.latency) ^ _mix(_rounded(traffic.bound)) ^ np.uint64(i))
        load_edges = [
            _Edges(t.link, first_group[t.family] + t.group, _mix(_rounded(t.weight) + np.uint64(31 + i)))
            for i, t in enumerate(loads)
        ]
        initial = _mix(seeds.astype(np.uint64)), group_colours, _mix(_rounded(capacity))
        ranks, groups, links = _refine(*initial, _members(families, first_group), _concatenated(load_edges))
    else:
        ranks, groups, links = (np.arange(n, dtype=np.uint64) for n in (len(seeds), group_count, len(capacity)))
    family_cells = {f.name: _cells(groups[first_group[f.name] :][: len(f.ranks)]) for f in families}
    return Partition(_cells(ranks), family_cells, _cells(links))


class _Edges(NamedTuple):
    """Edges between groups and their ranks, or between groups and links, as columns (edges,)."""

    other: Ints
    """Rank or link of each edge."""
    group: Ints
    label: Colours
    """Hash of what distinguishes the edge: the rank's role in the group, or the load on the link."""


def _members(families: Sequence[Family], starts: Mapping[str, int]) -> _Edges:
    """Return the edges between ranks and their groups. starts: number of the first group of each family."""
    edges = []
    for family in families:
        groups, size = family.ranks.shape
        label = np.tile(_mix(_roles(family, size).astype(np.uint64) + np.uint64(7)), groups)
        edges.append(_Edges(family.ranks.ravel(), starts[family.name] + np.repeat(np.arange(groups), size), label))
    return _concatenated(edges)


def _concatenated(edges: Sequence[_Edges]) -> _Edges:
    """Concatenate several sets of edges into one, in order."""
    none = _Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
    return _Edges(*map(np.concatenate, zip(none, *edges, strict=True)))


def _roles(family: Family, n: int) -> Ints:
    """Return a number for each position of a group of n ranks (n,). Positions with equal numbers are interchangeable.

    All positions have 0, except in messages, and except positions with different shares of rows.
    """
    if family.name.startswith("p2p"):
        return np.arange(n)
    return np.unique(family.shares, return_inverse=True)[1] if family.shares else np.zeros(n, np.int64)


def _refine(
    ranks: Colours, groups: Colours, links: Colours, members: _Edges, loads: _Edges
) -> tuple[Colours, Colours, Colours]:
    """Return the colours of ranks, groups and links, refined by the colours of their neighbours until no colour splits.

    Ranks and groups come first, which settles most jobs. Links, with many more neighbours, follow afterwards.
    """
    while True:
        while True:
            groups = _with_neighbours(groups, ranks, members.group, members.other, members.label)
            refined = _with_neighbours(ranks, groups, members.other, members.group, members.label)
            if len(distinct(refined)) == len(distinct(ranks)):
                break
            ranks = refined
        links = _with_neighbours(links, groups, loads.other, loads.group, loads.label)
        refined = _with_neighbours(groups, links, loads.group, loads.other, loads.label)
        if len(distinct(refined)) == len(distinct(groups)):
            return ranks, groups, links
        groups = refined


def _with_neighbours(
    colours: Colours, neighbour_colours: Colours, receivers: Ints, senders: Ints, label: Colours
) -> Colours:
    """Return new colours: hashes of each old colour and the sum of the hashes of its edges, which does not depend on order.

    receivers, senders, label: for each edge, the vertex, its neighbour (by index in `neighbour_colours`) and its label.
    """
    total = np.zeros_like(colours)
    for begin in range(0, len(label), _BATCH):
        batch = slice(begin, begin + _BATCH)
        messages = neighbour_colours[senders[batch]]
        messages ^= label[batch]
        np.add.at(total, receivers[batch], _mix(messages))
    refined = _mix(colours)
    refined += _mix(total)
    return refined


def _mix(x: Colours) -> Colours:
    """Return 64-bit values scrambled by the finalizer of splitmix64 (Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    high = x >> np.uint64(30)
    # in place, because memory limits the speed
    for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
        x ^= high
        x *= np.uint64(factor)
        np.right_shift(x, np.uint64(shift), out=high)
    x ^= high
    return x


def _rounded(x: NDArray[np.float64]) -> Colours:
    """Return the bits of x without the last 16 of its mantissa, so that sums in another order are equal (to 1e-11)."""
    return (np.ascontiguousarray(x, np.float64).view(np.uint64) + np.uint64(1 << 15)) >> np.uint64(16)


def _cells(colours: Colours) -> Cells:
    """Return the cells of equal colours, numbered by their first member."""
    distinct_colours = distinct(colours)
    cell = np.searchsorted(distinct_colours, colours)
    first = np.zeros(len(distinct_colours), np.int64)
    first[cell[::-1]] = np.arange(len(cell))[::-1]  # of several values for one element the last one stays
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return Cells(number[cell], first[order], np.bincount(cell, minlength=len(distinct_colours))[order])
