"""Paths through a fat tree by arithmetic, for every routing mode, on arrays of endpoints.

Links are numbered level by level: all up-links of the level, then its down-links; with several planes the ports of the NICs
come before them. Paths are rows with the columns up 1, up 2, …, down 2, down 1, and -1 above the tier where the pair meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clustersim.topology.alike import Classes, Stretch
from clustersim.topology.model import Ints
from clustersim.topology.rows import divide
from clustersim.topology.wiring import Level, Place, Tree

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
    """One way of routing. queue: number of the queue pair. shift: which of `choices` ways, in the order of preference."""

    @property
    def choices(self) -> int:
        """How many ways there can be between two endpoints."""

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the paths between ports; key: source, destination, queue pair."""

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> Classes:
        """Return a number for each endpoint as a source and as a destination: paths depend on these two alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Bundles:
    """Adaptive routing: the up-links of a group of switches act as one link, and so do its down-links."""

    tree: Tree

    @property
    def choices(self) -> int:
        """One way: it is all cables at once."""
        return 1

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        levels, firsts = self.tree.levels, bundle_firsts(self.tree)
        columns = np.full((len(source.leaf), 2 * len(levels)), -1, np.int64)
        for t, level in enumerate(levels):
            here, there = source.leaf // level.span, destination.leaf // level.span
            climbs = np.flatnonzero(here != there)
            first = firsts[t] + source.network[climbs] * level.groups
            columns[climbs, t] = first + here[climbs]
            columns[climbs, -1 - t] = first + there[climbs] + level.groups * self.tree.leaves.networks
        return columns

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> Classes:
        """Return the leaves."""
        return leaf, leaf


@dataclass(frozen=True, slots=True, eq=False)
class Dmodk:
    """Static routing: the destination chooses its way down, so without oversubscription a permutation never meets itself there.

    The port a flow comes down through, digit by digit, is the destination's port on its leaf, then the port through which
    that cable enters the next switch, and so on (D-mod-k: Zahavi, 2012); the source climbs to the same switches.
    """

    tree: Tree

    @property
    def choices(self) -> int:
        """How many ways there can be between two endpoints."""
        return choices(self.tree)

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        return _walk(self.tree, destination, source, None, shift, lead_down=True)

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> Classes:
        """Return the leaf of a source, and the uplink of the leaf that the port of a destination chooses."""
        uplinks = self.tree.levels[0].ports if self.tree.levels else 1
        return leaf, leaf * uplinks + port % uplinks

    def stretches(self, place: Place) -> list[Stretch]:
        """Return each level's ways up, and its ways down: these the destination alone decides, those its switch at the top."""
        found, firsts = list[Stretch](), cable_firsts(self.tree)
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
            found.append(Stretch(firsts[t], firsts[t] + half, scope, up, scope))
            found.append(Stretch(firsts[t] + half, firsts[t] + 2 * half, scope * 0, down, scope))
            plane = slot * level.spread + switch
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Ecmp:
    """A hash of source, destination, queue pair and tier chooses each uplink, and each of several cables down."""

    tree: Tree
    seed: int

    @property
    def choices(self) -> int:
        """How many ways there can be between two endpoints."""
        return choices(self.tree)

    def __call__(self, source: Place, destination: Place, key: tuple[Ints, Ints, Ints], shift: int) -> Ints:
        """Return the links between ports."""
        hashed = mixed(*key, self.seed)
        return _walk(self.tree, source, destination, hashed, shift, lead_down=False)

    def classes(self, endpoint: Ints, leaf: Ints, port: Ints) -> Classes:
        """Return the endpoints: a hash knows every one."""
        return endpoint, endpoint


def choices(tree: Tree) -> int:
    """Return how many ways there can be between two endpoints of a tree."""
    return prod(_ways(level) for level in tree.levels)


def _ways(level: Level) -> int:
    return level.ports * -(-level.ports // level.spread)


def _walk(tree: Tree, lead: Place, follow: Place, key: UInts | None, shift: int, lead_down: bool) -> Ints:
    """Climb from both ends to the same switches; `lead` chooses its ports, `follow` takes those that lead there."""
    columns = np.full((len(lead.leaf), 2 * len(tree.levels)), -1, np.int64)
    rows = np.arange(len(lead.leaf))
    plane, port, firsts = rows * 0, lead.port, cable_firsts(tree)
    for t, level in enumerate(tree.levels):
        lead_group, follow_group = lead.leaf[rows] // level.span, follow.leaf[rows] // level.span
        climbs = np.flatnonzero(lead_group != follow_group)
        if len(climbs) < len(rows):
            rows, plane, port, lead_group, follow_group = (
                x[climbs] for x in (rows, plane, port, lead_group, follow_group)
            )
            key = None if key is None else key[climbs]
        chosen, spare = _choice(level, port, key, shift % _ways(level))
        shift //= _ways(level)
        slot, within = divide(plane, level.merge)
        entry = (divide(lead_group, level.pod)[1] * level.merge + within) * level.ports + chosen
        port, switch = divide(entry, level.spread)
        base = (divide(follow_group, level.pod)[1] * level.merge + within) * level.ports
        back = (switch - base) % level.spread
        ways = (level.ports - 1 - back) // level.spread + 1
        back = back + level.spread * (spare % ways)
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
