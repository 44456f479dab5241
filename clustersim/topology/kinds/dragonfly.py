"""A dragonfly (Kim, Dally, Scott and Abts, ISCA 2008): fully connected groups of fully connected routers, minimal paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.config.fabric import Dragonfly
from clustersim.config.fields import validate
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.detours import Detours
from clustersim.topology.hops import ClassNumbers, Hops
from clustersim.topology.lattice import triangle
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, BuiltFabric, LinkRange, NodeSpecs

SPEC = Dragonfly
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `dragonfly` fabric. Raises ConfigError when the nodes or the cables do not fit."""
    spec = validate(Dragonfly, cluster.document, cluster.fabric, ("fabric",))
    built = _groups(cluster, spec)
    if spec.link.cable and len(spec.link.cable) != 3:
        lengths = f"{len(spec.link.cable)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}")
    network = BuiltFabric(
        ranges=tuple(_ranges(spec, built)),
        hops=built,
        port=_DragonflyPort(built.p),
        ends=built.ends,
        counts=_counts(cluster, spec, built),
        fanouts=_fanouts(cluster, built),
        rate=spec.link.rate * spec.link.efficiency,
    )
    return assemble(cluster, "dragonfly", network)


def _groups(cluster: NodeSpecs, spec: Dragonfly) -> DragonflyHops:
    if cluster.node.nics is None:
        raise cluster.error((*cluster.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    most = spec.a * spec.h + 1
    groups = spec.groups or most
    if groups > most:
        few = f"{spec.a} routers with {spec.h} global cables each reach {most - 1} other groups, not {groups - 1}"
        raise cluster.error(("fabric", "groups"), f"fabric.groups: {few}; use at most {most}, or a larger a or h")
    if (room := spec.a * spec.p * groups) < cluster.endpoints:
        few = f"a · p · groups = {spec.a} · {spec.p} · {groups} = {room} ports for {cluster.endpoints} NICs"
        raise cluster.error(("fabric",), f"{few}; use larger groups, or fewer nodes")
    built = DragonflyHops(spec.a, spec.p, spec.h, groups)
    links = 2 * (built.local_cables + built.global_cables)
    if links > MAX_LINKS:
        raise cluster.error(("fabric", "a"), f"{links} links are too many (at most {MAX_LINKS}); use smaller groups")
    return built


def _ranges(spec: Dragonfly, built: DragonflyHops) -> Iterator[LinkRange]:
    rate = spec.link.rate * spec.link.efficiency
    metres = spec.link.cable or (0.0, 0.0, 0.0)
    for tier, links, length in (("local", built.local_cables, metres[1]), ("global", built.global_cables, metres[2])):
        for direction in ("up", "down"):
            delay = spec.switch_latency + FIBRE * length
            yield LinkRange(f"{tier}-{direction}", *(np.full(links, float(x)) for x in (rate, delay, 1)))


def _counts(cluster: NodeSpecs, spec: Dragonfly, built: DragonflyHops) -> dict[str, float]:
    parts, cables = (built.groups, built.copies) if built.groups > 1 else (built.a, 1)
    crossing = parts // 2 * (parts - parts // 2) * cables
    bisection = crossing * spec.link.rate * spec.link.efficiency
    return {
        "groups": built.groups,
        "routers": built.a * built.groups,
        "local_cables": built.local_cables,
        "global_cables": built.global_cables,
        "cables": built.local_cables + built.global_cables + cluster.endpoints,
        "bisection": bisection,
        "oversubscription": max(1.0, cluster.endpoints * cluster.nic_rate / 2 / (bisection or np.inf)),
        "balanced": spec.a == 2 * spec.p == 2 * spec.h,
    }


def _fanouts(cluster: NodeSpecs, built: DragonflyHops) -> tuple[int, ...]:
    """Return nodes in a group and groups, if groups hold whole nodes."""
    each, rest = divmod(built.a * built.p, cluster.nics)
    if rest or each >= cluster.nodes:
        return (cluster.nodes,) if cluster.nodes > 1 else ()
    return tuple(f for f in (each, -(-cluster.nodes // each)) if f > 1)


@dataclass(frozen=True, slots=True)
class _DragonflyPort:
    """The router of an endpoint by name."""

    p: int

    def __call__(self, endpoint: int) -> str:
        return name(endpoint // self.p)


# The cables of a dragonfly by arithmetic.
#
# Local cable s(s-1)/2 + r of a group joins its routers r < s. Global cable (k(k-1)/2 + i)·copies + c is the c-th one between
# groups i < k; in group i it is port c·(groups-1) + k-i-1, in group k port c·(groups-1) + groups-(k-i)-1, and port x is on
# router x // h: the relative arrangement of Camarero, Vallejo and Beivide (2014).
# Links: local up, local down, global up, global down; up is from the router or group with the smaller number.


@dataclass(frozen=True, slots=True)
class DragonflyHops(Hops):
    """Minimal paths: local, global, local. The letters are those of Kim et al."""

    a: int
    """Routers of a group."""
    p: int
    """Endpoints of a router."""
    h: int
    """Ports of a router to other groups."""
    groups: int
    """How many."""

    @property
    def copies(self) -> int:
        """Global cables between two groups."""
        return self.a * self.h // (self.groups - 1) if self.groups > 1 else 0

    @property
    def local_cables(self) -> int:
        """Cables inside groups."""
        return self.groups * (self.a * (self.a - 1) // 2)

    @property
    def global_cables(self) -> int:
        """Cables between groups."""
        return self.groups * (self.groups - 1) // 2 * self.copies

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints; parallel global cables take turns by source and destination."""
        here, there = source // self.p, destination // self.p
        i, k = here // self.a, there // self.a
        columns = np.full((len(here), 3), -1, np.int64)
        between = np.flatnonzero(i != k)
        leave, enter = here.copy(), there.copy()
        if len(between):
            copy = (source[between] + destination[between]) % self.copies
            low, high = np.minimum(i, k)[between], np.maximum(i, k)[between]
            cable = (high * (high - 1) // 2 + low) * self.copies + copy
            first = 2 * self.local_cables
            columns[between, 1] = first + cable + np.where(i[between] < k[between], 0, self.global_cables)
            below, above = self._routers(cable)
            leave[between], enter[between] = np.where(i[between] < k[between], [below, above], [above, below])
        columns[:, 0] = self._local(here, np.where(i == k, there, leave))
        columns[between, 2] = self._local(enter[between], there[between])
        return columns

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the routers of endpoints, and which of the parallel cables they would begin with."""
        found = endpoint // self.p * max(self.copies, 1) + endpoint % max(self.copies, 1)
        return found, found

    def _local(self, here: Ints, there: Ints) -> Ints:
        """Return the link between routers of one group, -1 from a router to itself."""
        r, s = here % self.a, there % self.a
        low, high = np.minimum(r, s), np.maximum(r, s)
        cable = here // self.a * (self.a * (self.a - 1) // 2) + high * (high - 1) // 2 + low
        return np.where(r == s, -1, cable + np.where(r < s, 0, self.local_cables))

    def _routers(self, cable: Ints) -> tuple[Ints, Ints]:
        """Return the routers of global cables in the lower and in the higher group."""
        pair, copy = np.divmod(cable, max(self.copies, 1))
        low, high = triangle(pair)
        base = copy * (self.groups - 1)
        of_low, of_high = base + high - low - 1, base + self.groups - (high - low) - 1
        return low * self.a + of_low // self.h, high * self.a + of_high // self.h

    def wires(self) -> tuple[Ints, Ints]:
        """Return the routers that each link leads from and to."""
        group, pair = np.divmod(np.arange(self.local_cables), max(self.a * (self.a - 1) // 2, 1))
        low, high = (group * self.a + end for end in triangle(pair))
        below, above = self._routers(np.arange(self.global_cables))
        return np.concatenate([low, high, below, above]), np.concatenate([high, low, above, below])

    def ends(self, link: int) -> tuple[str, str]:
        """Return the two routers of a link by name."""
        cables = self.local_cables if link < 2 * self.local_cables else self.global_cables
        downward, cable = divmod(link - (0 if link < 2 * self.local_cables else 2 * self.local_cables), cables)
        one = np.array([cable])
        if link < 2 * self.local_cables:
            group, pair = np.divmod(one, self.a * (self.a - 1) // 2)
            low, high = (group * self.a + end for end in triangle(pair))
        else:
            low, high = self._routers(one)
        names = name(int(low[0])), name(int(high[0]))
        return names[::-1] if downward else names

    def without(self, dead: Mask) -> Detours:
        """Return the paths around dead links. Raises UnreachableError when a router is cut off."""
        return Detours.around(self, dead, self.wires(), self.p, name)


def name(router: int) -> str:
    """Return the name of a router."""
    return f"router[{router}]"
