"""Paths through the planes of a fat tree, for every queue pair, around dead links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Ints, Mask, divide
from clustersim.topology.detours import crosses
from clustersim.topology.fat_tree_wiring import Level, Place, Tree
from clustersim.topology.hops import ClassNumbers, Hops, RouteSegment, apart

_MOST_TRIES = 20_000
_MOST_PAIRS = 200_000
_BATCH = 1 << 15  # rows whose arrays stay in the cache


@dataclass(frozen=True, slots=True, eq=False)
class FatTreeHops(Hops):
    """The paths of a fat tree: from each NIC's port in each plane and by each queue pair, side by side in one row."""

    tree: Tree
    """The switches and cables."""
    mode: Mode
    """Which ports a path takes."""
    qps: int
    """Queue pairs of two endpoints, each with a path of its own in every plane."""
    dead: Mask | None = None
    """Links that carry nothing, if any (links,)."""

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
        """Ports of the NICs that bytes cross on any route: none if dead links may turn them to another plane."""
        return self.tree.ports if self.dead is None else 0

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the class of each endpoint for the routing; all differ where dead links may turn a NIC to another plane."""
        if self.tree.ports > self.ports:
            return endpoint, endpoint
        place = self.tree.leaves.place(endpoint)
        leaf = place.network * self.tree.leaves.total + place.leaf
        return self.mode.classes(endpoint, leaf, place.port)

    def segments(self) -> list[RouteSegment]:
        """Return the levels, where the routing lets them be told apart."""
        leaves = self.tree.leaves
        if not leaves.nics:
            return []  # a node may have two leaves on a rail
        place = leaves.place(np.arange(leaves.endpoints))
        rails = max(leaves.rails, 1)
        leaf = (place.network * leaves.total + place.leaf).reshape(-1, leaves.nics // rails, rails)
        nested = bool((leaf == leaf[:, :1]).all())  # a node has one leaf on each rail
        return self.mode.segments(place) if nested and self.dead is None else []

    def above(self) -> list[tuple[Ints, Ints]] | None:
        """Return the bundles over each endpoint, where adaptive routing makes them one link and every NIC has one port."""
        leaves = self.tree.leaves
        if not isinstance(self.mode, Bundles) or leaves.planes > 1 or self.dead is not None:
            return None
        place = leaves.place(np.arange(leaves.endpoints))
        found = []
        for level, first in zip(self.tree.levels, bundle_firsts(self.tree), strict=False):
            up = first + place.network * level.groups + place.leaf // level.span
            found.append((up, up + level.groups * leaves.networks))
        return found

    def without(self, dead: Mask) -> FatTreeHops:
        """Return the paths around dead links. Raises UnreachableError when a pair of leaves has none left."""
        found = replace(self, dead=dead)
        for below, others in self._touched(dead):
            a, b = np.repeat(below, len(others)), np.tile(others, len(below))
            found(a[:_MOST_PAIRS], b[:_MOST_PAIRS])
            found(b[:_MOST_PAIRS], a[:_MOST_PAIRS])
        return found

    def _touched(self, dead: Mask) -> Iterator[tuple[Ints, Ints]]:
        """Yield endpoints below each dead link and others to reach, one a leaf and all that lost a port."""
        leaves = self.tree.leaves
        place = leaves.place(np.arange(leaves.endpoints))
        ports = np.flatnonzero(dead[: 2 * self.tree.ports]) % max(self.tree.ports, 1) // leaves.planes
        _, first = np.unique(place.network * leaves.total + place.leaf, return_index=True)
        endpoints = np.unique(np.concatenate([first, ports]))
        network, leaf = place.network[endpoints], place.leaf[endpoints]
        for t, part, group in sorted(set(self._groups(dead))):
            below = (network == part) & (leaf // self.tree.levels[t].span == group)
            yield endpoints[below], endpoints[(network == part) & ~below]
        for endpoint in np.unique(ports):
            yield np.array([endpoint]), endpoints[(network == place.network[endpoint]) & (endpoints != endpoint)]

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


# Paths through a fat tree by arithmetic, for every routing mode, on arrays of endpoints.
#
# Links are numbered level by level: all up-links of the level, then its down-links; with several planes the ports of the NICs
# come before them. Paths are rows with the columns up 1, up 2, …, down 2, down 1, and -1 above the tier where the pair meets.

UInts = NDArray[np.uint64]


def bundle_firsts(tree: Tree) -> Sequence[int]:
    """Return the first up-link of each level when the cables of a group are one bundle, and the number of links."""
    return _firsts(tree, [level.groups for level in tree.levels])


def cable_firsts(tree: Tree) -> Sequence[int]:
    """Return the first up-link of each level when every cable is a link, and the number of links."""
    return _firsts(tree, [level.cables for level in tree.levels])


def _firsts(tree: Tree, links: list[int]) -> Sequence[int]:
    return list(accumulate((2 * n * tree.leaves.networks for n in links), initial=2 * tree.ports))


class Mode(Protocol):
    """A mode of routing. queue: number of the queue pair. shift: which of `choices` routes, in the order of preference."""

    __slots__ = ()

    @property
    def choices(self) -> int:
        """How many routes there can be between two endpoints; the default is one."""
        return 1

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the paths between ports; key: source, destination, queue pair."""

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> ClassNumbers:
        """Return a number for each endpoint as a source and as a destination: paths depend on these two alone."""

    def segments(self, place: Place) -> list[RouteSegment]:
        """Return the parts of the paths that depend on less than the whole, of endpoints at these places; the default none."""
        return []


