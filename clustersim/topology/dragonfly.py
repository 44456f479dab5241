"""A dragonfly (Kim, Dally, Scott and Abts, ISCA 2008): fully connected groups of fully connected routers, minimal paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clustersim.config.fields import validate
from clustersim.config.topology import Dragonfly
from clustersim.topology.assemble import assemble
from clustersim.topology.fat_tree import LIGHT
from clustersim.topology.groups import Groups, name
from clustersim.topology.model import Topology
from clustersim.topology.site import MAX_LINKS, Network, Run, Site


def build(site: Site) -> Topology:
    """Return the topology of a `dragonfly` fabric. Raises ConfigError when the nodes or the cables do not fit."""
    spec = validate(Dragonfly, site.document, site.fabric, ("fabric",))
    built = _groups(site, spec)
    if spec.link.cable and len(spec.link.cable) != 3:
        lengths = f"{len(spec.link.cable)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise site.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}")
    network = Network(
        runs=tuple(_runs(spec, built)),
        hops=built,
        port=_Port(built.p),
        ends=built.ends,
        counts=_counts(site, spec, built),
        fanouts=_fanouts(site, built),
        rate=spec.link.rate * spec.link.efficiency,
    )
    return assemble(site, "dragonfly", network)


def _groups(site: Site, spec: Dragonfly) -> Groups:
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    most = spec.a * spec.h + 1
    groups = spec.groups or most
    if groups > most:
        few = f"{spec.a} routers with {spec.h} global cables each reach {most - 1} other groups, not {groups - 1}"
        raise site.error(("fabric", "groups"), f"fabric.groups: {few}; use at most {most}, or a larger a or h")
    if (room := spec.a * spec.p * groups) < site.endpoints:
        few = f"a · p · groups = {spec.a} · {spec.p} · {groups} = {room} ports for {site.endpoints} NICs"
        raise site.error(("fabric",), f"{few}; use larger groups, or fewer nodes")
    built = Groups(spec.a, spec.p, spec.h, groups)
    links = 2 * (built.local_cables + built.global_cables)
    if links > MAX_LINKS:
        raise site.error(("fabric", "a"), f"{links} links are too many (at most {MAX_LINKS}); use smaller groups")
    return built


def _runs(spec: Dragonfly, built: Groups) -> Iterator[Run]:
    rate = spec.link.rate * spec.link.efficiency
    metres = spec.link.cable or (0.0, 0.0, 0.0)
    for tier, links, length in (("local", built.local_cables, metres[1]), ("global", built.global_cables, metres[2])):
        for way in ("up", "down"):
            delay = spec.switch_latency + LIGHT * length
            yield Run(f"{tier}-{way}", *(np.full(links, float(x)) for x in (rate, delay, 1)))


def _counts(site: Site, spec: Dragonfly, built: Groups) -> dict[str, float]:
    parts, cables = (built.groups, built.copies) if built.groups > 1 else (built.a, 1)
    crossing = parts // 2 * (parts - parts // 2) * cables
    bisection = crossing * spec.link.rate * spec.link.efficiency
    return {
        "groups": built.groups,
        "routers": built.a * built.groups,
        "local_cables": built.local_cables,
        "global_cables": built.global_cables,
        "cables": built.local_cables + built.global_cables + site.endpoints,
        "bisection": bisection,
        "oversubscription": max(1.0, site.endpoints * site.nic_rate / 2 / (bisection or np.inf)),
        "balanced": spec.a == 2 * spec.p == 2 * spec.h,
    }


def _fanouts(site: Site, built: Groups) -> tuple[int, ...]:
    """Return nodes in a group and groups, if groups hold whole nodes."""
    each, rest = divmod(built.a * built.p, site.nics)
    if rest or each >= site.nodes:
        return (site.nodes,) if site.nodes > 1 else ()
    return tuple(f for f in (each, -(-site.nodes // each)) if f > 1)


@dataclass(frozen=True, slots=True)
class _Port:
    """The router of an endpoint by name."""

    p: int

    def __call__(self, endpoint: int) -> str:
        return name(endpoint // self.p)
