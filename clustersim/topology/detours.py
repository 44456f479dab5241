"""Links between numbered vertices: their names, and shortest paths around dead links for pairs whose path crosses one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.topology.hops import ClassNumbers, Hops, no_route_error

_KEPT = 256  # largest number of cached trees of shortest paths
_BLOCK = 512  # number of links whose ends are computed together


def crosses(columns: Ints, dead: Mask) -> Ints:
    """Return the indices of the rows of `columns` (paths, width; -1: no link) that cross a dead link. dead: mask (links,)."""
    return np.flatnonzero((dead[columns] & (columns >= 0)).any(axis=1))


class Wired(Hops):
    """Routes over links with known ends, from which the names of links and the paths around dead links are derived.

    Links are grouped into parts, such as levels of a tree or dimensions of a grid. The cables of a part are numbered from 0; its
    links are all cables in one direction, then all in the other.
    """

    __slots__ = ("_ends",)
    _ends: tuple[int, list[int], list[int]]
    """Cached ends of one block of links: its index, the vertices that they start from, the vertices that they lead to."""

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first link of each part, followed by the number of links."""
        raise NotImplementedError

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the vertex that each endpoint is attached to."""
        raise NotImplementedError

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return (lower vertices, upper vertices) of the cables of a part; its first links lead from lower to upper.

        Kinds with one-way cables define `wires` instead.
        """
        raise NotImplementedError

    def name(self, vertex: int) -> str:
        """Return the name of a vertex."""
        raise NotImplementedError

    def wires(self, link: Ints) -> tuple[Ints, Ints]:
        """Return (start vertices, end vertices) of links (both: links)."""
        tail, head = np.empty((2, len(link)), np.int64)
        for part, (first, end) in enumerate(pairwise(self.firsts)):
            in_part = np.flatnonzero((link >= first) & (link < end))
            if len(in_part):
                backward, cable = np.divmod(link[in_part] - first, (end - first) // 2)
                tail[in_part], head[in_part] = directed(backward, *self.cable_ends(part, cable))
        return tail, head

    def port(self, endpoint: int) -> str:
        """Return the name of the vertex that an endpoint is attached to."""
        return self.name(int(self.vertex(np.array([endpoint]))[0]))

    def ends(self, link: int) -> tuple[str, str]:
        """Return the names of the start and the end of a link."""
        block, index = divmod(link, _BLOCK)
        cached = getattr(self, "_ends", None)
        if cached is None or cached[0] != block:  # many links at once take little longer than one
            first = block * _BLOCK
            tails, heads = self.wires(np.arange(first, min(first + _BLOCK, self.firsts[-1])))
            cached = block, tails.tolist(), heads.tolist()
            object.__setattr__(self, "_ends", cached)
        return self.name(cached[1][index]), self.name(cached[2][index])

    def without(self, dead: Mask) -> Hops:
        """Return the paths around the links in the mask `dead` (links,). Raises UnreachableError if a dead link has no detour."""
        return Detours.around(self, dead)


def directed(backward: Mask | Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return (start vertices, end vertices) of links: from `low` to `high`, or reversed for links that are `backward`."""
    return np.where(backward, high, low), np.where(backward, low, high)


@dataclass(frozen=True, slots=True, eq=False)
class Detours(Hops):
    """The paths of `hops`, replaced by shortest paths where they cross a dead link; ties go to the lowest link numbers."""

    hops: Wired
    """Paths if no link is dead."""
    dead: Mask
    """Links that carry nothing, a mask (links,)."""
    tails: Ints
    """Start vertex of each link (links,)."""
    heads: Ints
    """End vertex of each link (links,)."""
    starts: Ints
    """Live links that start at vertex v are `order[starts[v]:starts[v + 1]]`."""
    order: Ints
    """Live links, sorted by start vertex."""
    known: dict[int, Ints] = field(default_factory=dict)
    """Cached trees of shortest paths by start vertex; at most `_KEPT`."""

    @classmethod
    def around(cls, hops: Wired, dead: Mask) -> Detours:
        """Return the paths of `hops` around the links in the mask `dead` (links,).

        Raises UnreachableError if no path is left between the ends of a dead link.
        """
        tails, heads = hops.wires(np.arange(len(dead)))
        order = np.argsort(tails, kind="stable")
        order = order[~dead[order]]
        starts = np.searchsorted(tails[order], np.arange(max(tails.max(), heads.max()) + 2))
        detours = cls(hops, dead, tails, heads, starts, order)
        for link in np.flatnonzero(dead).tolist():  # if all ends of dead links stay connected, so does all else
            detours.path(int(tails[link]), int(heads[link]))
        return detours

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination, both endpoints (pairs, width)."""
        columns = self.hops(source, destination)
        return self.detoured(columns[:, np.newaxis], crosses(columns, self.dead), source, destination)

    def detoured(self, paths: Ints, rows: Ints, source: Ints, destination: Ints) -> Ints:
        """Return `paths` (pairs, paths per pair, links) as a matrix (pairs, columns), with live shortest paths in some rows.

        rows: indices of these pairs. source, destination: endpoints of all pairs. Raises UnreachableError without a live path.
        """
        start_vertices, end_vertices = (self.hops.vertex(end[rows]).tolist() for end in (source, destination))
        shortest = [self.path(u, v) for u, v in zip(start_vertices, end_vertices, strict=True)]
        added_width = max([0, *(len(path) - paths.shape[2] for path in shortest)])
        wide = np.pad(paths, ((0, 0), (0, 0), (0, added_width)), constant_values=-1)
        wide[rows] = -1
        for row, path in zip(rows.tolist(), shortest, strict=True):
            wide[row, 0, : len(path)] = path
        return wide.reshape(len(wide), wide.shape[1] * wide.shape[2])

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination) of each endpoint, as if no link were dead."""
        return self.hops.classes(endpoint)

    def path(self, start: int, end: int) -> list[int]:
        """Return the live links of a shortest path between vertices, in order. Raises UnreachableError if there is none."""
        if start not in self.known:
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known[start] = self._tree(start)
        into, path, here = self.known[start], list[int](), end
        while here != start:
            link = int(into[here])
            if link < 0:
                raise no_route_error(self.hops.name(start), self.hops.name(end))
            path.append(link)
            here = int(self.tails[link])
        return path[::-1]

    def _tree(self, start: int) -> Ints:
        """Return the link by which a breadth-first search from `start` reaches each vertex (vertices,), -1 if it does not."""
        into = np.full(len(self.starts) - 1, -1, np.int64)
        into[start] = np.iinfo(np.int64).max  # marks the start as reached, and is not a link: a path ends there
        front = [start]
        while front:
            next_front = []
            for vertex in front:
                for link in self.order[self.starts[vertex] : self.starts[vertex + 1]].tolist():
                    head = int(self.heads[link])
                    if into[head] < 0:
                        into[head] = link
                        next_front.append(head)
            front = next_front
        return into