@dataclass(frozen=True, slots=True, eq=False)
class Bundles(Mode):
    """Adaptive routing: the up-links of a group of switches act as one link, and so do its down-links."""

    tree: Tree

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        levels, firsts = self.tree.levels, bundle_firsts(self.tree)
        columns = np.full((len(source.leaf), 2 * len(levels)), -1, np.int64)
        for t, level in enumerate(levels):
            here, there = source.leaf // level.span, destination.leaf // level.span
            higher = np.flatnonzero(here != there)
            first = firsts[t] + source.network[higher] * level.groups
            columns[higher, t] = first + here[higher]
            columns[higher, -1 - t] = first + there[higher] + level.groups * self.tree.leaves.networks
        return columns

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> ClassNumbers:
        """Return the leaves."""
        return leaf, leaf


@dataclass(frozen=True, slots=True, eq=False)
class Dmodk(Mode):
    """Static routing: the destination chooses its route down, so without oversubscription a permutation never meets itself there.

    The port a flow comes down through, digit by digit, is the destination's port on its leaf, then the port through which
    that cable enters the next switch, and so on (D-mod-k: Zahavi, 2012); the source goes up to the same switches.
    """

    tree: Tree

    @property
    def choices(self) -> int:
        """How many routes there can be between two endpoints."""
        return choices(self.tree)

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        return _walk(self.tree, destination, source, None, shift, lead_down=True)

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> ClassNumbers:
        """Return the leaf of a source, and the uplink of the leaf that the port of a destination chooses."""
        uplinks = self.tree.levels[0].ports if self.tree.levels else 1
        return leaf, leaf * uplinks + port % uplinks

    def segments(self, place: Place) -> list[RouteSegment]:
        """Return each level's links up, and its links down: these the destination alone decides, those its switch at the top."""
        # `_walk` from the destination's end alone, for all endpoints at once: no choice of D-mod-k looks at the source
        found, firsts = list[RouteSegment](), cable_firsts(self.tree)
        _, down = self.classes(place.port, place.network * self.tree.leaves.total + place.leaf, place.port)
        plane, port = place.port * 0, place.port
        for t, level in enumerate(self.tree.levels):
            group = place.leaf // level.span
            chosen, spare = _choice(level, port, None, 0)
            slot, within = divide(plane, level.merge)
            entry = (divide(group, level.pod)[1] * level.merge + within) * level.ports + chosen
            port, switch = divide(entry, level.spread)
            scope, half = place.network * level.groups + group, level.cables * self.tree.leaves.networks
            up = (plane * level.spread + switch) * level.ports + spare
            found.append(RouteSegment(firsts[t], firsts[t] + half, scope, up, scope))
            found.append(RouteSegment(firsts[t] + half, firsts[t] + 2 * half, scope * 0, down, scope))
            plane = slot * level.spread + switch
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Ecmp(Mode):
    """A hash of source, destination, queue pair and tier chooses each uplink, and each of several cables down."""

    tree: Tree
    """The switches and cables."""
    seed: int
    """Of the hash."""

    @property
    def choices(self) -> int:
        """How many routes there can be between two endpoints."""
        return choices(self.tree)

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        hashed = mixed(*key, self.seed)
        return _walk(self.tree, source, destination, hashed, shift, lead_down=False)

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> ClassNumbers:
        """Return the endpoints: a hash knows every one."""
        return endpoint, endpoint


