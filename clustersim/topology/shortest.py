"""Shortest paths through an explicit graph, by cables: all of them at once, one by a hash, or the first in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries, offsets, summed
from clustersim.config.fabric import ExplicitRouting
from clustersim.topology.detours import crosses
from clustersim.topology.fat_tree_routing import UInts, route_hash, splitmix
from clustersim.topology.hops import ClassNumbers, Hops, no_route_error

FIRST, SECOND = "\0first", "\0second"
"""Vertices for the NICs of the first and of the second half of the nodes; no switch has such a name."""


@dataclass(frozen=True, slots=True, eq=False)
class ShortestPaths(Hops):
    """Shortest paths. With adaptive routing every pair spreads over all of them, otherwise each queue pair uses one."""

    routing: ExplicitRouting
    table: NextHops
    """Links on shortest paths if no link is dead."""
    leaf_of: Ints
    """Leaf of each endpoint (endpoints,)."""
    around: NextHops | None = None
    """Links on paths without dead ones; a single path uses them only if it would otherwise cross a dead link."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination (pairs, width); -1 fills shorter paths.

        With adaptive routing a row has the links of all shortest paths, otherwise one path per queue pair, side by side.
        """
        if self.routing.mode == "adaptive":
            return self.spread(source, destination)[0]
        qps = self.routing.qps
        queue, pairs = np.tile(np.arange(qps), len(source)), (source.repeat(qps), destination.repeat(qps))
        columns = self._walk(self.table, *pairs, queue)
        if self.around is not None and self.around.dead is not None:
            blocked = crosses(columns, self.around.dead)
            detours = self._walk(self.around, pairs[0][blocked], pairs[1][blocked], queue[blocked])
            added_width = max(detours.shape[1] - columns.shape[1], 0)
            columns = np.pad(columns, ((0, 0), (0, added_width)), constant_values=-1)
            columns[blocked] = -1
            columns[blocked, : detours.shape[1]] = detours
        return columns.reshape(len(source), -1) if len(source) else np.empty((0, 0), np.int64)

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats | None]:
        """Return the links from each source to its destination, and the share of the pair's bytes on each (pairs, width).

        With adaptive routing each link appears once, and each switch spreads bytes in proportion to its links' bytes/s. Otherwise
        the shares are None, as queue pairs carry equal shares.
        """
        if self.routing.mode != "adaptive":
            return self(source, destination), None
        table = self.around or self.table
        leaf_pair = self.leaf_of[source] * table.wires.leaves + self.leaf_of[destination]
        pair, pair_of = np.unique(leaf_pair, return_inverse=True)
        links, shares = table.spread(*np.divmod(pair, table.wires.leaves))
        return links[pair_of], shares[pair_of]

    def _walk(self, table: NextHops, source: Ints, destination: Ints, queue: Ints) -> Ints:
        """Return the links of one route per pair, hop by hop (pairs, width); -1 fills shorter routes.

        queue: number of each pair's queue pair, which enters the hash that chooses among equally short ways.
        """
        at, to = self.leaf_of[source], self.leaf_of[destination]
        longest = int(table.distance[at, to].max(initial=0))
        columns = np.full((len(at), longest), -1, np.int64)
        key = route_hash(source, destination, queue, self.routing.seed)
        for hop in range(longest):
            rows = np.flatnonzero(at != to)
            links = table.link[self._entry(table, table.rows(at[rows], to[rows]), key[rows])]
            columns[rows, hop] = links
            at[rows] = table.wires.head[links]
            key = splitmix(key)
        return columns

    def _entry(self, table: NextHops, row: Ints, key: UInts) -> Ints:
        """Return the index of the chosen entry in `table.link` for each `row` of the table: its first, or by the hash `key`."""
        first = table.start[row]
        if self.routing.mode == "first":
            return first
        base, end = table.cables[first], table.cables[table.start[row + 1]]
        cable = base + key % (end - base).astype(np.uint64)
        return np.searchsorted(table.cables, cable, "right") - 1

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination): the leaf of each endpoint; for a hash, the endpoint itself."""
        numbers = endpoint if self.routing.mode == "ecmp" else self.leaf_of[endpoint]
        return numbers, numbers

    def without(self, dead: Mask) -> ShortestPaths:
        """Return the paths around dead links. Raises UnreachableError if a leaf is cut off."""
        return replace(self, around=next_hops(self.table.wires, dead))


# The cables that lead to each leaf of an explicit graph by a shortest path, by breadth-first searches from all leaves at once.


class Wires(NamedTuple):
    """Directed links between vertices. The two directions of a trunk are half the number of links apart."""

    tail: Ints
    """Start vertex of each link (links,)."""
    head: Ints
    """Vertex at which each link ends (links,)."""
    rate: Floats
    """Bytes/s of each link (links,)."""
    cables: Floats
    """Physical cables per link (links,)."""
    leaves: int
    """Number of leaves, to which endpoints are attached; they are the first vertices."""
    names: tuple[str, ...]
    """Names of the vertices."""

    def ends(self, link: int) -> tuple[str, str]:
        """Return the names of the start and the end of a link."""
        return self.names[self.tail[link]], self.names[self.head[link]]


