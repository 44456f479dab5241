"""Paths through a fat tree by arithmetic, for every routing mode, on arrays of endpoints.

`hops` returns links numbered level by level: all up-links of the level, then its down-links; a matrix of one row a pair
with the columns up 1, up 2, …, down 2, down 1, and -1 above the tier where the pair meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustersim.topology.model import Ints
from clustersim.topology.wiring import Level, Place, Tree

UInts = NDArray[np.uint64]


def bundle_firsts(tree: Tree) -> list[int]:
    """Return the first up-link of each level when the cables of a group are one bundle, and the number of links."""
    return _firsts([level.groups * tree.leaves.networks for level in tree.levels])


def cable_firsts(tree: Tree) -> list[int]:
    """Return the first up-link of each level when every cable is a link, and the number of links."""
    return _firsts([level.cables * tree.leaves.networks for level in tree.levels])


def _firsts(links: list[int]) -> list[int]:
    return [2 * sum(links[:i]) for i in range(len(links) + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Bundles:
    """Adaptive routing: the up-links of a group of switches act as one link, and so do its down-links."""

    tree: Tree

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        a, b = self.tree.leaves.place(source), self.tree.leaves.place(destination)
        levels, firsts = self.tree.levels, bundle_firsts(self.tree)
        columns = np.full((len(source), 2 * len(levels)), -1, np.int64)
        for t, level in enumerate(levels):
            here, there = a.leaf // level.span, b.leaf // level.span
            climbs = np.flatnonzero(here != there)
            first = firsts[t] + a.network[climbs] * level.groups
            columns[climbs, t] = first + here[climbs]
            columns[climbs, -1 - t] = first + there[climbs] + level.groups * self.tree.leaves.networks
        return columns


@dataclass(frozen=True, slots=True, eq=False)
class Dmodk:
    """Static routing: the destination chooses its way down, so without oversubscription a permutation never meets itself there.

    The port a flow comes down through, digit by digit, is the destination's port on its leaf, then the port through which
    that cable enters the next switch, and so on (D-mod-k: Zahavi, 2012); the source climbs to the same switches.
    """

    tree: Tree

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        a, b = self.tree.leaves.place(source), self.tree.leaves.place(destination)
        down, up = _walk(self.tree, b, a, None)
        return _columns(self.tree, len(source), up, down)


@dataclass(frozen=True, slots=True, eq=False)
class Ecmp:
    """A hash of source, destination, queue pair and tier chooses each uplink, and each of several cables down."""

    tree: Tree
    qps: int
    seed: int

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints, the paths of the queue pairs one after the other."""
        src, dst = np.repeat(source, self.qps), np.repeat(destination, self.qps)
        queue = np.tile(np.arange(self.qps, dtype=np.int64), len(source))
        key = _hash(
            _hash(_hash(src.astype(np.uint64) + np.uint64(self.seed << 32)) ^ dst.astype(np.uint64))
            ^ queue.astype(np.uint64)
        )
        up, down = _walk(self.tree, self.tree.leaves.place(src), self.tree.leaves.place(dst), key)
        return _columns(self.tree, len(src), up, down).reshape(len(source), self.qps * 2 * len(self.tree.levels))


def _walk(tree: Tree, lead: Place, follow: Place, key: UInts | None) -> tuple[list[Ints], list[Ints]]:
    """Climb from both ends to the same switches; `lead` chooses its ports, `follow` takes those that lead there."""
    plane, port = np.zeros_like(lead.leaf), lead.port
    leads, follows = [], []
    for level in tree.levels:
        lead_group, follow_group = lead.leaf // level.span, follow.leaf // level.span
        chosen, spare = _choice(level, port, key)
        entry = (lead_group % level.pod * level.merge + plane % level.merge) * level.ports + chosen
        switch = entry % level.spread
        leads.append(_cable(level, lead.network, lead_group, plane, chosen))
        base = (follow_group % level.pod * level.merge + plane % level.merge) * level.ports
        first = (switch - base) % level.spread
        ways = (level.ports - 1 - first) // level.spread + 1
        follows.append(_cable(level, lead.network, follow_group, plane, first + level.spread * (spare % ways)))
        for cables in (leads, follows):
            cables[-1][lead_group == follow_group] = -1
        plane, port = plane // level.merge * level.spread + switch, entry // level.spread
        key = None if key is None else _hash(key)
    return leads, follows


def _choice(level: Level, port: Ints, key: UInts | None) -> tuple[Ints, Ints]:
    if key is None:
        chosen = port % level.ports
        return chosen, chosen // level.spread
    low = (key & np.uint64(0x7FFFFFFF)).astype(np.int64)
    return low % level.ports, (key >> np.uint64(33)).astype(np.int64)


def _cable(level: Level, network: Ints, group: Ints, plane: Ints, port: Ints) -> Ints:
    return ((network * level.groups + group) * level.planes + plane) * level.ports + port


def _columns(tree: Tree, pairs: int, up: list[Ints], down: list[Ints]) -> Ints:
    firsts = cable_firsts(tree)
    columns = np.empty((pairs, 2 * len(up)), np.int64)
    for t, level in enumerate(tree.levels):
        columns[:, t] = np.where(up[t] < 0, -1, up[t] + firsts[t])
        columns[:, -1 - t] = np.where(down[t] < 0, -1, down[t] + firsts[t] + level.cables * tree.leaves.networks)
    return columns


def _hash(x: UInts) -> UInts:
    """Return the splitmix64 finalizer of x (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
