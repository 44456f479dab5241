"""A Dragonfly+ (Shpiner et al., HiPINEB 2017; Megafly: Flajslik et al., ISC 2018): groups of leaves and spines, minimal paths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from clustersim.arrays import Ints, Mask, distinct
from clustersim.config.fabric import DragonflyPlus, Routing
from clustersim.topology.assemble import assemble
from clustersim.topology.detours import Detours, Wired, crosses
from clustersim.topology.fat_tree_routing import route_hash
from clustersim.topology.hops import ClassNumbers
from clustersim.topology.kinds.dragonfly import GlobalCables, delays
from clustersim.topology.kinds.fat_tree import check_routing
from clustersim.topology.model import Topology
from clustersim.topology.specs import BuiltFabric, NodeSpecs, both_ways

SPEC = DragonflyPlus
_MOST_TRIES = 1000  # of the next cables; after that a shortest path


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `dragonfly_plus` fabric. Raises ConfigError if its ports or nodes do not fit."""
    spec = cluster.section(DragonflyPlus)
    check_routing(cluster, spec.routing)
    built = _hops(cluster, spec)
    inside, between = delays(cluster, spec)
    nodes, rate = built.filled // cluster.nics, spec.link.rate * spec.link.efficiency
    bundle, trunk = built.spines * built.parallel // built.slots, built.between.copies // max(built.lanes, 1)
    network = BuiltFabric(
        ranges=(
            *both_ways("leaf", built.leaf_links, bundle * rate, inside, bundle),
            *both_ways("global", built.global_links, trunk * rate, between, trunk),
        ),
        hops=built,
        port=built.port,
        ends=built.ends,
        counts=_counts(cluster, built, rate),
        fanouts=tuple(f for f in (min(nodes, cluster.nodes), -(-cluster.nodes // nodes)) if f > 1),
        rate=rate,
        paths=built.paths,
    )
    return assemble(cluster, "dragonfly_plus", network)


def _hops(cluster: NodeSpecs, spec: DragonflyPlus) -> _DragonflyPlusHops:
    """Return the routes of the fabric. Raises ConfigError if ports, nodes or groups do not fit, or for too many links."""
    parallel, nodes = _parallel(cluster, spec), _nodes(cluster, spec)
    between = GlobalCables(_groups(cluster, spec, nodes), spec.spines, spec.h)
    slots, lanes, paths = spec.spines * parallel, between.copies, spec.routing.qps
    if spec.routing.mode == "adaptive":
        even = between.groups == 1 or spec.h % (between.groups - 1) == 0  # each spine has as many cables to each group
        slots, lanes = (1, min(1, lanes)) if even else (spec.spines, lanes)
        paths = paths if even else max(spec.spines, lanes)
    filled = nodes * cluster.nics
    built = _DragonflyPlusHops(spec.leaves, spec.p, between, parallel, filled, spec.routing, slots, lanes, paths)
    cluster.check_links(built.firsts[-1], ("leaves",), "smaller groups, or `mode: adaptive`")
    return built


def _parallel(cluster: NodeSpecs, spec: DragonflyPlus) -> int:
    """Return the number of cables between a leaf and a spine. Raises ConfigError unless all cables fit the switches."""
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
    """Return the number of nodes of a full group. Raises ConfigError if `group_nodes` do not fit, or not even one."""
    ports = spec.leaves * spec.p
    if (fit := ports // cluster.nics) < 1:
        few = f"leaves · p = {spec.leaves} · {spec.p} = {ports} ports of a group for {cluster.nics} NICs of a node"
        raise cluster.error(("fabric",), f"{few}; use more leaves, or a larger p")
    if spec.group_nodes is not None and spec.group_nodes > fit:
        few = f"{ports} ports of a group (leaves · p) are enough for {fit} nodes of {cluster.nics} NICs"
        raise cluster.error(("fabric", "group_nodes"), f"fabric.group_nodes: {few}, not {spec.group_nodes}; use fewer")
    return spec.group_nodes or fit


def _groups(cluster: NodeSpecs, spec: DragonflyPlus, nodes: int) -> int:
    """Return the number of groups of `nodes` nodes. Raises ConfigError if the spines' cables do not join them evenly."""
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
        step = (groups - 1) // gcd(spec.spines, groups - 1)  # cables divide evenly for each multiple of it
        nearest = max(step, (2 * spec.h + step - 1) // (2 * step) * step)  # of two the smaller
        raise cluster.error(at, f"fabric.{at[1]}: {what}; use another h, such as {nearest}")
    return groups


def _counts(cluster: NodeSpecs, built: _DragonflyPlusHops, rate: float) -> dict[str, float]:
    """Return {name: number} of switches and cables by tier, with the bisection in bytes/s at `rate` per cable."""
    groups, copies = built.between.groups, built.between.copies
    leaves, spines = groups * built.leaves, groups * built.spines
    up, between = leaves * built.spines * built.parallel, built.between.pairs * copies
    cut = groups // 2 * (groups - groups // 2) * copies if groups > 1 else np.inf
    bisection = min(cluster.endpoints / 2, up / 2, cut) * rate
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


# Routes over the cables of a Dragonfly+. Cable (l·spines + s)·parallel + c of a group joins leaf l to spine s; global cable c of
# a pair of groups is number pair·copies + c. Links: leaf up, leaf down, global up, global down; up is towards the spine, or from
# the group with the smaller number. Adaptive routing bundles cables: all of a leaf, and all between two groups if every spine has
# equally many to every group, otherwise those between the same two switches.


@dataclass(frozen=True, slots=True, eq=False)
class _DragonflyPlusHops(Wired):
    """Minimal paths: up to a spine, to the other group, down; inside a group up and down."""

    leaves: int
    """Leaves per group."""
    p: int
    """Ports per leaf for NICs."""
    between: GlobalCables
    """Cables between the spines of groups."""
    parallel: int
    """Cables from each leaf to each spine of its group."""
    filled: int
    """NICs of a full group."""
    routing: Routing
    slots: int
    """Links up per leaf: one bundle, one per spine, or one per cable."""
    lanes: int
    """Links between two groups: one bundle, or one per cable."""
    paths: int
    """Paths side by side in a row: one per spine if their cables are not a bundle, else one per queue pair."""
    around: Detours | None = None
    """Shortest paths around dead links; None without dead links."""

    @property
    def spines(self) -> int:
        """Spines per group."""
        return self.between.switches

    @property
    def adaptive(self) -> bool:
        """Whether packets spread over all cables."""
        return self.routing.mode == "adaptive"

    @property
    def leaf_links(self) -> int:
        """Number of links up from all leaves."""
        return self.between.groups * self.leaves * self.slots

    @property
    def global_links(self) -> int:
        """Number of links between groups in one direction."""
        return self.between.pairs * self.lanes

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first link of the leaves and between groups, followed by the number of links."""
        return 0, 2 * self.leaf_links, 2 * (self.leaf_links + self.global_links)

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination, `paths` routes side by side (pairs, width); -1: none."""
        routes = self.paths
        a, b, route = source.repeat(routes), destination.repeat(routes), np.tile(np.arange(routes), len(source))
        paths = self._paths(a, b, route, 0)
        if self.around is None:
            return paths.reshape(len(source), -1)
        blocked = crosses(paths, self.around.dead)
        tries = 1 if self.adaptive else min(_MOST_TRIES, self.parallel * max(self.spines, self.between.copies))
        for shift in range(1, tries):
            if not len(blocked):
                break
            paths[blocked] = self._paths(a[blocked], b[blocked], route[blocked], shift)
            blocked = blocked[crosses(paths[blocked], self.around.dead)]
        paths[blocked] = -1
        paths = paths.reshape(len(source), routes, 3)
        rows = distinct(blocked // routes)  # pairs that lost a route: those without any route take a shortest path
        rows = rows[(paths[rows] < 0).all(axis=(1, 2))]
        return self.around.detoured(paths, rows, source, destination)

    def _paths(self, source: Ints, destination: Ints, route: Ints, shift: int) -> Ints:
        """Return the links (up, global, down) of one route per pair (pairs, 3); -1: none.

        route: number of the route. shift: index of the choice in order of preference, from 0.
        """
        here, there = self.vertex(source), self.vertex(destination)
        i, k = here // self.leaves, there // self.leaves
        lead, copies = self._lead(source, destination, route) + shift, self.between.copies
        leave, enter = lead % self.spines, lead % self.spines
        columns = np.full((len(source), 3), -1, np.int64)
        if len(away := np.flatnonzero(i != k)):
            copy = self._copy(lead[away])
            link, leave[away], enter[away] = self.between.cross(i[away], k[away], copy, self.lanes)
            columns[away, 1] = self.firsts[1] + link
        cable = lead // np.where(i == k, self.spines, min(self.spines, copies or 1)) % self.parallel
        columns[:, 0] = self._slot(here, leave % self.spines, cable)
        columns[:, 2] = self.leaf_links + self._slot(there, enter % self.spines, cable)
        # adaptive: a pair has `spines` routes inside a group, `copies` between two
        spare = route >= np.where(i == k, self.spines, copies) if self.adaptive else False
        columns[(here == there) | spare] = -1
        return columns

    def _lead(self, source: Ints, destination: Ints, route: Ints) -> Ints:
        """Return the number that chooses each route's cables: `route` if adaptive, the destination in its group, or a hash."""
        if self.adaptive:
            return route
        if self.routing.mode == "dmodk":
            return destination % self.filled
        # two bits fewer, so that the sum with a shift still fits a signed number
        return (route_hash(source, destination, route, self.routing.seed) >> np.uint64(2)).astype(np.int64)

    def _copy(self, lead: Ints) -> Ints:
        """Return the index of the cable between two groups that `lead` chooses; consecutive numbers lead to different spines."""
        # copy c leaves by spine (c·(groups-1) + …) // h: adjacent numbers share a spine, so D-mod-k would send adjacent
        # destinations over one spine; in this order they use one cable of every spine before the second of any
        copies = self.between.copies
        per_spine = copies // self.spines if copies % self.spines == 0 else 1
        within, turn = np.divmod(lead % copies, copies // per_spine)
        return turn * per_spine + within

    def _slot(self, leaf: Ints, spine: Ints, cable: Ints) -> Ints:
        """Return the index of the link up from each `leaf` for a cable to a `spine`; in a bundle several cables share one."""
        leaf_cables = self.spines * self.parallel
        return leaf * self.slots + (spine * self.parallel + cable) * self.slots // leaf_cables

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination) of each endpoint: its leaf, or itself if routes depend on it."""
        leaf = self.vertex(endpoint)
        return endpoint if self.routing.mode == "ecmp" else leaf, leaf if self.adaptive else endpoint

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the leaf of each endpoint; leaves are numbered group after group."""
        group, number = np.divmod(endpoint, self.filled)
        leaf: Ints = group * self.leaves + number // self.p
        return leaf

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return the switches at the ends of cables: a leaf and a spine (part 0), or two spines; for a bundle the first."""
        first = self.between.groups * self.leaves
        if part == 1:
            low, high = self.between.ends(*np.divmod(cable, self.lanes))
            return first + low, first + high
        leaf, slot = np.divmod(cable, self.slots)
        return leaf, first + leaf // self.leaves * self.spines + slot * self.spines // self.slots

    def name(self, vertex: int) -> str:
        """Return the name of a leaf or spine, such as `spine[3]`."""
        leaves = self.between.groups * self.leaves
        return f"leaf[{vertex}]" if vertex < leaves else f"spine[{vertex - leaves}]"

    def without(self, dead: Mask) -> _DragonflyPlusHops:
        """Return the paths around dead links. Raises UnreachableError if a switch is cut off."""
        return replace(self, around=Detours.around(self, dead))
