"""A fat tree of 1 to 5 tiers, with or without rails, oversubscribed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clustersim.config.fabric import FatTree, Link, Routing, Tier
from clustersim.config.fields import validate
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.fat_tree_routing import Bundles, Dmodk, Ecmp, FatTreeHops, Mode, bundle_firsts, cable_firsts
from clustersim.topology.fat_tree_sizing import sized
from clustersim.topology.fat_tree_wiring import ROUNDED, Level, Tree
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, BuiltFabric, LinkRange, NodeSpecs
from clustersim.units import plural

SPEC = FatTree
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `fat_tree` fabric. Raises ConfigError when its ports do not work out."""
    spec = validate(FatTree, cluster.document, cluster.fabric, ("fabric",))
    return assemble(cluster, "fat_tree", network(cluster, spec))


# Names of trees that the field knows. Each has a file of its own, for a name in YAML is a file.


def leaf_spine(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `leaf_spine` fabric: two tiers. Raises ConfigError as `build` does, and for another number."""
    spec = validate(FatTree, cluster.document, cluster.fabric, ("fabric",))
    spec = spec if spec.tiers else spec.model_copy(update={"tiers": (Tier(), Tier())})
    if len(spec.tiers) != 2:
        many = f"a leaf_spine has two tiers, a leaf and a spine, not {len(spec.tiers)}"
        raise cluster.error(("fabric", "tiers"), f"fabric.tiers: {many}; use kind: fat_tree for other trees")
    return assemble(cluster, "leaf_spine", network(cluster, spec))


def rail_optimized(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `rail_optimized` fabric: NIC j of every node hangs on a leaf of rail j. Raises as `build` does."""
    spec = validate(FatTree, cluster.document, {"rails": "optimized", **cluster.fabric}, ("fabric",))
    return assemble(cluster, "rail_optimized", network(cluster, spec))


def rail_only(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `rail_only` fabric: rails that nothing joins (Wang et al. 2023, "Rail-only").

    Traffic to another rail first goes to the GPU of that rail inside the node, as NCCL's PXN does. Raises ConfigError as `build`
    does, and when nodes cannot change rails.
    """
    written = {"rails": "optimized", "rail_planes": True, **cluster.fabric}
    spec = validate(FatTree, cluster.document, written, ("fabric",))
    if spec.rails == "none" or not spec.rail_planes:
        key = "rails" if spec.rails == "none" else "rail_planes"
        raise cluster.error(
            ("fabric", key), f"fabric.{key}: rail_only keeps its rails apart; drop it, or use kind: fat_tree"
        )
    if cluster.node.scale_up.kind == "none" and max(cluster.nic_counts) > 1:
        alone = (
            "scale_up is missing; rails that nothing joins need links between the GPUs of a node to change rails over"
        )
        raise cluster.error((*cluster.at, "scale_up"), f"{alone}; add scale_up, or use kind: rail_optimized")
    return assemble(cluster, "rail_only", network(cluster, spec))


def network(cluster: NodeSpecs, spec: FatTree) -> BuiltFabric:
    """Return the network of a fat tree; `spec` is checked against the nodes."""
    _check(cluster, spec)
    spec, link, built = sized(cluster, spec)
    adaptive, qps = spec.routing.mode == "adaptive", spec.routing.qps
    links = 0 if adaptive else sum(2 * level.cables * built.leaves.networks for level in built.levels)
    if links > MAX_LINKS:
        many = f"{links} links are too many to build one by one (at most {MAX_LINKS})"
        raise cluster.error(("fabric", "routing", "mode"), f"{many}; use `mode: adaptive` or fewer nodes")
    return BuiltFabric(
        ranges=(*_ports(link, built), *_ranges(spec, link, built, adaptive)),
        hops=FatTreeHops(built, _mode(spec, built), qps),
        port=_FatTreePort(built),
        ends=_FatTreeEnds(built, adaptive, (bundle_firsts if adaptive else cable_firsts)(built)),
        counts=_counts(cluster, spec, link, built),
        fanouts=_fanouts(cluster, built),
        rate=link.rate * link.efficiency * spec.planes,
        rails=_kept(cluster, built),
        paths=qps * spec.planes,
        reduction=spec.reduction,
        warnings=tuple(_not_full(cluster, spec, built)),
    )


def _not_full(cluster: NodeSpecs, spec: FatTree, built: Tree) -> Iterator[str]:
    """Yield the oversubscription of leaves that too few nodes hang on for the one that was asked for."""
    asked, leaf = spec.oversubscription, built.tiers[0]
    if asked and leaf.up and cluster.nodes > 1 and leaf.down < asked * leaf.up * (1 - ROUNDED):
        few = f"leaves with {plural(leaf.down, 'NIC', 'NICs')} and {plural(leaf.up, 'uplink', 'uplinks')}"
        yield f"fabric.oversubscription: {few} are {leaf.down / leaf.up:.4g} : 1, not {asked:g} : 1; more nodes fill them"


def _kept(cluster: NodeSpecs, built: Tree) -> int:
    """Return the rails that traffic keeps to: with PXN all, which RCCL leaves off (paths.cc) where a spine joins them."""
    crosses = cluster.node.scale_up.kind == "mesh" and built.leaves.parts == 1
    return 1 if crosses else max(1, built.leaves.rails)


def _mode(spec: FatTree, built: Tree) -> Mode:
    if spec.routing.mode == "adaptive":
        return Bundles(built)
    return Dmodk(built) if spec.routing.mode == "dmodk" else Ecmp(built, spec.routing.seed)


def _ports(link: Link, built: Tree) -> Iterable[LinkRange]:
    """Yield the ports of the NICs, if they have several: number endpoint · planes + plane."""
    for direction in ("up", "down") if built.ports else ():
        arrays = (np.full(built.ports, x) for x in (link.rate * link.efficiency, 0.0, 1.0))
        yield LinkRange(f"port-{direction}", *arrays)


def _check(cluster: NodeSpecs, spec: FatTree) -> None:
    if cluster.node.nics is None:
        raise cluster.error((*cluster.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    check_routing(cluster, spec.routing)


def check_routing(cluster: NodeSpecs, routing: Routing) -> None:
    """Raise ConfigError for queue pairs that nothing hashes."""
    if routing.qps > 1 and routing.mode != "ecmp":
        raise cluster.error(
            ("fabric", "routing", "qps"), f"qps is for `mode: ecmp`; {routing.mode} sends one flow a pair"
        )


def _ranges(spec: FatTree, link: Link, built: Tree, adaptive: bool) -> Iterable[LinkRange]:
    rate = link.rate * link.efficiency
    for t, level in enumerate(built.levels):
        cables = level.planes * level.ports if adaptive else 1
        links = level.cables // cables * built.leaves.networks
        delay = spec.switch_latency + FIBRE * (link.cable[t + 1] if link.cable else 0.0)
        for direction in ("up", "down"):
            arrays = (np.full(links, float(x)) for x in (cables * rate, delay, cables))
            yield LinkRange(f"{built.tiers[t].name}-{direction}", *arrays)


def _counts(cluster: NodeSpecs, spec: FatTree, link: Link, built: Tree) -> dict[str, float]:
    cables = [cluster.endpoints * spec.planes, *(level.cables * built.leaves.networks for level in built.levels)]
    counts: dict[str, float] = {}
    for t, tier in enumerate(built.tiers):
        counts[f"{tier.name}_switches"] = built.switches(t)
    for tier, number in zip(built.tiers, cables, strict=True):
        counts[f"{tier.name}_cables"] = number
    counts["switches"] = sum(built.switches(t) for t in range(len(built.tiers)))
    counts["switch_ports"] = sum(built.switches(t) * ports.radix for t, ports in enumerate(built.tiers))
    counts["cables"] = sum(cables)
    counts["bisection"] = min(cables) / 2 * link.rate * link.efficiency
    counts["oversubscription"] = max(
        [1.0, *(_hung(built, level) / (level.planes * level.ports) for level in built.levels)]
    )
    return counts


def _hung(built: Tree, level: Level) -> int:
    """Return the NICs below a full group of a tier: those that share its uplinks."""
    leaves = built.leaves
    leaf = min(leaves.down, leaves.unit if leaves.rails else leaves.endpoints)
    return min(leaf * level.span, leaves.endpoints // leaves.parts)


def _fanouts(cluster: NodeSpecs, built: Tree) -> tuple[int, ...]:
    """Return nodes under a set of leaves, sets of leaves in a pod, …; ceilings where a group is not full, ones left out."""
    leaves = built.leaves
    if not leaves.nics:
        return (cluster.nodes,)
    if leaves.rails:
        first, width = leaves.unit * leaves.rails // leaves.nics, leaves.sets * leaves.rails // leaves.parts
    else:
        first, width = max(1, leaves.down // leaves.nics), -(-leaves.nics // leaves.down)
    reach = [first * max(1, level.span // width) for level in built.levels]
    fanouts: list[int] = []
    product = 1
    for nodes in (*reach, cluster.nodes):
        fanout = -(-min(nodes, cluster.nodes) // product)
        product *= fanout
        fanouts += [fanout] if fanout > 1 else []
    return tuple(fanouts)


def _switch(built: Tree, tier: int, group: int, plane: int) -> str:
    return f"{built.tiers[tier].name}[{group * built.planes(tier) + plane}]"


def _above(level: Level, group: int) -> int:
    upper = -(-level.groups // level.pod)
    return group // level.groups * upper + group % level.groups // level.pod


@dataclass(frozen=True, slots=True, eq=False)
class _FatTreePort:
    """The leaf of an endpoint by name, or its ports if it has several."""

    built: Tree

    def __call__(self, endpoint: int) -> str:
        return f"ports[{endpoint}]" if self.built.ports else _leaf(self.built, endpoint, 0)


def _leaf(built: Tree, endpoint: int, plane: int) -> str:
    place = built.leaves.place(np.array([endpoint]), plane)
    return _switch(built, 0, int(place.network[0]) * built.leaves.total + int(place.leaf[0]), 0)


@dataclass(frozen=True, slots=True, eq=False)
class _FatTreeEnds:
    """The two ends of a link: switches, or in bundles the groups of switches, whose name is that of their first."""

    built: Tree
    adaptive: bool
    firsts: Sequence[int]
    """First link of each level, and the number of links."""

    def __call__(self, link: int) -> tuple[str, str]:
        ports = self.built.ports
        if link < 2 * ports:
            endpoint, plane = divmod(link % ports, self.built.leaves.planes)
            ends = f"ports[{endpoint}]", _leaf(self.built, endpoint, plane)
            return ends if link < ports else ends[::-1]
        firsts = self.firsts
        tier = next(t for t in range(len(self.built.levels)) if link < firsts[t + 1])
        upward, number = divmod(link - firsts[tier], (firsts[tier + 1] - firsts[tier]) // 2)
        pair = (self._bundle if self.adaptive else self._cable)(tier, number)
        return pair if upward == 0 else pair[::-1]

    def _bundle(self, tier: int, group: int) -> tuple[str, str]:
        above = _above(self.built.levels[tier], group)
        return _switch(self.built, tier, group, 0), _switch(self.built, tier + 1, above, 0)

    def _cable(self, tier: int, cable: int) -> tuple[str, str]:
        level = self.built.levels[tier]
        switch, port = divmod(cable, level.ports)
        group, plane = divmod(switch, level.planes)
        entry = (group % level.groups % level.pod * level.merge + plane % level.merge) * level.ports + port
        above = plane // level.merge * level.spread + entry % level.spread
        return _switch(self.built, tier, group, plane), _switch(self.built, tier + 1, _above(level, group), above)
