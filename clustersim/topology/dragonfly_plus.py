"""A Dragonfly+ (Shpiner et al., HiPINEB 2017; Megafly: Flajslik et al., ISC 2018): groups of leaves and spines, minimal paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clustersim.config.fields import validate
from clustersim.config.topology import DragonflyPlus
from clustersim.topology.assemble import assemble
from clustersim.topology.cells import Cells
from clustersim.topology.fat_tree import LIGHT, check_routing
from clustersim.topology.model import Topology
from clustersim.topology.site import MAX_LINKS, Network, Run, Site


def build(site: Site) -> Topology:
    """Return the topology of a `dragonfly_plus` fabric. Raises ConfigError when its ports or the nodes do not work out."""
    spec = validate(DragonflyPlus, site.document, site.fabric, ("fabric",))
    check_routing(site, spec.routing)
    built = _cells(site, spec)
    if spec.link.cable and len(spec.link.cable) != 3:
        lengths = f"{len(spec.link.cable)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise site.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}")
    nodes = built.filled // site.nics
    network = Network(
        runs=tuple(_runs(spec, built)),
        hops=built,
        port=_Port(built),
        ends=built.ends,
        counts=_counts(site, spec, built),
        fanouts=tuple(f for f in (min(nodes, site.nodes), -(-site.nodes // nodes)) if f > 1),
        rate=spec.link.rate * spec.link.efficiency,
        ways=built.ways,
    )
    return assemble(site, "dragonfly_plus", network)


def _cells(site: Site, spec: DragonflyPlus) -> Cells:
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    parallel, nodes = _parallel(site, spec), _nodes(site, spec)
    groups = _groups(site, spec, nodes)
    routing, filled = spec.routing, nodes * site.nics
    built = Cells(
        spec.leaves, spec.spines, spec.p, spec.h, groups, parallel, filled, routing.mode, routing.qps, routing.seed
    )
    if (links := 2 * (built.leaf_links + built.global_links)) > MAX_LINKS:
        what = f"{links} links are too many to lay one by one (at most {MAX_LINKS})"
        raise site.error(("fabric", "leaves"), f"{what}; use smaller groups, or `mode: adaptive`")
    return built


def _parallel(site: Site, spec: DragonflyPlus) -> int:
    """Return the cables between a leaf and a spine, once they and the others fit the switches."""
    uplinks, spines = spec.uplinks or spec.spines, spec.spines
    parallel, rest = divmod(uplinks, spines)
    if rest:
        near = " or ".join(str(n * spines) for n in (parallel, parallel + 1) if n)
        what = f"{uplinks} cables of a leaf do not divide among {spines} spines"
        raise site.error(("fabric", "uplinks"), f"fabric.uplinks: {what}; use {near}")
    for name, down, up in (("leaf", spec.p, uplinks), ("spine", spec.leaves * parallel, spec.h)):
        if spec.radix is not None and down + up > spec.radix:
            many = f"a {name} needs {down} ports down and {up} {'up' if name == 'leaf' else 'to other groups'}"
            raise site.error(("fabric", "radix"), f"fabric.radix: {many}, not {spec.radix}; use a larger switch")
    return parallel


def _nodes(site: Site, spec: DragonflyPlus) -> int:
    """Return the nodes of a full group."""
    ports = spec.leaves * spec.p
    if (fit := ports // site.nics) < 1:
        few = f"leaves · p = {spec.leaves} · {spec.p} = {ports} ports of a group for {site.nics} NICs of a node"
        raise site.error(("fabric",), f"{few}; use more leaves, or a larger p")
    if spec.group_nodes is not None and spec.group_nodes > fit:
        few = f"{ports} ports of a group (leaves · p) are enough for {fit} nodes of {site.nics} NICs"
        raise site.error(("fabric", "group_nodes"), f"fabric.group_nodes: {few}, not {spec.group_nodes}; use fewer")
    return spec.group_nodes or fit


def _groups(site: Site, spec: DragonflyPlus, nodes: int) -> int:
    cables, needed = spec.spines * spec.h, -(-site.nodes // nodes)
    groups, at = spec.groups or needed, ("fabric", "groups" if spec.groups else "h")
    if groups < needed:
        few = f"{groups} groups of {nodes} nodes are too few for {site.nodes} nodes"
        raise site.error(at, f"fabric.groups: {few}; use {needed}, or larger groups")
    if groups > cables + 1:
        few = f"{spec.spines} spines with {spec.h} global cables each reach {cables} other groups, not {groups - 1}"
        raise site.error(at, f"fabric.{at[1]}: {few}; use larger groups, or a larger h")
    if groups > 1 and cables % (groups - 1):
        what = f"{spec.spines} spines · {spec.h} = {cables} global cables of a group do not divide among {groups - 1} others"
        raise site.error(at, f"fabric.{at[1]}: {what}; use another h, such as {_divided(spec, groups - 1)}")
    return groups


def _divided(spec: DragonflyPlus, others: int) -> int:
    """Return the nearest h whose cables divide among the other groups, the smaller of two."""
    step = others // int(np.gcd(spec.spines, others))
    return max(step, (2 * spec.h + step - 1) // (2 * step) * step)


def _runs(spec: DragonflyPlus, built: Cells) -> Iterator[Run]:
    rate, metres = spec.link.rate * spec.link.efficiency, spec.link.cable or (0.0, 0.0, 0.0)
    leaf, between = built.spines * built.parallel // built.slots, built.copies // max(built.lanes, 1)
    for tier, links, cables, length in (
        ("leaf", built.leaf_links, leaf, metres[1]),
        ("global", built.global_links, between, metres[2]),
    ):
        for way in ("up", "down"):
            arrays = (np.full(links, float(x)) for x in (cables * rate, spec.switch_latency + LIGHT * length, cables))
            yield Run(f"{tier}-{way}", *arrays)


def _counts(site: Site, spec: DragonflyPlus, built: Cells) -> dict[str, float]:
    groups, leaves, spines = built.groups, built.groups * built.leaves, built.groups * built.spines
    up, between = leaves * built.spines * built.parallel, groups * (groups - 1) // 2 * built.copies
    cut = groups // 2 * (groups - groups // 2) * built.copies if groups > 1 else np.inf
    bisection = min(site.endpoints / 2, up / 2, cut) * spec.link.rate * spec.link.efficiency
    return {
        "leaf_switches": leaves,
        "spine_switches": spines,
        "groups": groups,
        "switches": leaves + spines,
        "leaf_cables": site.endpoints,
        "spine_cables": up,
        "global_cables": between,
        "cables": site.endpoints + up + between,
        "bisection": bisection,
        "oversubscription": max(1.0, site.endpoints * site.nic_rate / 2 / bisection),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Port:
    """The leaf of an endpoint by name."""

    built: Cells

    def __call__(self, endpoint: int) -> str:
        return self.built.name(int(self.built.leaf(np.array([endpoint]))[0]))