def choices(tree: Tree) -> int:
    """Return how many routes there can be between two endpoints of a tree."""
    return prod(_choices(level) for level in tree.levels)


def _choices(level: Level) -> int:
    return level.ports * -(-level.ports // level.spread)


def _walk(tree: Tree, lead: Place, follow: Place, key: UInts | None, shift: int, lead_down: bool) -> Ints:
    """Return the paths from both ends to the same switches; `lead` chooses its ports, `follow` takes those that lead there."""
    columns = np.full((len(lead.leaf), 2 * len(tree.levels)), -1, np.int64)
    rows = np.arange(len(lead.leaf))
    plane, port, firsts = rows * 0, lead.port, cable_firsts(tree)
    for t, level in enumerate(tree.levels):
        # a pair meets at the tier where both ends are in one group: its row stays as it is from there on
        lead_group, follow_group = lead.leaf[rows] // level.span, follow.leaf[rows] // level.span
        higher = np.flatnonzero(lead_group != follow_group)
        if len(higher) < len(rows):
            rows, plane, port, lead_group, follow_group = (
                x[higher] for x in (rows, plane, port, lead_group, follow_group)
            )
            key = None if key is None else key[higher]
        chosen, spare = _choice(level, port, key, shift % _choices(level))
        shift //= _choices(level)
        # the number of the cable among those of its set is both: which upper switch (remainder), and into which port (quotient)
        slot, within = divide(plane, level.merge)
        entry = (divide(lead_group, level.pod)[1] * level.merge + within) * level.ports + chosen
        port, switch = divide(entry, level.spread)
        base = (divide(follow_group, level.pod)[1] * level.merge + within) * level.ports
        # the other end solves the same equation for its port: one in every `spread` of its cables leads to that switch
        back = (switch - base) % level.spread
        spares = (level.ports - 1 - back) // level.spread + 1
        back = back + level.spread * (spare % spares)
        first, half = firsts[t], level.cables * tree.leaves.networks
        network = lead.network[rows]
        ends = [_cable(level, network, lead_group, plane, chosen), _cable(level, network, follow_group, plane, back)]
        columns[rows, t], columns[rows, -1 - t] = ends[::-1] if lead_down else ends
        columns[rows, t] += first
        columns[rows, -1 - t] += first + half
        plane = slot * level.spread + switch
        key = None if key is None else splitmix(key)
    return columns


def _choice(level: Level, port: Ints, key: UInts | None, shift: int) -> tuple[Ints, Ints]:
    if key is None:
        chosen = divide(port + shift, level.ports)[1]
        return chosen, chosen // level.spread + shift // level.ports
    # two parts of the hash that share no bit: else the cable down would follow from the port up
    low = (key & np.uint64(0x7FFFFFFF)).astype(np.int64)
    return divide(low + shift, level.ports)[1], (key >> np.uint64(33)).astype(np.int64) + shift // level.ports


def _cable(level: Level, network: Ints, group: Ints, plane: Ints, port: Ints) -> Ints:
    return ((network * level.groups + group) * level.planes + plane) * level.ports + port


def mixed(source: Ints, destination: Ints, queue: Ints, seed: int) -> UInts:
    """Return a hash of source, destination and queue pair."""
    a, b, c = (x.astype(np.uint64) for x in (source, destination, queue))
    return splitmix(splitmix(splitmix(a + np.uint64(seed << 32)) ^ b) ^ c)


def splitmix(x: UInts) -> UInts:
    """Return the splitmix64 finalizer of x (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
