"""A Dragonfly+ (Shpiner et al., HiPINEB 2017; Megafly: Flajslik et al., ISC 2018): groups of leaves and spines, minimal paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.config.fabric import DragonflyPlus
from clustersim.config.fields import validate
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.detours import Detours, crosses
from clustersim.topology.fat_tree_routing import mixed
from clustersim.topology.hops import ClassNumbers, Hops
from clustersim.topology.kinds.fat_tree import check_routing
from clustersim.topology.lattice import triangle
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, BuiltFabric, LinkRange, NodeSpecs

SPEC = DragonflyPlus
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `dragonfly_plus` fabric. Raises ConfigError when its ports or the nodes do not work out."""
    spec = validate(DragonflyPlus, cluster.document, cluster.fabric, ("fabric",))
    check_routing(cluster, spec.routing)
    built = _hops(cluster, spec)
    if spec.link.cable and len(spec.link.cable) != 3:
        lengths = f"{len(spec.link.cable)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}")
    nodes = built.filled // cluster.nics
    network = BuiltFabric(
        ranges=tuple(_ranges(spec, built)),
        hops=built,
        port=_DragonflyPlusPort(built),
        ends=built.ends,
        counts=_counts(cluster, spec, built),
        fanouts=tuple(f for f in (min(nodes, cluster.nodes), -(-cluster.nodes // nodes)) if f > 1),
        rate=spec.link.rate * spec.link.efficiency,
        paths=built.paths,
    )
    return assemble(cluster, "dragonfly_plus", network)


def _hops(cluster: NodeSpecs, spec: DragonflyPlus) -> DragonflyPlusHops:
    if cluster.node.nics is None:
        raise cluster.error((*cluster.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    parallel, nodes = _parallel(cluster, spec), _nodes(cluster, spec)
    groups = _groups(cluster, spec, nodes)
    routing, filled = spec.routing, nodes * cluster.nics
    built = DragonflyPlusHops(
        spec.leaves, spec.spines, spec.p, spec.h, groups, parallel, filled, routing.mode, routing.qps, routing.seed
    )
    if (links := 2 * (built.leaf_links + built.global_links)) > MAX_LINKS:
        what = f"{links} links are too many to build one by one (at most {MAX_LINKS})"
        raise cluster.error(("fabric", "leaves"), f"{what}; use smaller groups, or `mode: adaptive`")
    return built


def _parallel(cluster: NodeSpecs, spec: DragonflyPlus) -> int:
    """Return the cables between a leaf and a spine, once they and the others fit the switches."""
    uplinks, spines = spec.uplinks or spec.spines, spec.spines
    parallel, rest = divmod(uplinks, spines)
    if rest:
        fitting = " or ".join(str(n * spines) for n in (parallel, parallel + 1) if n)
        what = f"{uplinks} cables of a leaf do not divide among {spines} spines"
        raise cluster.error(("fabric", "uplinks"), f"fabric.uplinks: {what}; use {fitting}")
    for name, down, up in (("leaf", spec.p, uplinks), ("spine", spec.leaves * parallel, spec.h)):
        if spec.radix is not None and down + up > spec.radix:
            many = f"a {name} needs {down} ports down and {up} {'up' if name == 'leaf' else 'to other groups'}"
            raise cluster.error(("fabric", "radix"), f"fabric.radix: {many}, not {spec.radix}; use a larger switch")
    return parallel


def _nodes(cluster: NodeSpecs, spec: DragonflyPlus) -> int:
    """Return the nodes of a full group."""
    ports = spec.leaves * spec.p
    if (fit := ports // cluster.nics) < 1:
        few = f"leaves · p = {spec.leaves} · {spec.p} = {ports} ports of a group for {cluster.nics} NICs of a node"
        raise cluster.error(("fabric",), f"{few}; use more leaves, or a larger p")
    if spec.group_nodes is not None and spec.group_nodes > fit:
        few = f"{ports} ports of a group (leaves · p) are enough for {fit} nodes of {cluster.nics} NICs"
        raise cluster.error(("fabric", "group_nodes"), f"fabric.group_nodes: {few}, not {spec.group_nodes}; use fewer")
    return spec.group_nodes or fit


def _groups(cluster: NodeSpecs, spec: DragonflyPlus, nodes: int) -> int:
    cables, needed = spec.spines * spec.h, -(-cluster.nodes // nodes)
    groups, at = spec.groups or needed, ("fabric", "groups" if spec.groups else "h")
    if groups < needed:
        few = f"{groups} groups of {nodes} nodes are too few for {cluster.nodes} nodes"
        raise cluster.error(at, f"fabric.groups: {few}; use {needed}, or larger groups")
    if groups > cables + 1:
        few = f"{spec.spines} spines with {spec.h} global cables each reach {cables} other groups, not {groups - 1}"
        raise cluster.error(at, f"fabric.{at[1]}: {few}; use larger groups, or a larger h")
    if groups > 1 and cables % (groups - 1):
        what = f"{spec.spines} spines · {spec.h} = {cables} global cables of a group do not divide among {groups - 1} others"
        raise cluster.error(at, f"fabric.{at[1]}: {what}; use another h, such as {_divided(spec, groups - 1)}")
    return groups


def _divided(spec: DragonflyPlus, others: int) -> int:
    """Return the nearest h whose cables divide among the other groups, the smaller of two."""
    step = others // int(np.gcd(spec.spines, others))
    return max(step, (2 * spec.h + step - 1) // (2 * step) * step)


def _ranges(spec: DragonflyPlus, built: DragonflyPlusHops) -> Iterator[LinkRange]:
    rate, metres = spec.link.rate * spec.link.efficiency, spec.link.cable or (0.0, 0.0, 0.0)
    leaf, between = built.spines * built.parallel // built.slots, built.copies // max(built.lanes, 1)
    for tier, links, cables, length in (
        ("leaf", built.leaf_links, leaf, metres[1]),
        ("global", built.global_links, between, metres[2]),
    ):
        for direction in ("up", "down"):
            arrays = (np.full(links, float(x)) for x in (cables * rate, spec.switch_latency + FIBRE * length, cables))
            yield LinkRange(f"{tier}-{direction}", *arrays)


def _counts(cluster: NodeSpecs, spec: DragonflyPlus, built: DragonflyPlusHops) -> dict[str, float]:
    groups, leaves, spines = built.groups, built.groups * built.leaves, built.groups * built.spines
    up, between = leaves * built.spines * built.parallel, groups * (groups - 1) // 2 * built.copies
    cut = groups // 2 * (groups - groups // 2) * built.copies if groups > 1 else np.inf
    bisection = min(cluster.endpoints / 2, up / 2, cut) * spec.link.rate * spec.link.efficiency
    return {
        "leaf_switches": leaves,
        "spine_switches": spines,
        "groups": groups,
        "switches": leaves + spines,
        "leaf_cables": cluster.endpoints,
        "spine_cables": up,
        "global_cables": between,
        "cables": cluster.endpoints + up + between,
        "bisection": bisection,
        "oversubscription": max(1.0, cluster.endpoints * cluster.nic_rate / 2 / bisection),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _DragonflyPlusPort:
    """The leaf of an endpoint by name."""

    built: DragonflyPlusHops

    def __call__(self, endpoint: int) -> str:
        return self.built.name(int(self.built.leaf(np.array([endpoint]))[0]))


# The cables of a Dragonfly+ by arithmetic, and the routes over them.
#
# Cable (l·spines + s)·parallel + c of a group joins leaf l to spine s. Global cable (k(k-1)/2 + i)·copies + c is the c-th between
# groups i < k; in group i it is port c·(groups-1) + k-i-1, in group k port c·(groups-1) + groups-(k-i)-1, and port x is on spine
# x // h. Links: leaf up, leaf down, global up, global down; up is towards the spine, or from the group with the smaller number.
# Adaptive routing bundles cables: all of a leaf and all between two groups if every spine has equally many to every group, else
# those that join the same two switches.

_MOST_TRIES = 1000  # of the next cables; then a shortest path


@dataclass(frozen=True, slots=True, eq=False)
class DragonflyPlusHops(Hops):
    """Minimal paths: up to a spine, to the other group, down; inside a group up and down."""

    leaves: int
    """Leaves of a group."""
    spines: int
    """Spines of a group."""
    p: int
    """Ports of a leaf for NICs."""
    h: int
    """Ports of a spine to other groups."""
    groups: int
    """How many."""
    parallel: int
    """Cables from each leaf to each spine of its group."""
    filled: int
    """NICs of a full group."""
    mode: str
    """As in config's Routing: adaptive, dmodk or ecmp."""
    qps: int = 1
    """Queue pairs of two NICs."""
    seed: int = 0
    """Of the hash."""
    around: Detours | None = None
    """Shortest paths without dead links, if there are any."""

    @property
    def copies(self) -> int:
        """Global cables between two groups."""
        return self.spines * self.h // (self.groups - 1) if self.groups > 1 else 0

    @property
    def even(self) -> bool:
        """Whether every spine has equally many cables to every group."""
        return self.groups == 1 or self.h % (self.groups - 1) == 0

    @property
    def slots(self) -> int:
        """Links up from a leaf: one bundle, one a spine, or one a cable."""
        if self.mode == "adaptive":
            return 1 if self.even else self.spines
        return self.spines * self.parallel

    @property
    def lanes(self) -> int:
        """Links between two groups: one bundle, or one a cable."""
        return min(1, self.copies) if self.mode == "adaptive" and self.even else self.copies

    @property
    def leaf_links(self) -> int:
        """Links up from all leaves."""
        return self.groups * self.leaves * self.slots

    @property
    def global_links(self) -> int:
        """Links between groups, in one direction."""
        return self.groups * (self.groups - 1) // 2 * self.lanes

    @property
    def paths(self) -> int:
        """Paths side by side: all spines where their cables are no bundle, else one a queue pair."""
        return max(self.spines, self.copies) if self.mode == "adaptive" and not self.even else self.qps

    def leaf(self, endpoint: Ints) -> Ints:
        """Return the leaves of endpoints."""
        group, number = np.divmod(endpoint, self.filled)
        found: Ints = group * self.leaves + number // self.p
        return found

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints, route after route."""
        routes = self.paths
        a, b, route = source.repeat(routes), destination.repeat(routes), np.tile(np.arange(routes), len(source))
        paths = self._paths(a, b, route, 0)
        if self.around is None:
            return paths.reshape(len(source), -1)
        bad = crosses(paths, self.around.dead)
        for shift in range(1, 1 if self.mode == "adaptive" else _MOST_TRIES):
            if not len(bad) or shift >= self.parallel * max(self.spines, self.copies):
                break
            paths[bad] = self._paths(a[bad], b[bad], route[bad], shift)
            bad = bad[crosses(paths[bad], self.around.dead)]
        paths[bad] = -1
        rows = np.unique(bad // routes)
        return self._detoured(self.around, paths.reshape(len(source), routes, 3), rows, source, destination)

    def _detoured(self, around: Detours, paths: Ints, rows: Ints, source: Ints, destination: Ints) -> Ints:
        """Return the paths, with a shortest one in the rows that have none left."""
        rows = rows[(paths[rows] < 0).all(axis=(1, 2))]
        a, b = (self.leaf(end[rows]).tolist() for end in (source, destination))
        found = [around.path(u, v) for u, v in zip(a, b, strict=True)]
        wide = np.full((*paths.shape[:2], max([3, *map(len, found)])), -1, np.int64)
        wide[:, :, :3] = paths
        for row, path in zip(rows.tolist(), found, strict=True):
            wide[row, 0, : len(path)] = path
        return wide.reshape(len(paths), -1)

    def _paths(self, source: Ints, destination: Ints, route: Ints, shift: int) -> Ints:
        """Return the links (up, global, down) of one route of each pair, the `shift`-th in the order of preference."""
        here, there = self.leaf(source), self.leaf(destination)
        i, k = here // self.leaves, there // self.leaves
        lead = self._lead(source, destination, route) + shift
        spread = np.where(i == k, self.spines, min(self.spines, self.copies or 1))
        leave = enter = lead % self.spines
        columns = np.full((len(source), 3), -1, np.int64)
        if len(between := np.flatnonzero(i != k)):
            low, high = np.minimum(i, k)[between], np.maximum(i, k)[between]
            pair, copy = high * (high - 1) // 2 + low, self._copy(lead[between])
            first = 2 * self.leaf_links + np.where(i[between] < k[between], 0, self.global_links)
            columns[between, 1] = first + pair * self.lanes + copy * self.lanes // self.copies
            below, above = self._spines(pair, copy)
            leave, enter = leave.copy(), enter.copy()
            leave[between], enter[between] = np.where(i[between] < k[between], [below, above], [above, below])
        cable = lead // spread % self.parallel
        columns[:, 0] = self._slot(here, leave, cable)
        columns[:, 2] = self.leaf_links + self._slot(there, enter, cable)
        columns[(here == there) | self._spare(i == k, route)] = -1
        return columns

    def _lead(self, source: Ints, destination: Ints, route: Ints) -> Ints:
        """Return the numbers that choose: of the route, of the destination in its group, or a hash of both and the route."""
        if self.mode == "adaptive":
            return route
        if self.mode == "dmodk":
            return destination % self.filled
        # two bits fewer: the sum with a shift still fits a signed number
        return (mixed(source, destination, route, self.seed) >> np.uint64(2)).astype(np.int64)

    def _spare(self, inside: Mask, route: Ints) -> Mask:
        """Return which routes a pair does not have: there are `spines` inside a group, `copies` between two."""
        return (
            route >= np.where(inside, self.spines, self.copies)
            if self.mode == "adaptive"
            else np.zeros(len(route), bool)
        )

    def _copy(self, lead: Ints) -> Ints:
        """Return which of the cables between two groups: those that follow one another are on different spines."""
        # copy c leaves by spine (c·(groups-1) + …) // h: neighbours in number share a spine, so D-mod-k would send neighbouring
        # destinations over one; turn by turn they take one cable of every spine before the second of any
        each = self.copies // self.spines if self.copies % self.spines == 0 else 1
        within, turn = np.divmod(lead % self.copies, self.copies // each)
        return turn * each + within

    def _slot(self, leaf: Ints, spine: Ints, cable: Ints) -> Ints:
        whole = self.spines * self.parallel
        return leaf * self.slots + (spine * self.parallel + cable) * self.slots // whole

    def _spines(self, pair: Ints, copy: Ints) -> tuple[Ints, Ints]:
        """Return the spines, by number in their group, of global cables in the lower and in the higher group."""
        low, high = triangle(pair)
        base = copy * (self.groups - 1)
        return (base + high - low - 1) // self.h, (base + self.groups - (high - low) - 1) // self.h

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return the leaves, and endpoints where routing looks at those; also around dead links."""
        leaf = self.leaf(endpoint)
        return endpoint if self.mode == "ecmp" else leaf, leaf if self.mode == "adaptive" else endpoint

    def wires(self, link: Ints) -> tuple[Ints, Ints]:
        """Return the switches that links lead from and to: leaves, then spines (for a bundle of spines their first)."""
        local, first = self.leaf_links, self.groups * self.leaves
        inside = link < 2 * local
        leaf, slot = np.divmod(link % max(local, 1), self.slots)
        spine = first + leaf // self.leaves * self.spines + slot * self.spines // self.slots
        backward = np.where(inside, link >= local, link - 2 * local >= self.global_links)
        pair, copy = np.divmod((link - 2 * local) % max(self.global_links, 1), max(self.lanes, 1))
        below, above = self._spines(pair, copy)
        low, high = (first + group * self.spines for group in triangle(pair))
        a, b = np.where(inside, leaf, low + below), np.where(inside, spine, high + above)
        return np.where(backward, b, a), np.where(backward, a, b)

    def name(self, switch: int) -> str:
        """Return the name of a leaf or spine."""
        leaves = self.groups * self.leaves
        return f"leaf[{switch}]" if switch < leaves else f"spine[{switch - leaves}]"

    def ends(self, link: int) -> tuple[str, str]:
        """Return the two switches of a link by name."""
        tail, head = self.wires(np.array([link]))
        return self.name(int(tail[0])), self.name(int(head[0]))

    def without(self, dead: Mask) -> DragonflyPlusHops:
        """Return the paths around dead links. Raises UnreachableError when a switch is cut off."""
        around = Detours.around(self, dead, self.wires(np.arange(len(dead))), self.p, self.name)
        return replace(self, around=around)
