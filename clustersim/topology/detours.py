"""Shortest paths around dead links, for the few pairs whose own path crosses one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.topology.hops import ClassNumbers, Hops, apart

_KEPT = 256  # trees of shortest paths


def crosses(columns: Ints, dead: Mask) -> Ints:
    """Return the rows of a matrix of links (-1: none) that cross a dead one."""
    return np.flatnonzero((dead[columns] & (columns >= 0)).any(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Detours(Hops):
    """The paths of `hops`, and shortest ones (of equals the one whose links come first) where those cross a dead link."""

    hops: Hops
    """The paths while nothing is dead."""
    dead: Mask
    """Links that carry nothing (links,)."""
    tails: Ints
    """The vertex that each link leads from (links,)."""
    heads: Ints
    """The vertex that it leads to (links,)."""
    starts: Ints
    """The links that live from vertex v are `order[starts[v]:starts[v + 1]]`."""
    order: Ints
    """Links that live, by the vertex that they lead from."""
    share: int
    """Endpoint e hangs on vertex e // share."""
    name: Callable[[int], str]
    """What a vertex is called."""
    known: dict[int, Ints] = field(default_factory=dict)
    """Trees of shortest paths that were asked for, by their start; at most `_KEPT`."""

    @classmethod
    def around(
        cls,
        hops: Hops,
        dead: Mask,
        wires: tuple[Ints, Ints],
        share: int,
        name: Callable[[int], str],
    ) -> Detours:
        """Return the paths around dead links. Raises UnreachableError when a dead link cannot be gone around."""
        tails, heads = wires
        order = np.argsort(tails, kind="stable")
        order = order[~dead[order]]
        starts = np.searchsorted(tails[order], np.arange(max(tails.max(), heads.max()) + 2))
        found = cls(hops, dead, tails, heads, starts, order, share, name)
        for link in np.flatnonzero(dead).tolist():  # if both ends of each dead link still meet, so does everything else
            found.path(int(tails[link]), int(heads[link]))
        return found

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        columns = self.hops(source, destination)
        rows = crosses(columns, self.dead)
        a, b = (self._vertex(e[rows]).tolist() for e in (source, destination))
        paths = [self.path(u, v) for u, v in zip(a, b, strict=True)]
        width = max([columns.shape[1], *map(len, paths)])
        wide = np.full((len(columns), width), -1, np.int64)
        wide[:, : columns.shape[1]] = columns
        for row, path in zip(rows.tolist(), paths, strict=True):
            wide[row] = [*path, *[-1] * (width - len(path))]
        return wide

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the class of each endpoint on the paths without dead links; endpoints of one class hang on one vertex."""
        return self.hops.classes(endpoint)

    def _vertex(self, endpoint: Ints) -> Ints:
        return endpoint // self.share

    def path(self, start: int, end: int) -> list[int]:
        """Return the links of a shortest path. Raises UnreachableError when there is none."""
        if start not in self.known:
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known[start] = self._tree(start)
        into, path, here = self.known[start], list[int](), end
        while here != start:
            link = int(into[here])
            if link < 0:
                raise apart(self.name(start), self.name(end))
            path.append(link)
            here = int(self.tails[link])
        return path[::-1]

    def _tree(self, start: int) -> Ints:
        """Return the link by which a breadth-first search from `start` enters each vertex, -1 where it does not come."""
        into = np.full(len(self.starts) - 1, -1, np.int64)
        into[start] = np.iinfo(np.int64).max  # known, and no link: a path ends there
        front = [start]
        while front:
            after = []
            for vertex in front:
                for link in self.order[self.starts[vertex] : self.starts[vertex + 1]].tolist():
                    head = int(self.heads[link])
                    if into[head] < 0:
                        into[head] = link
                        after.append(head)
            front = after
        return into