class NextHops(NamedTuple):
    """Links on shortest paths, for each leaf and vertex."""

    wires: Wires
    """The graph, with V vertices."""
    distance: Ints
    """Number of links from each vertex to each leaf, -1 without a path (vertices, leaves)."""
    start: Ints
    """Entries from vertex v to leaf d are start[d·V + v] to start[d·V + v + 1] of the next three fields (leaves · V + 1,)."""
    link: Ints
    """Link of each entry; entries of one vertex are in the order of the file."""
    part: Floats
    """Share of each entry in the bytes/s of its vertex's entries."""
    cables: Floats
    """Cumulative number of cables before each entry, by which a hash selects an entry."""
    dead: Mask | None = None
    """Mask of links that are left out (links,), or None."""

    def rows(self, at: Ints, to: Ints) -> Ints:
        """Return the index in `start` for the paths from each vertex of `at` to the leaf in `to`."""
        return to * len(self.wires.names) + at

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats]:
        """Return the links on all shortest paths of each pair of leaves, and the share of the pair's bytes on each link.

        Both arrays are (pairs, width), ordered by distance from the source. Shorter rows end with link -1 and share 0.
        """
        row, at, part = np.arange(len(source)), source, np.ones(len(source))
        rows, links, shares, vertices = [row[:0]], [row[:0]], [part[:0]], len(self.wires.names)
        # one hop of all pairs at a time: bytes of a pair that meet at a vertex continue as one entry, otherwise entries would
        # double at every diamond of the graph
        while (unfinished := at != destination[row]).any():
            row, part, key = row[unfinished], part[unfinished], self.rows(at[unfinished], destination[row[unfinished]])
            branches, entry = np.diff(self.start)[key], entries(self.start, key)
            row, part = row.repeat(branches), part.repeat(branches) * self.part[entry]
            rows.append(row)
            links.append(self.link[entry])
            shares.append(part)
            vertex_key, merged_row = np.unique(row * vertices + self.wires.head[links[-1]], return_inverse=True)
            (row, at), part = np.divmod(vertex_key, vertices), summed(merged_row, part, len(vertex_key))
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable")
        row = row[order]
        column = np.arange(len(row)) - offsets(np.bincount(row, minlength=len(source)))[row]
        all_links = np.full((len(source), int(column.max(initial=-1)) + 1), -1, np.int64)
        all_shares = np.zeros(all_links.shape)
        all_links[row, column], all_shares[row, column] = np.concatenate(links)[order], np.concatenate(shares)[order]
        return all_links, all_shares


def next_hops(wires: Wires, dead: Mask | None = None) -> NextHops:
    """Return the links on shortest paths to each leaf, but not those in mask `dead`. Raises UnreachableError without a path."""
    count, vertices = len(wires.tail), len(wires.names)
    order = np.lexsort((np.arange(count) % max(count // 2, 1), wires.tail))  # a vertex's links as in the file
    order = order if dead is None else order[~dead[order]]
    tail, head = wires.tail[order], wires.head[order]
    distance = _distances(tail, head, vertices, wires.leaves)
    if dead is not None and len(unreached := np.argwhere(distance[: wires.leaves] < 0)):
        raise no_route_error(*(wires.names[vertex] for vertex in unreached[0].tolist()))
    # a link is on a shortest path to a leaf exactly if its head is one step closer to it
    leaf, used = np.nonzero((distance[tail] == distance[head] + 1).T & (distance[head] >= 0).T)
    row, link = leaf * vertices + tail[used], order[used]
    start = offsets(np.bincount(row, minlength=wires.leaves * vertices))
    part = wires.rate[link] / np.bincount(row, wires.rate[link], wires.leaves * vertices)[row]
    return NextHops(wires, distance, start, link, part, np.append(0.0, np.cumsum(wires.cables[link])), dead)


def _distances(tail: Ints, head: Ints, vertices: int, leaves: int) -> Ints:
    """Return the number of links from each vertex to each leaf (vertices, leaves), -1 without a path; `tail` is ascending."""
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


def max_flow(links: Iterable[tuple[str, str, float]]) -> float:
    """Return the largest flow in bytes/s from FIRST to SECOND over links (tail, head, bytes/s) (Ford, Fulkerson 1956).

    Parallel links add up. Return 0 if no link starts or ends at FIRST.
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for tail, head, rate in links:
        parallel = graph.get_edge_data(tail, head, {"capacity": 0.0})["capacity"]
        graph.add_edge(tail, head, capacity=parallel + rate)
    return float(nx.maximum_flow_value(graph, FIRST, SECOND)) if FIRST in graph else 0.0
