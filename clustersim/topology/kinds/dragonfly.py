"""A dragonfly (Kim, Dally, Scott and Abts, ISCA 2008): fully connected groups of fully connected routers, minimal paths.

The cables between groups are equally many for every pair of groups, as in a Dragonfly+ too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.fabric import Dragonfly, DragonflyPlus
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.detours import Wired, directed
from clustersim.topology.hops import ClassNumbers
from clustersim.topology.lattice import pair_ends, pair_number
from clustersim.topology.model import Topology
from clustersim.topology.specs import BuiltFabric, NodeSpecs, both_ways

SPEC = Dragonfly


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `dragonfly` fabric. Raises ConfigError if nodes or cables do not fit."""
    spec = cluster.section(Dragonfly)
    built = _hops(cluster, spec)
    inside, between = delays(cluster, spec)
    rate = spec.link.rate * spec.link.efficiency
    network = BuiltFabric(
        ranges=(
            *both_ways("local", built.local_cables, rate, inside),
            *both_ways("global", built.global_cables, rate, between),
        ),
        hops=built,
        port=built.port,
        ends=built.ends,
        counts=_counts(cluster, spec, built, rate),
        fanouts=_fanouts(cluster, built),
        rate=rate,
    )
    return assemble(cluster, "dragonfly", network)


def _hops(cluster: NodeSpecs, spec: Dragonfly) -> _DragonflyHops:
    """Return the routes of the fabric. Raises ConfigError for more groups than cables reach, too few ports or too many links."""
    most = spec.a * spec.h + 1
    groups = spec.groups or most
    if groups > most:
        few = f"{spec.a} routers with {spec.h} global cables each reach {most - 1} other groups, not {groups - 1}"
        raise cluster.error(("fabric", "groups"), f"fabric.groups: {few}; use at most {most}, or a larger a or h")
    if (room := spec.a * spec.p * groups) < cluster.endpoints:
        few = f"a · p · groups = {spec.a} · {spec.p} · {groups} = {room} ports for {cluster.endpoints} NICs"
        raise cluster.error(("fabric",), f"{few}; use larger groups, or fewer nodes")
    built = _DragonflyHops(spec.a, spec.p, GlobalCables(groups, spec.a, spec.h))
    cluster.check_links(built.firsts[-1], ("a",), "smaller groups")
    return built


def _counts(cluster: NodeSpecs, spec: Dragonfly, built: _DragonflyHops, rate: float) -> dict[str, float]:
    """Return `groups`, `routers`, `local_…`, `global_…`, all `cables`, `bisection` (bytes/s), `oversubscription`, `balanced`."""
    groups = built.between.groups
    parts, cables = (groups, built.between.copies) if groups > 1 else (built.a, 1)
    bisection = parts // 2 * (parts - parts // 2) * cables * rate
    return {
        "groups": groups,
        "routers": built.a * groups,
        "local_cables": built.local_cables,
        "global_cables": built.global_cables,
        "cables": built.local_cables + built.global_cables + cluster.endpoints,
        "bisection": bisection,
        "oversubscription": max(1.0, cluster.endpoints * cluster.nic_rate / 2 / (bisection or np.inf)),
        "balanced": spec.a == 2 * spec.p == 2 * spec.h,
    }


