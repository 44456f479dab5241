"""Paths through the planes of a fat tree, for every queue pair and around dead links, by array arithmetic on endpoints.

Links are numbered level by level: all up-links of the level, then its down-links; with several planes, the NICs' ports come
first. A path is a row with the columns up 1, up 2, …, down 2, down 1, and -1 above the tier where its two ends meet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Ints, Mask, distinct, divide
from clustersim.config.fabric import Routing
from clustersim.topology.detours import Wired, crosses
from clustersim.topology.fat_tree_wiring import Level, Place, Tree
from clustersim.topology.hops import ClassNumbers, RouteSegment, no_route_error

UInts = NDArray[np.uint64]
_MOST_TRIES = 20_000
_MOST_PAIRS = 200_000
_BATCH = 1 << 15  # number of rows whose arrays fit into the CPU cache


@dataclass(frozen=True, slots=True, eq=False)
class FatTreeHops(Wired):
    """Paths of a fat tree: from each NIC's port in each plane and for each queue pair, side by side in one row.

    Adaptive routing: the up-links of a group of switches act as one link, and so do its down-links. D-mod-k (Zahavi, 2012): the
    destination chooses the ports of the way down, digit by digit: its port on its leaf, then the port through which that cable
    enters the next switch, and so on; the source goes up to the same switches. So without oversubscription, flows of a
    permutation never share a link on the way down. ECMP: a hash of source, destination, queue pair and tier chooses each uplink,
    and each of several cables down.

    Vertices are the switches tier by tier (for a bundle, the first of its group), then the ports of NICs with several ports.
    """

    tree: Tree
    """The switches and cables."""
    routing: Routing
    """Choice among equal paths. In every plane, each of `qps` queue pairs of two endpoints has its own path."""
    dead: Mask | None = None
    """Mask of links that carry nothing (links,), or None."""

    @property
    def adaptive(self) -> bool:
        """Whether the cables between two groups of switches are one bundle."""
        return self.routing.mode == "adaptive"

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first NIC port and of the first up-link of each level, followed by the number of links."""
        cables = (level.groups if self.adaptive else level.cables for level in self.tree.levels)
        links = [2 * self.tree.ports, *(2 * n * self.tree.leaves.networks for n in cables)]
        return tuple(accumulate(links, initial=0))

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination, both endpoints (pairs, width): `paths` paths side by side."""
        qps = self.routing.qps
        paths = qps * self.tree.leaves.planes
        step, rows = max(1, _BATCH // paths), [np.empty((0, 0), np.int64)]
        for i in range(0, len(source), step):
            a, b = source[i : i + step].repeat(paths), destination[i : i + step].repeat(paths)
            path = np.arange(len(a)) % paths
            rows.append(self._alive(a, b, path // qps, path).reshape(len(a) // paths, -1))
        return np.concatenate(rows[1:]) if len(rows) > 2 else rows[-1]

    def _alive(self, source: Ints, destination: Ints, plane: Ints, queue: Ints) -> Ints:
        """Return live paths, one row each: where one is dead, by the switches' next choice, then by the next plane.

        plane, queue: preferred plane and number of the queue pair of each path. Raises UnreachableError if no try succeeds.
        """
        columns = self._paths(source, destination, plane, queue, 0)
        if self.dead is None:
            return columns
        choices = 1 if self.adaptive else prod(level.choices for level in self.tree.levels)
        planes = self.tree.leaves.planes
        blocked = crosses(columns, self.dead)
        for shift in range(1, min(choices * planes, _MOST_TRIES)):
            if not len(blocked):
                return columns
            other_plane = (plane[blocked] + shift // choices) % planes
            ends = source[blocked], destination[blocked]
            columns[blocked] = self._paths(*ends, other_plane, queue[blocked], shift % choices)
            blocked = blocked[crosses(columns[blocked], self.dead)]
        if len(blocked):
            raise no_route_error(f"nic[{source[blocked[0]]}]", f"nic[{destination[blocked[0]]}]")
        return columns

    def _paths(self, source: Ints, destination: Ints, plane: Ints, queue: Ints, shift: int) -> Ints:
        """Return the links of paths (paths, width), -1: none. plane, queue: as in `_alive`. shift: which choice, from 0."""
        leaves = self.tree.leaves
        a, b = leaves.place(source, plane), leaves.place(destination, plane)
        if self.adaptive:
            columns = self._bundles(a, b)
        elif self.routing.mode == "dmodk":
            columns = self._walk(b, a, None, shift)
        else:
            columns = self._walk(a, b, route_hash(source, destination, queue, self.routing.seed), shift)
        if leaves.planes == 1:
            return columns
        up, down = (end * leaves.planes + plane for end in (source, destination))
        return np.column_stack([up, columns, down + self.tree.ports])

    def _bundles(self, source: Place, destination: Place) -> Ints:
        """Return the links of each route (routes, 2 · levels), where cables between two groups are one link; -1: none."""
        columns = np.full((len(source.leaf), 2 * len(self.tree.levels)), -1, np.int64)
        for t, (level, first) in enumerate(zip(self.tree.levels, self.firsts[1:], strict=False)):
            here, there = source.leaf // level.span, destination.leaf // level.span
            higher = np.flatnonzero(here != there)
            base = first + source.network[higher] * level.groups
            columns[higher, t] = base + here[higher]
            columns[higher, -1 - t] = base + there[higher] + level.groups * self.tree.leaves.networks
        return columns

    def _walk(self, lead: Place, follow: Place, key: UInts | None, shift: int) -> Ints:
        """Return the paths from two ends up to common switches (paths, 2 · levels), from the source; -1: none.

        `lead` chooses its ports, `follow` takes the matching ones. `lead` is the source if there is a hash `key` (paths,), and
        the destination without one. shift: index of the choice in order of preference.
        """
        columns = np.full((len(lead.leaf), 2 * len(self.tree.levels)), -1, np.int64)
        rows = np.arange(len(lead.leaf))
        plane, port = rows * 0, lead.port
        for t, (level, first) in enumerate(zip(self.tree.levels, self.firsts[1:], strict=False)):
            # a pair meets at the tier where both ends are in one group: its row is complete from there on
            lead_group, follow_group = lead.leaf[rows] // level.span, follow.leaf[rows] // level.span
            higher = np.flatnonzero(lead_group != follow_group)
            if len(higher) < len(rows):
                columns_left = rows, plane, port, lead_group, follow_group
                rows, plane, port, lead_group, follow_group = (column[higher] for column in columns_left)
                key = None if key is None else key[higher]
            chosen, spare = _choice(level, port, key, shift % level.choices)
            shift //= level.choices
            # the cable's number in its set gives both: its upper switch (remainder) and the port there (quotient)
            slot, within = divide(plane, level.merge)
            entry = (divide(lead_group, level.pod)[1] * level.merge + within) * level.ports + chosen
            port, switch = divide(entry, level.spread)
            base = (divide(follow_group, level.pod)[1] * level.merge + within) * level.ports
            # the other end solves the same equation for its port: one in every `spread` of its cables leads to that switch
            back = (switch - base) % level.spread
            spares = (level.ports - 1 - back) // level.spread + 1
            back = back + level.spread * (spare % spares)
            half = level.cables * self.tree.leaves.networks
            network = lead.network[rows]
            ends = [
                _cable(level, network, lead_group, plane, chosen),
                _cable(level, network, follow_group, plane, back),
            ]
            columns[rows, t], columns[rows, -1 - t] = ends[::-1] if key is None else ends
            columns[rows, t] += first
            columns[rows, -1 - t] += first + half
            plane = slot * level.spread + switch
            key = None if key is None else splitmix(key)
        return columns

    @property
    def ports(self) -> int:
        """Number of NIC ports that are links of their own on any route; 0 if dead links may move routes to another plane."""
        return self.tree.ports if self.dead is None else 0

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination) of each endpoint.

        All differ if routes are hashed, or if dead links may move a NIC to another plane.
        """
        if self.tree.ports > self.ports or self.routing.mode == "ecmp":  # a hash distinguishes all endpoints
            return endpoint, endpoint
        place = self.tree.leaves.place(endpoint)
        leaf = self.tree.leaves.number(place)
        # D-mod-k: the port of a destination chooses the uplink of a leaf
        uplinks = self.tree.levels[0].ports if self.tree.levels else 1
        return leaf, leaf if self.adaptive else leaf * uplinks + place.port % uplinks

    def segments(self) -> list[RouteSegment]:
        """Return two segments per level (up, down) for D-mod-k, if nodes have one leaf per rail and no link is dead; else []."""
        leaves = self.tree.leaves
        if not leaves.nics or self.routing.mode != "dmodk" or self.dead is not None:
            return []
        endpoint = np.arange(leaves.endpoints)
        place, rails = leaves.place(endpoint), max(leaves.rails, 1)
        leaf = leaves.number(place).reshape(-1, leaves.nics // rails, rails)
        return self._dmodk_segments(place, self.classes(endpoint)[1]) if (leaf == leaf[:, :1]).all() else []

    def _dmodk_segments(self, place: Place, down: Ints) -> list[RouteSegment]:
        """Return the segments of D-mod-k's routes, up then down, level by level.

        place: position of each endpoint. down: class of each endpoint as a destination (both: endpoints).
        """
        # `_walk` from the destination alone, for all endpoints at once: D-mod-k's choices never depend on the source
        segments = list[RouteSegment]()
        plane, port = place.port * 0, place.port
        for first, level in zip(self.firsts[1:], self.tree.levels, strict=False):
            group = place.leaf // level.span
            chosen, spare = _choice(level, port, None, 0)
            slot, within = divide(plane, level.merge)
            entry = (divide(group, level.pod)[1] * level.merge + within) * level.ports + chosen
            port, switch = divide(entry, level.spread)
            scope, half = place.network * level.groups + group, level.cables * self.tree.leaves.networks
            up = (plane * level.spread + switch) * level.ports + spare
            segments.append(RouteSegment(first, first + half, scope, up, scope))
            segments.append(RouteSegment(first + half, first + 2 * half, scope * 0, down, scope))
            plane = slot * level.spread + switch
        return segments

    def above(self) -> list[tuple[Ints, Ints]] | None:
        """Return (link up, link down) above each endpoint, level by level (each: endpoints), if each is an adaptive bundle.

        Return None for other routing, several planes or dead links.
        """
        leaves = self.tree.leaves
        if not self.adaptive or leaves.planes > 1 or self.dead is not None:
            return None
        place = leaves.place(np.arange(leaves.endpoints))
        links_above = []
        for level, first in zip(self.tree.levels, self.firsts[1:], strict=False):
            up = first + place.network * level.groups + place.leaf // level.span
            links_above.append((up, up + level.groups * leaves.networks))
        return links_above

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the vertex of each endpoint: its leaf, or its port if NICs have several."""
        leaves = self.tree.leaves
        return endpoint + self.tree.vertices[-1] if self.tree.ports else leaves.number(leaves.place(endpoint))

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return (lower vertex, upper vertex) of cables of level `part` - 1, or of NIC ports (part 0)."""
        tree = self.tree
        if part == 0:
            endpoint, plane = np.divmod(cable, tree.leaves.planes)
            return tree.vertices[-1] + endpoint, tree.leaves.number(tree.leaves.place(endpoint, plane))
        level, group, below, above = tree.levels[part - 1], cable, cable * 0, cable * 0
        if not self.adaptive:
            switch, port = np.divmod(cable, level.ports)
            group, below = np.divmod(switch, level.planes)
            entry = (group % level.groups % level.pod * level.merge + below % level.merge) * level.ports + port
            above = below // level.merge * level.spread + entry % level.spread
        low = tree.vertices[part - 1] + group * tree.planes(part - 1) + below
        return low, tree.vertices[part] + level.above(group) * tree.planes(part) + above

    def name(self, vertex: int) -> str:
        """Return the name of a vertex, such as `leaf[3]`, or `ports[5]` for NIC 5 with several ports."""
        tier = bisect_right(self.tree.vertices, vertex) - 1
        names = *(ports.name for ports in self.tree.tiers), "ports"
        return f"{names[tier]}[{vertex - self.tree.vertices[tier]}]"

    def without(self, dead: Mask) -> FatTreeHops:
        """Return the paths around the links in the mask `dead`. Raises UnreachableError if a pair of leaves has no path left."""
        routes = replace(self, dead=dead)
        for below, reached in self._touched(dead):
            a, b = np.repeat(below, len(reached)), np.tile(reached, len(below))
            routes(a[:_MOST_PAIRS], b[:_MOST_PAIRS])
            routes(b[:_MOST_PAIRS], a[:_MOST_PAIRS])
        return routes

    def _touched(self, dead: Mask) -> Iterator[tuple[Ints, Ints]]:
        """Yield (endpoints below a dead link, endpoints that they must still reach); one endpoint stands for its leaf."""
        leaves = self.tree.leaves
        place = leaves.place(np.arange(leaves.endpoints))
        ports = np.flatnonzero(dead[: 2 * self.tree.ports]) % max(self.tree.ports, 1) // leaves.planes
        _, first = np.unique(leaves.number(place), return_index=True)
        endpoints = distinct(np.concatenate([first, ports]))
        network, leaf = place.network[endpoints], place.leaf[endpoints]
        for t, network_index, group in sorted(set(self._groups(dead))):
            below = (network == network_index) & (leaf // self.tree.levels[t].span == group)
            yield endpoints[below], endpoints[(network == network_index) & ~below]
        for endpoint in distinct(ports):
            yield np.array([endpoint]), endpoints[(network == place.network[endpoint]) & (endpoints != endpoint)]

    def _groups(self, dead: Mask) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the level, network in its plane, lower group) of each dead link between switches."""
        for t, (level, first) in enumerate(zip(self.tree.levels, self.firsts[1:], strict=False)):
            end = self.firsts[t + 2]
            links_per_group = 1 if self.adaptive else level.planes * level.ports
            for link in np.flatnonzero(dead[first:end]).tolist():
                network, group = divmod(link % ((end - first) // 2) // links_per_group, level.groups)
                yield t, network % self.tree.leaves.parts, group


def _choice(level: Level, port: Ints, key: UInts | None, shift: int) -> tuple[Ints, Ints]:
    """Return (uplink port, number that picks a cable down) of each route: from the hash `key`, or from `port` without one.

    shift: number by which the choice moves on from the preferred one.
    """
    if key is None:
        chosen = divide(port + shift, level.ports)[1]
        return chosen, chosen // level.spread + shift // level.ports
    # two parts of the hash without common bits: otherwise the cable down would follow from the port up
    low = (key & np.uint64(0x7FFFFFFF)).astype(np.int64)
    return divide(low + shift, level.ports)[1], (key >> np.uint64(33)).astype(np.int64) + shift // level.ports


def _cable(level: Level, network: Ints, group: Ints, plane: Ints, port: Ints) -> Ints:
    """Return the index of the cable at each `port` of switch `plane` in a lower `group` of a `network` (routes,)."""
    return ((network * level.groups + group) * level.planes + plane) * level.ports + port


def route_hash(source: Ints, destination: Ints, queue: Ints, seed: int) -> UInts:
    """Return a 64-bit hash of source, destination and queue pair for each route; another `seed` gives other hashes."""
    a, b, c = (x.astype(np.uint64) for x in (source, destination, queue))
    return splitmix(splitmix(splitmix(a + np.uint64(seed << 32)) ^ b) ^ c)


def splitmix(x: UInts) -> UInts:
    """Return the splitmix64 finalizer of x (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
