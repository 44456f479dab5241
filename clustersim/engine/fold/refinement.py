"""Ranks, groups and links that are alike become one, by colour refinement.

The vertices are the job's ranks, its communication groups and the links that can be short; edges say who is a member of
which group and which group loads which link by how much. Refinement splits vertices until all of one colour see the same
colours in the same numbers: an equitable partition, on whose cells max-min rates and hence all times are constant. The
quotient therefore gives the same result as the whole (docs/explanation.md, "Folding").
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Ints, distinct
from clustersim.engine.traffic import Family, Held, Traffic

Colours = NDArray[np.uint64]
_BATCH = 1 << 15  # edges whose arrays stay in the cache


class Cells(NamedTuple):
    """A partition of one kind of vertex: `of[v]` is the cell of v, `first[c]` its smallest member, `size[c]` its size."""

    of: Ints
    first: Ints
    size: Ints


class Partition(NamedTuple):
    """Which vertices are alike."""

    ranks: Cells
    groups: dict[str, Cells]
    """By name of the family."""
    links: Cells
    """By position among the links that can be short."""
    key: Hashable = None
    """Stands for all of this in questions to the cluster's memo."""


def partition(
    seeds: Ints,
    families: Sequence[Family],
    all_traffic: Sequence[Traffic],
    held: Sequence[Held],
    capacity: NDArray[np.float64],
    fold: bool = True,
) -> Partition:
    """Return the coarsest equitable partition, or with `fold` off the finest: every vertex by itself.

    seeds: an integer for each rank; ranks of different seeds (stage, speed) stay apart. held: the load of each traffic on the
    links that can be short. capacity: of those links, in bytes/s.
    """
    offsets = _offsets(len(seeds), families, len(capacity))
    if fold:
        colours = _refine(
            _seed_colours(seeds, families, all_traffic, capacity, offsets), _edges(families, held, offsets)
        )
    else:
        colours = np.arange(offsets["end"], dtype=np.uint64)
    groups = {f.name: _cells(colours[offsets[f.name] : offsets[f.name] + len(f.ranks)]) for f in families}
    return Partition(_cells(colours[: len(seeds)]), groups, _cells(colours[offsets["links"] : offsets["end"]]))


def _offsets(ranks: int, families: Sequence[Family], links: int) -> dict[str, int]:
    place, result = ranks, {}
    for family in families:
        result[family.name] = place
        place += len(family.ranks)
    return {**result, "links": place, "end": place + links}


def _seed_colours(
    seeds: Ints,
    families: Sequence[Family],
    all_traffic: Sequence[Traffic],
    capacity: NDArray[np.float64],
    offsets: dict[str, int],
) -> Colours:
    colours = np.zeros(offsets["end"], np.uint64)
    colours[: len(seeds)] = _mix(seeds.astype(np.uint64))
    for i, family in enumerate(families):
        at = offsets[family.name]
        colours[at : at + len(family.ranks)] = _mix(np.full(len(family.ranks), 1000 + i, np.uint64))
    for i, t in enumerate(all_traffic):
        at = offsets[t.family]
        colours[at : at + len(t.latency)] += _mix(_rounded(t.latency) ^ _mix(_rounded(t.bound)) ^ np.uint64(i))
    colours[offsets["links"] :] = _mix(_rounded(capacity))
    return colours


class _Edges(NamedTuple):
    """Pairs of vertices that hear each other, and what the edge between them says."""

    one: Ints
    two: Ints
    label: Colours


def _edges(families: Sequence[Family], held: Sequence[Held], offsets: dict[str, int]) -> _Edges:
    """Return the edges from ranks to their groups, and from links to the groups that load them."""
    one, two, label = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for family in families:
        groups, n = family.ranks.shape
        role = _roles(family, n)
        one.append(family.ranks.ravel())
        two.append(offsets[family.name] + np.repeat(np.arange(groups), n))
        label.append(np.tile(_mix(role.astype(np.uint64) + np.uint64(7)), groups))
    for i, h in enumerate(held):
        one.append(offsets["links"] + h.link)
        two.append(offsets[h.family] + h.group)
        label.append(_mix(_rounded(h.weight) + np.uint64(31 + i)))
    return _Edges(np.concatenate(one), np.concatenate(two), np.concatenate(label))


def _roles(family: Family, n: int) -> Ints:
    """Return a number for each position of a group; positions of equal number play the same part in it."""
    if family.name.startswith("p2p"):
        return np.arange(n)
    return np.unique(family.shares, return_inverse=True)[1] if family.shares else np.zeros(n, np.int64)


def _refine(colours: Colours, edges: _Edges) -> Colours:
    """Let every vertex hear the multiset of its neighbours' colours until no colour splits any more."""
    cells = len(distinct(colours))
    while len(edges.one):
        fresh = _mix(colours)
        fresh += _mix(_heard(colours, edges))
        count = len(distinct(fresh))
        if count == cells:
            break
        colours, cells = fresh, count
        if count == len(colours):
            break
    return colours


def _heard(colours: Colours, edges: _Edges) -> Colours:
    """Return what each vertex hears: a sum, so that the order of its neighbours does not matter."""
    total = np.zeros_like(colours)
    for first in range(0, len(edges.one), _BATCH):
        one, two, label = (part[first : first + _BATCH] for part in edges)
        for listens, speaks in ((one, two), (two, one)):
            said = colours[speaks]
            said ^= label
            np.add.at(total, listens, _mix(said))
    return total


def alike(count: int, row: Ints, column: Ints, value: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return the first of each kind of the `count` rows of a sparse matrix, and which kind each row is (hashes as above)."""
    heard = np.zeros(count, np.uint64)
    np.add.at(heard, row, _mix(_rounded(value) ^ _mix(column.astype(np.uint64))))
    _, first, of = np.unique(heard, return_index=True, return_inverse=True)
    return first, of


def _mix(x: Colours) -> Colours:
    """Scramble 64 bits (the finalizer of splitmix64, Steele et al. 2014)."""
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
    """Number the colours by their first member."""
    kinds = distinct(colours)
    of = np.searchsorted(kinds, colours)
    first = np.zeros(len(kinds), np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]  # of those that are written to one place the last one stays
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Cells(rank[of], first[order], np.bincount(of, minlength=len(kinds))[order])