def _fanouts(cluster: NodeSpecs, built: _DragonflyHops) -> tuple[int, ...]:
    """Return (nodes per group, number of groups) without ones; (nodes,) if groups do not hold whole nodes; () for one node."""
    group_nodes, rest = divmod(built.a * built.p, cluster.nics)
    if rest or group_nodes >= cluster.nodes:
        return (cluster.nodes,) if cluster.nodes > 1 else ()
    return tuple(f for f in (group_nodes, -(-cluster.nodes // group_nodes)) if f > 1)


@dataclass(frozen=True, slots=True)
class _DragonflyHops(Wired):
    """Minimal paths: local, global, local. Field names are those of Kim et al.

    Local cable s(s-1)/2 + r of a group joins its routers r < s; global cable c of a pair of groups is number pair·copies + c.
    Links: local up, local down, global up, global down; up is from the router or group with the smaller number.
    """

    a: int
    """Routers per group."""
    p: int
    """Endpoints per router."""
    between: GlobalCables
    """Cables between groups."""

    @property
    def local_cables(self) -> int:
        """Number of cables inside groups."""
        return self.between.groups * (self.a * (self.a - 1) // 2)

    @property
    def global_cables(self) -> int:
        """Number of cables between groups."""
        return self.between.pairs * self.between.copies

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first local and the first global link, followed by the number of links."""
        return 0, 2 * self.local_cables, 2 * (self.local_cables + self.global_cables)

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links (local, global, local) of each pair (pairs, 3), -1: none. Parallel global cables alternate by pair."""
        here, there = self.vertex(source), self.vertex(destination)
        i, k = here // self.a, there // self.a
        columns = np.full((len(here), 3), -1, np.int64)
        away = np.flatnonzero(i != k)
        leave, enter = np.where(i == k, there, here), there.copy()
        if len(away):
            copy = (source[away] + destination[away]) % self.between.copies
            link, leave[away], enter[away] = self.between.cross(i[away], k[away], copy, self.between.copies)
            columns[away, 1] = self.firsts[1] + link
        columns[:, 0] = self._local(here, leave)
        columns[away, 2] = self._local(enter[away], there[away])
        return columns

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination): router of each endpoint and its number modulo parallel cables."""
        turns = max(self.between.copies, 1)
        numbers = self.vertex(endpoint) * turns + endpoint % turns
        return numbers, numbers

    def _local(self, here: Ints, there: Ints) -> Ints:
        """Return the link from each router `here` to router `there` of its group, -1 from a router to itself."""
        r, s = here % self.a, there % self.a
        cable = here // self.a * (self.a * (self.a - 1) // 2) + pair_number(np.minimum(r, s), np.maximum(r, s))
        return np.where(r == s, -1, cable + np.where(r < s, 0, self.local_cables))

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the router of each endpoint; routers are numbered group after group."""
        return endpoint // self.p

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return (router with the smaller number, the other) of local (part 0) or global cables (part 1)."""
        if part == 1:
            return self.between.ends(*np.divmod(cable, self.between.copies))
        group, pair = np.divmod(cable, self.a * (self.a - 1) // 2)
        low, high = pair_ends(pair)
        return group * self.a + low, group * self.a + high

    def name(self, vertex: int) -> str:
        """Return the name of a router, such as `router[3]`."""
        return f"router[{vertex}]"


class GlobalCables(NamedTuple):
    """Cables by the relative arrangement of Camarero, Vallejo and Beivide (2014).

    The c-th cable between groups i < k is port c·(groups-1) + k-i-1 of group i, and port c·(groups-1) + groups-(k-i)-1 of group
    k. Port x is on switch x // h of its group. Pairs of groups are numbered k(k-1)/2 + i.
    """

    groups: int
    switches: int
    """Switches per group that have such cables."""
    h: int
    """Ports to other groups per switch."""

    @property
    def pairs(self) -> int:
        """Number of pairs of groups."""
        return self.groups * (self.groups - 1) // 2

    @property
    def copies(self) -> int:
        """Number of cables between two groups."""
        return self.switches * self.h // (self.groups - 1) if self.groups > 1 else 0

    def ends(self, pair: Ints, copy: Ints) -> tuple[Ints, Ints]:
        """Return (switch in the lower group, switch in the higher group) of cable number `copy` of each pair of groups.

        Switches are numbered group after group.
        """
        low, high = pair_ends(pair)
        port = copy * (self.groups - 1)
        below, above = (port + high - low - 1) // self.h, (port + self.groups - (high - low) - 1) // self.h
        return low * self.switches + below, high * self.switches + above

    def cross(self, source: Ints, destination: Ints, copy: Ints, lanes: int) -> tuple[Ints, Ints, Ints]:
        """Return (link, switch in the group `source`, switch in the group `destination`) of cable `copy` of each pair of groups.

        Each pair has `lanes` links with equally many cables, numbered pair by pair, first all towards the higher group. Source
        and destination must differ.
        """
        pair = pair_number(np.minimum(source, destination), np.maximum(source, destination))
        backward = source > destination
        link = (backward * self.pairs + pair) * lanes + copy * lanes // self.copies
        return link, *directed(backward, *self.ends(pair, copy))


def delays(cluster: NodeSpecs, spec: Dragonfly | DragonflyPlus) -> tuple[float, float]:
    """Return the latency in seconds of a link inside a group and between groups. Raises ConfigError without three lengths."""
    lengths = spec.link.cable or (0.0, 0.0, 0.0)
    if len(lengths) != 3:
        what = f"{len(lengths)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {what}")
    return spec.switch_latency + FIBRE * lengths[1], spec.switch_latency + FIBRE * lengths[2]
