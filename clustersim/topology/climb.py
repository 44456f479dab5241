"""Paths through the planes of a fat tree, for every queue pair, around dead links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from clustersim.topology.alike import Classes, Stretch
from clustersim.topology.cables import Bundles, Mode
from clustersim.topology.detours import apart, crosses
from clustersim.topology.model import Ints, Mask
from clustersim.topology.wiring import Place, Tree

_MOST_TRIES = 20_000
_MOST_PAIRS = 200_000
_BATCH = 1 << 15  # rows whose arrays stay in the cache


@dataclass(frozen=True, slots=True, eq=False)
class Climb:
    """hops of a fat tree: from each NIC's port in each plane, by each queue pair, in the columns of one row after the other."""

    tree: Tree
    mode: Mode
    qps: int
    dead: Mask | None = None

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        paths = self.qps * self.tree.leaves.planes
        step = max(1, _BATCH // paths)
        if 0 < len(source) <= step:
            return self._rows(source, destination)
        parts = [self._rows(source[i : i + step], destination[i : i + step]) for i in range(0, len(source), step)]
        return np.concatenate(parts) if parts else np.empty((0, 0), np.int64)

    def _rows(self, source: Ints, destination: Ints) -> Ints:
        planes = self.tree.leaves.planes
        paths = self.qps * planes
        if paths == 1:
            return self._alive(source, destination, source * 0, source * 0)
        path = np.tile(np.arange(paths), len(source))
        found = self._alive(source.repeat(paths), destination.repeat(paths), path // self.qps, path)
        return found.reshape(len(source), -1)

    def _alive(self, source: Ints, destination: Ints, plane: Ints, queue: Ints) -> Ints:
        """Return paths that cross no dead link: the next choice of the switches, then the next plane."""
        columns = self._paths(source, destination, plane, queue, 0)
        if self.dead is None:
            return columns
        choices, planes = self.mode.choices, self.tree.leaves.planes
        bad = crosses(columns, self.dead)
        for shift in range(1, min(choices * planes, _MOST_TRIES)):
            if not len(bad):
                return columns
            other = (plane[bad] + shift // choices) % planes
            again = self._paths(source[bad], destination[bad], other, queue[bad], shift % choices)
            columns[bad] = again
            bad = bad[crosses(again, self.dead)]
        if len(bad):
            raise apart(f"nic[{source[bad[0]]}]", f"nic[{destination[bad[0]]}]")
        return columns

    def _paths(self, source: Ints, destination: Ints, plane: Ints, queue: Ints, shift: int) -> Ints:
        leaves = self.tree.leaves
        a, b = leaves.place(source, plane), leaves.place(destination, plane)
        columns = self.mode(a, b, (source, destination, queue), shift)
        if leaves.planes == 1:
            return columns
        up, down = (end * leaves.planes + plane for end in (source, destination))
        return np.column_stack([up, columns, down + self.tree.ports])

    @property
    def ports(self) -> int:
        """Ports of the NICs that bytes cross whatever way they go: none if dead links may turn them to another plane."""
        return self.tree.ports if self.dead is None else 0

    def classes(self, endpoint: Ints) -> Classes:
        """Return what tells endpoints apart for the routing; where dead links may turn a NIC to another plane, all does."""
        if self.tree.ports > self.ports:
            return endpoint, endpoint
        place = self.tree.leaves.place(endpoint)
        leaf = place.network * self.tree.leaves.total + place.leaf
        return self.mode.classes(endpoint, leaf, place.port)

    def stretches(self) -> list[Stretch]:
        """Return the levels, where the routing lets them be told apart."""
        leaves = self.tree.leaves
        place = leaves.place(np.arange(leaves.endpoints))
        rails = max(leaves.rails, 1)
        near = (place.network * leaves.total + place.leaf).reshape(-1, leaves.nics // rails, rails)
        nested = bool((near == near[:, :1]).all())  # a node has one leaf on each rail
        said: Callable[[Place], list[Stretch]] | None = getattr(self.mode, "stretches", None)
        return said(place) if said and nested and self.dead is None else []

    def without(self, dead: Mask) -> Climb:
        """Return the paths around dead links. Raises UnreachableError when a pair of leaves has none left."""
        found = replace(self, dead=dead)
        for near, far in self._touched(dead):
            a, b = np.repeat(near, len(far)), np.tile(far, len(near))
            found(a[:_MOST_PAIRS], b[:_MOST_PAIRS])
            found(b[:_MOST_PAIRS], a[:_MOST_PAIRS])
        return found

    def _touched(self, dead: Mask) -> Iterator[tuple[Ints, Ints]]:
        """Yield endpoints below each dead link and others to reach, one a leaf and all that lost a port."""
        leaves = self.tree.leaves
        place = leaves.place(np.arange(leaves.endpoints))
        ports = np.flatnonzero(dead[: 2 * self.tree.ports]) % max(self.tree.ports, 1) // leaves.planes
        _, first = np.unique(place.network * leaves.total + place.leaf, return_index=True)
        ends = np.unique(np.concatenate([first, ports]))
        network, leaf = place.network[ends], place.leaf[ends]
        for t, part, group in sorted(set(self._groups(dead))):
            below = (network == part) & (leaf // self.tree.levels[t].span == group)
            yield ends[below], ends[(network == part) & ~below]
        for endpoint in np.unique(ports):
            yield np.array([endpoint]), ends[(network == place.network[endpoint]) & (ends != endpoint)]

    def _groups(self, dead: Mask) -> Iterator[tuple[int, int, int]]:
        """Yield level, network in its plane, and group of the lower end of each dead link between switches."""
        leaves, first = self.tree.leaves, 2 * self.tree.ports
        for t, level in enumerate(self.tree.levels):
            each = 1 if isinstance(self.mode, Bundles) else level.planes * level.ports
            half = level.groups * each * leaves.networks
            for link in np.flatnonzero(dead[first : first + 2 * half]).tolist():
                network, group = divmod(link % half // each, level.groups)
                yield t, network % leaves.parts, group
            first += 2 * half
