"""Which cables lead nearer to each leaf of a written-out graph, by breadth-first searches from all leaves at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.topology.detours import apart
from clustersim.topology.model import Floats, Ints, Mask
from clustersim.topology.rows import entries


class Wires(NamedTuple):
    """Directed links between vertices, of which the first `leaves` are leaves: tail, head, bytes/s and cables of each.

    The links of one trunk, there and back, are half of their number apart.
    """

    tail: Ints
    head: Ints
    rate: Floats
    cables: Floats
    leaves: int
    names: tuple[str, ...]


class Nearer(NamedTuple):
    """The links on shortest paths: from vertex v to leaf d the entries start[d·V + v] to start[d·V + v + 1], in file order.

    part: what part of the bytes/s of those entries each has. cables: sum of the cables of all entries before each.
    distance: links from each vertex to each leaf, -1 where there is no way.
    """

    wires: Wires
    distance: Ints
    start: Ints
    link: Ints
    part: Floats
    cables: Floats

    def after(self, at: Ints, to: Ints) -> Ints:
        """Return the rows of `start` for the ways from vertices to leaves."""
        return to * len(self.wires.names) + at

    def check(self) -> None:
        """Raise UnreachableError unless every leaf has a way to every other."""
        lost = np.argwhere(self.distance[: self.wires.leaves] < 0)
        if len(lost):
            raise apart(*(self.wires.names[vertex] for vertex in lost[0].tolist()))

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Ints, Floats]:
        """Return (row, link, share) of all links on shortest paths from leaves to leaves, ordered by row and distance."""
        row, at, part = np.arange(len(source)), source, np.ones(len(source))
        rows, links, shares = [row[:0]], [row[:0]], [part[:0]]
        while (on := at != destination[row]).any():
            row, part, key = row[on], part[on], self.after(at[on], destination[row[on]])
            often, entry = np.diff(self.start)[key], entries(self.start, key)
            row, part = row.repeat(often), part.repeat(often) * self.part[entry]
            rows.append(row)
            links.append(self.link[entry])
            shares.append(part)
            row, at, part = self._met(row, self.wires.head[links[-1]], part)
        order = np.argsort(np.concatenate(rows), kind="stable")
        return np.concatenate(rows)[order], np.concatenate(links)[order], np.concatenate(shares)[order]

    def _met(self, row: Ints, at: Ints, part: Floats) -> tuple[Ints, Ints, Floats]:
        """Return what has come to each vertex, by row."""
        met, which = np.unique(row * len(self.wires.names) + at, return_inverse=True)
        row, at = np.divmod(met, len(self.wires.names))
        return row, at, np.asarray(np.bincount(which, part, len(met)), np.float64)


def nearer(wires: Wires, dead: Mask | None = None) -> Nearer:
    """Return the links that lead nearer to each leaf over what is not dead."""
    count, vertices = len(wires.tail), len(wires.names)
    order = np.lexsort((np.arange(count) % max(count // 2, 1), wires.tail))  # of a vertex in the order of the file
    order = order if dead is None else order[~dead[order]]
    tail, head = wires.tail[order], wires.head[order]
    distance = _distances(tail, head, vertices, wires.leaves)
    leaf, used = np.nonzero((distance[tail] == distance[head] + 1).T & (distance[head] >= 0).T)
    start = np.concatenate(
        ([0], np.cumsum(np.bincount(leaf * vertices + tail[used], minlength=wires.leaves * vertices)))
    )
    link = order[used]
    total = np.bincount(leaf * vertices + tail[used], wires.rate[link], wires.leaves * vertices)
    part = wires.rate[link] / np.repeat(total, np.diff(start))
    return Nearer(wires, distance, start, link, part, np.concatenate(([0.0], np.cumsum(wires.cables[link]))))


def _distances(tail: Ints, head: Ints, vertices: int, leaves: int) -> Ints:
    """Return the links from each vertex to each leaf (vertices, leaves), -1 where there is no way; `tail` ascends."""
    distance = np.full((vertices, leaves), -1, np.int64)
    distance[np.arange(leaves), np.arange(leaves)] = 0
    vertex, first = np.unique(tail, return_index=True)
    for step in range(1, vertices):
        front = (distance == step - 1)[head]
        if not front.any():
            break
        reached = np.zeros((vertices, leaves), bool)
        reached[vertex] = np.logical_or.reduceat(front, first)
        distance[reached & (distance < 0)] = step
    return distance
