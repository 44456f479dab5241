"""Paths of fewest cables through a written-out graph: over all of them at once, by a hash, or the first in the file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries
from clustersim.config.fabric import ExplicitRouting
from clustersim.topology.detours import crosses
from clustersim.topology.fat_tree_routing import UInts, mixed, splitmix
from clustersim.topology.hops import ClassNumbers, Hops, apart


def paths(choice: ExplicitRouting, table: NextHops, leaf_of: Ints) -> AllShortestPaths | OneShortestPath:
    """Return the hops of a graph whose endpoints hang on the leaves `leaf_of`."""
    if choice.mode == "adaptive":
        return AllShortestPaths(table, leaf_of)
    return OneShortestPath(table, leaf_of, choice.qps, choice.seed if choice.mode == "ecmp" else None)


@dataclass(frozen=True, slots=True, eq=False)
class AllShortestPaths(Hops):
    """Adaptive routing: every pair spreads over all shortest paths, at each switch in proportion to the links' bytes/s."""

    table: NextHops
    """The links that lead to each leaf."""
    leaf_of: Ints
    """The leaf of each endpoint (endpoints,)."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        return self.spread(source, destination)[0]

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats]:
        """Return the links from endpoints to endpoints, each once, and the part of the bytes that crosses each."""
        leaves = self.table.wires.leaves
        pair, which = np.unique(self.leaf_of[source] * leaves + self.leaf_of[destination], return_inverse=True)
        row, link, share = self.table.spread(*np.divmod(pair, leaves))
        count = np.bincount(row, minlength=len(pair))
        column = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        links = np.full((len(pair), int(count.max(initial=0))), -1, np.int64)
        shares = np.zeros(links.shape)
        links[row, column], shares[row, column] = link, share
        return links[which], shares[which]

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the leaves of endpoints."""
        return self.leaf_of[endpoint], self.leaf_of[endpoint]

    def without(self, dead: Mask) -> AllShortestPaths:
        """Return the paths around dead links. Raises UnreachableError when a leaf is cut off."""
        found = next_hops(self.table.wires, dead)
        found.check()
        return replace(self, table=found)


