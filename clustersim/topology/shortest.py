"""Paths of fewest cables through a written-out graph: over all of them at once, by a hash, or the first in the file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from clustersim.config.topology import Choice
from clustersim.topology.alike import Classes
from clustersim.topology.cables import UInts, mixed, splitmix
from clustersim.topology.detours import crosses
from clustersim.topology.model import Floats, Ints, Mask
from clustersim.topology.nearer import Nearer, nearer


def paths(choice: Choice, near: Nearer, leaf_of: Ints) -> Everywhere | Walk:
    """Return the hops of a graph whose endpoints hang on the leaves `leaf_of`."""
    if choice.mode == "adaptive":
        return Everywhere(near, leaf_of)
    return Walk(near, leaf_of, choice.qps, choice.seed if choice.mode == "ecmp" else None)


@dataclass(frozen=True, slots=True, eq=False)
class Everywhere:
    """Adaptive routing: every pair spreads over all shortest paths, at each switch in proportion to the links' bytes/s."""

    near: Nearer
    leaf_of: Ints

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        return self.spread(source, destination)[0]

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats]:
        """Return the links from endpoints to endpoints, each once, and the part of the bytes that crosses each."""
        leaves = self.near.wires.leaves
        pair, which = np.unique(self.leaf_of[source] * leaves + self.leaf_of[destination], return_inverse=True)
        row, link, share = self.near.spread(*np.divmod(pair, leaves))
        count = np.bincount(row, minlength=len(pair))
        column = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        links = np.full((len(pair), int(count.max(initial=0))), -1, np.int64)
        shares = np.zeros(links.shape)
        links[row, column], shares[row, column] = link, share
        return links[which], shares[which]

    def classes(self, endpoint: Ints) -> Classes:
        """Return the leaves of endpoints."""
        return self.leaf_of[endpoint], self.leaf_of[endpoint]

    def without(self, dead: Mask) -> Everywhere:
        """Return the paths around dead links. Raises UnreachableError when a leaf is cut off."""
        found = nearer(self.near.wires, dead)
        found.check()
        return replace(self, near=found)


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One path for each of `queues` queue pairs: by a hash that `seed` starts, or (None) the first in the file.

    around: what is left where some links are dead; only paths that would cross one of `dead` go there.
    """

    near: Nearer
    leaf_of: Ints
    queues: int
    seed: int | None
    dead: Mask | None = None
    around: Nearer | None = None

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints, in the columns of one queue pair after the other."""
        queue = np.tile(np.arange(self.queues), len(source))
        ends = source.repeat(self.queues), destination.repeat(self.queues)
        columns = self._walk(self.near, *ends, queue)
        if self.dead is not None and self.around is not None:
            bad = crosses(columns, self.dead)
            other = self._walk(self.around, ends[0][bad], ends[1][bad], queue[bad])
            wide = np.full((len(columns), max(columns.shape[1], other.shape[1])), -1, np.int64)
            wide[:, : columns.shape[1]] = columns
            wide[bad] = -1
            wide[bad, : other.shape[1]] = other
            columns = wide
        return columns.reshape(len(source), -1) if len(source) else np.empty((0, 0), np.int64)

    def _walk(self, near: Nearer, source: Ints, destination: Ints, queue: Ints) -> Ints:
        at, to = self.leaf_of[source], self.leaf_of[destination]
        far = int(near.distance[at, to].max(initial=0))
        columns, key = np.full((len(at), far), -1, np.int64), mixed(source, destination, queue, self.seed or 0)
        for hop in range(far):
            rows = np.flatnonzero(at != to)
            links = near.link[self._entry(near, near.after(at[rows], to[rows]), key[rows])]
            columns[rows, hop] = links
            at[rows] = near.wires.head[links]
            key = splitmix(key)
        return columns

    def _entry(self, near: Nearer, row: Ints, key: UInts) -> Ints:
        """Return the entries chosen: the first of each row, or that of the cable which the hash falls on."""
        first = near.start[row]
        if self.seed is None:
            return first
        base, end = near.cables[first], near.cables[near.start[row + 1]]
        cable = base + key % (end - base).astype(np.uint64)
        return np.searchsorted(near.cables, cable, "right") - 1

    def classes(self, endpoint: Ints) -> Classes:
        """Return the leaves of endpoints; a hash knows every endpoint."""
        found = self.leaf_of[endpoint] if self.seed is None else endpoint
        return found, found

    def without(self, dead: Mask) -> Walk:
        """Return the paths around dead links. Raises UnreachableError when a leaf is cut off."""
        around = nearer(self.near.wires, dead)
        around.check()
        return replace(self, dead=dead, around=around)