@dataclass(frozen=True, slots=True, eq=False)
class OneShortestPath(Hops):
    """One path for each queue pair."""

    table: NextHops
    """The links that lead to each leaf."""
    leaf_of: Ints
    """The leaf of each endpoint (endpoints,)."""
    queues: int
    """Queue pairs of two endpoints."""
    seed: int | None
    """Starts the hash that chooses; None: the path that is first in the file."""
    dead: Mask | None = None
    """Links that carry nothing; only paths that would cross one take another route."""
    around: NextHops | None = None
    """The links that lead there without them."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints, in the columns of one queue pair after the other."""
        queue = np.tile(np.arange(self.queues), len(source))
        pairs = source.repeat(self.queues), destination.repeat(self.queues)
        columns = self._walk(self.table, *pairs, queue)
        if self.dead is not None and self.around is not None:
            bad = crosses(columns, self.dead)
            other = self._walk(self.around, pairs[0][bad], pairs[1][bad], queue[bad])
            wide = np.full((len(columns), max(columns.shape[1], other.shape[1])), -1, np.int64)
            wide[:, : columns.shape[1]] = columns
            wide[bad] = -1
            wide[bad, : other.shape[1]] = other
            columns = wide
        return columns.reshape(len(source), -1) if len(source) else np.empty((0, 0), np.int64)

    def _walk(self, table: NextHops, source: Ints, destination: Ints, queue: Ints) -> Ints:
        at, to = self.leaf_of[source], self.leaf_of[destination]
        longest = int(table.distance[at, to].max(initial=0))
        columns, key = np.full((len(at), longest), -1, np.int64), mixed(source, destination, queue, self.seed or 0)
        for hop in range(longest):
            rows = np.flatnonzero(at != to)
            links = table.link[self._entry(table, table.rows(at[rows], to[rows]), key[rows])]
            columns[rows, hop] = links
            at[rows] = table.wires.head[links]
            key = splitmix(key)
        return columns

    def _entry(self, table: NextHops, row: Ints, key: UInts) -> Ints:
        """Return the entries chosen: the first of each row, or that of the cable which the hash falls on."""
        first = table.start[row]
        if self.seed is None:
            return first
        base, end = table.cables[first], table.cables[table.start[row + 1]]
        cable = base + key % (end - base).astype(np.uint64)
        return np.searchsorted(table.cables, cable, "right") - 1

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the leaves of endpoints; a hash knows every endpoint."""
        found = self.leaf_of[endpoint] if self.seed is None else endpoint
        return found, found

    def without(self, dead: Mask) -> OneShortestPath:
        """Return the paths around dead links. Raises UnreachableError when a leaf is cut off."""
        around = next_hops(self.table.wires, dead)
        around.check()
        return replace(self, dead=dead, around=around)


# Which cables lead to each leaf of a written-out graph by a shortest path, by breadth-first searches from all leaves at once.


class Wires(NamedTuple):
    """Directed links between vertices. Those of one trunk, there and back, are half of their number apart."""

    tail: Ints
    """The vertex that each leads from (links,)."""
    head: Ints
    """The vertex that it leads to (links,)."""
    rate: Floats
    """Bytes/s of each (links,)."""
    cables: Floats
    """Physical cables of each (links,)."""
    leaves: int
    """The first so many vertices are leaves, on which endpoints hang."""
    names: tuple[str, ...]
    """Of the vertices."""


class NextHops(NamedTuple):
    """The links on shortest paths, for each leaf and vertex."""

    wires: Wires
    """The graph, with V vertices."""
    distance: Ints
    """Links from each vertex to each leaf, -1 where there is no path (vertices, leaves)."""
    start: Ints
    """From vertex v to leaf d lead the entries start[d·V + v] to start[d·V + v + 1] of the next three (leaves · V + 1,)."""
    link: Ints
    """The link of each entry; those of one vertex in the order of the file."""
    part: Floats
    """What part of the bytes/s of its vertex's entries each has."""
    cables: Floats
    """The cables of all entries before each: a hash picks a cable, and this says whose."""

    def rows(self, at: Ints, to: Ints) -> Ints:
        """Return the rows of `start` for the paths from vertices to leaves."""
        return to * len(self.wires.names) + at

    def check(self) -> None:
        """Raise UnreachableError unless every leaf has a path to every other."""
        lost = np.argwhere(self.distance[: self.wires.leaves] < 0)
        if len(lost):
            raise apart(*(self.wires.names[vertex] for vertex in lost[0].tolist()))

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Ints, Floats]:
        """Return (row, link, share) of all links on shortest paths from leaves to leaves, ordered by row and distance."""
        row, at, part = np.arange(len(source)), source, np.ones(len(source))
        rows, links, shares = [row[:0]], [row[:0]], [part[:0]]
        # one hop of all pairs at a time: bytes of a pair that come together at a vertex go on as one, or entries would double
        # at every diamond of the graph
        while (on := at != destination[row]).any():
            row, part, key = row[on], part[on], self.rows(at[on], destination[row[on]])
            often, entry = np.diff(self.start)[key], entries(self.start, key)
            row, part = row.repeat(often), part.repeat(often) * self.part[entry]
            rows.append(row)
            links.append(self.link[entry])
            shares.append(part)
            row, at, part = self._met(row, self.wires.head[links[-1]], part)
        order = np.argsort(np.concatenate(rows), kind="stable")
        return np.concatenate(rows)[order], np.concatenate(links)[order], np.concatenate(shares)[order]

    def _met(self, row: Ints, at: Ints, part: Floats) -> tuple[Ints, Ints, Floats]:
        """Return the arrivals at each vertex, by row."""
        met, which = np.unique(row * len(self.wires.names) + at, return_inverse=True)
        row, at = np.divmod(met, len(self.wires.names))
        return row, at, np.asarray(np.bincount(which, part, len(met)), np.float64)


def next_hops(wires: Wires, dead: Mask | None = None) -> NextHops:
    """Return the links on shortest paths to each leaf over what is not dead."""
    count, vertices = len(wires.tail), len(wires.names)
    order = np.lexsort((np.arange(count) % max(count // 2, 1), wires.tail))  # of a vertex in the order of the file
    order = order if dead is None else order[~dead[order]]
    tail, head = wires.tail[order], wires.head[order]
    distance = _distances(tail, head, vertices, wires.leaves)
    # a link is on a shortest path to a leaf exactly if its head is one step closer to it
    leaf, used = np.nonzero((distance[tail] == distance[head] + 1).T & (distance[head] >= 0).T)
    start = np.concatenate(
        ([0], np.cumsum(np.bincount(leaf * vertices + tail[used], minlength=wires.leaves * vertices)))
    )
    link = order[used]
    total = np.bincount(leaf * vertices + tail[used], wires.rate[link], wires.leaves * vertices)
    part = wires.rate[link] / np.repeat(total, np.diff(start))
    return NextHops(wires, distance, start, link, part, np.concatenate(([0.0], np.cumsum(wires.cables[link]))))


def _distances(tail: Ints, head: Ints, vertices: int, leaves: int) -> Ints:
    """Return the links from each vertex to each leaf (vertices, leaves), -1 where there is no path; `tail` ascends."""
    distance = np.full((vertices, leaves), -1, np.int64)
    distance[np.arange(leaves), np.arange(leaves)] = 0
    vertex, first = np.unique(tail, return_index=True)
    # one sweep a step for all leaves at once: `tail` ascends, so reduceat ors the links of each vertex in one call
    for step in range(1, vertices):
        front = (distance == step - 1)[head]
        if not front.any():
            break
        reached = np.zeros((vertices, leaves), bool)
        reached[vertex] = np.logical_or.reduceat(front, first)
        distance[reached & (distance < 0)] = step
    return distance
