"""Fat-tree wiring: the number of switches and cables of each tier by checked port arithmetic.

A tier-t group joins `pod` groups of the tier below (tier 0: the leaves). A lower group has S switches ("planes") of u
uplinks. `merge` neighbouring planes share one set of `spread` upper switches: cable (lower group q, plane i, port p) is
number c = (q·merge + i % merge)·u + p of its set and goes to switch c % spread there, into port c // spread. With merge 1 and
full pods this is the classic k-ary n-tree (Leiserson 1985; Petrini and Vanneschi 1997).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate
from math import ceil, gcd, lcm
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, divide
from clustersim.config.fabric import FatTree, Link, Tier
from clustersim.config.yaml import Loc
from clustersim.topology.specs import NodeSpecs
from clustersim.units import either, plural


class Level(NamedTuple):
    """Cables from one tier to the next in one network, in the module's notation."""

    groups: int
    """Number of lower groups."""
    pod: int
    """Lower groups per upper group; the last upper group may have fewer."""
    span: int
    """Leaves below one lower group."""
    planes: int
    """Switches per lower group (S in the module)."""
    ports: int
    """Uplinks per lower switch (u in the module)."""
    merge: int
    """Adjacent planes that share a set of upper switches."""
    spread: int
    """Upper switches per set."""

    @property
    def cables(self) -> int:
        """Number of cables of this level in one network."""
        return self.groups * self.planes * self.ports

    @property
    def choices(self) -> int:
        """Number of routes up and down again through this level."""
        return self.ports * -(-self.ports // self.spread)

    def above(self, group: Ints) -> Ints:
        """Return the upper group of each lower `group`; both are numbered network after network."""
        network, local_group = np.divmod(group, self.groups)
        upper: Ints = network * -(-self.groups // self.pod) + local_group // self.pod
        return upper


class Place(NamedTuple):
    """Positions of endpoints on leaves, as columns."""

    network: Ints
    """Index of the network: rail planes, and planes, are separate networks."""
    leaf: Ints
    """Index of the leaf in its network."""
    port: Ints
    """Index of the port on its leaf."""


class Leaves(NamedTuple):
    """Attachment of endpoints to leaves."""

    nics: int
    """NICs per node; 0 if nodes differ."""
    down: int
    """Downward ports per leaf."""
    rails: int
    """Number of rails with separate leaves; 0: NICs fill leaves one after the other."""
    unit: int
    """NICs per rail of the nodes that share a set of leaves (a scalable unit)."""
    sets: int
    """Leaves per set and rail."""
    parts: int
    """Separate networks of one plane: the number of rails if these are not connected, else 1."""
    total: int
    """Number of leaves of one network."""
    planes: int
    """Number of parallel equal networks, each with a port of every NIC."""
    endpoints: int
    """Number of NICs of the cluster."""

    @property
    def networks(self) -> int:
        """Number of separate networks: one per unconnected rail and plane."""
        return self.parts * self.planes

    def number(self, place: Place) -> Ints:
        """Return the number of the leaf at each `place`; leaves are numbered network after network."""
        return place.network * self.total + place.leaf

    def place(self, endpoint: Ints, plane: Ints | int = 0) -> Place:
        """Return the positions of the endpoints' ports in `plane`, one for all or one per endpoint."""
        first = endpoint * 0 + plane * self.parts
        if not self.rails:
            leaf, port = divide(endpoint, self.down)
            return Place(first, leaf, port)
        nic_of_rail, rail = divide(endpoint, self.rails)  # the NICs of every node are a multiple of the rails
        group, within = divide(nic_of_rail, self.unit)
        shift, port = divide(within, self.down)
        if self.parts > 1:
            return Place(first + rail, group * self.sets + shift, port)
        return Place(first, (group * self.rails + rail) * self.sets + shift, port)


class Tree(NamedTuple):
    """A counted fat tree: `leaves.networks` equal networks."""

    tiers: tuple[Ports, ...]
    """Switches, from the leaves upwards."""
    leaves: Leaves
    """Attachment of NICs to the leaves."""
    levels: tuple[Level, ...]
    """Cables between adjacent tiers, one level fewer than tiers."""

    @property
    def ports(self) -> int:
        """NIC ports that are links of their own: one per plane if there are several planes, else 0."""
        return self.leaves.endpoints * self.leaves.planes if self.leaves.planes > 1 else 0

    @property
    def vertices(self) -> tuple[int, ...]:
        """Number of the first switch of each tier, the leaves first, followed by the number of switches."""
        return tuple(accumulate(map(self.switches, range(len(self.tiers))), initial=0))

    def switches(self, tier: int) -> int:
        """Return the number of switches of a tier in all networks together; tier 0: the leaves."""
        if tier == 0:
            return self.leaves.total * self.leaves.networks
        below = self.levels[tier - 1]
        return -(-below.groups // below.pod) * self.planes(tier) * self.leaves.networks

    def planes(self, tier: int) -> int:
        """Return the number of switches in one group of a tier; 1 for tier 0, as each leaf is a group."""
        return self.levels[tier - 1].planes // self.levels[tier - 1].merge * self.levels[tier - 1].spread if tier else 1


def leaves_of(cluster: NodeSpecs, spec: FatTree, tier: Ports) -> Leaves:
    """Return the assignment of NICs to leaf switches with ports `tier`. Raises ConfigError for impossible rails or units."""
    nics = cluster.nics if len(cluster.nic_counts) == 1 else 0
    if spec.rails == "none":
        if spec.rail_planes or spec.scalable_unit is not None:
            key = "rail_planes" if spec.rail_planes else "scalable_unit"
            raise cluster.error(("fabric", key), f"{key} is about rails; add `rails: optimized` or drop it")
        return Leaves(nics, tier.down, 0, 0, 1, 1, -(-cluster.endpoints // tier.down), spec.planes, cluster.endpoints)
    rails = _rails(cluster, spec)
    unit = _unit(cluster, spec, tier, rails)
    sets = -(-unit // tier.down)
    parts = rails if spec.rail_planes or len(spec.tiers) == 1 else 1
    total = -(-cluster.endpoints // (rails * unit)) * sets * rails // parts
    return Leaves(nics, tier.down, rails, unit, sets, parts, total, spec.planes, cluster.endpoints)


def _rails(cluster: NodeSpecs, spec: FatTree) -> int:
    """Return the number of rails, for `rails: optimized` the greatest common divisor of the NICs per node.

    Raises ConfigError if a stated number does not divide the NICs of each node.
    """
    rails = gcd(*cluster.nic_counts) if spec.rails == "optimized" else int(spec.rails)
    for nics in cluster.nic_counts:
        if nics % rails:
            many = f"{rails} do not divide the {nics} NICs of a node"
            raise cluster.error(("fabric", "rails"), f"rails: {many}; use a divisor")
    return rails


def _unit(cluster: NodeSpecs, spec: FatTree, tier: Ports, rails: int) -> int:
    """Return the number of NICs of a rail that share a set of leaves. Raises ConfigError if a `scalable_unit` does not fit."""
    if len(cluster.nic_counts) > 1:
        if spec.scalable_unit is not None:
            what = f"the nodes that share leaves have {either(cluster.nic_counts)} NICs; drop it, and NICs fill leaves in order"
            raise cluster.error(("fabric", "scalable_unit"), f"scalable_unit: {what}")
        return tier.down
    per_node = cluster.nics // rails
    unit = min(spec.scalable_unit or max(1, tier.down // per_node), cluster.nodes)
    if per_node == 1 and unit > tier.down:
        few = f"{unit} nodes a rail do not fit into the {tier.down} ports down of a {tier.name}"
        raise cluster.error(("fabric", "scalable_unit"), f"scalable_unit: {few}; use {tier.down} or fewer")
    return unit * per_node


def _levels(cluster: NodeSpecs, spec: FatTree, tiers: tuple[Ports, ...], leaves: Leaves, even: bool) -> Iterable[Level]:
    """Yield the levels above the leaves. `even`: a lower switch has equally many cables to each upper switch, if possible.

    Raises ConfigError if a tier has too few ports to join the groups below it.
    """
    groups, span, planes = leaves.total, 1, 1
    if len(tiers) == 1 and groups > 1:
        switches = groups * leaves.networks
        many = f"{cluster.endpoints} NICs need {switches} switches of {tiers[0].down} ports, and nothing joins them"
        raise cluster.error(("fabric", "tiers"), f"{many}; add a tier or use a larger radix")
    for t in range(1, len(tiers)):
        pod = _pod(cluster, spec, tiers, t, groups)
        merge, spread = _spread(pod, tiers[t - 1].up, tiers[t].down, planes)
        if even:  # 72 uplinks go to 18 spines and not 16: NVIDIA's DGX SuperPOD reference architecture, B300
            spread = next((s for s in range(spread, tiers[t - 1].up) if tiers[t - 1].up % s == 0), spread)
        if spread > tiers[t - 1].up:
            low, high = tiers[t - 1], tiers[t]
            need = f"{pod} groups of {low.name} switches need {spread} {high.name} switches of {high.down} ports down"
            few = f"{need}, but a {low.name} has only {low.up} uplinks to reach them"
            at = "fabric", "tiers", t
            raise cluster.error(at, f"{few}; use a larger radix, smaller pods or a tier more")
        yield Level(groups, pod, span, planes, tiers[t - 1].up, merge, spread)
        groups, span, planes = -(-groups // pod), span * pod, planes // merge * spread


def _pod(cluster: NodeSpecs, spec: FatTree, tiers: tuple[Ports, ...], t: int, groups: int) -> int:
    """Return the number of groups of tier t - 1 in a pod of tier `t`; the top tier must join all `groups`, else ConfigError."""
    pod = spec.tiers[t].pod
    if t < len(tiers) - 1:
        return min(pod or tiers[t].down, groups)
    if pod is not None and pod < groups:
        few = f"{tiers[t].name} is the top tier and must join all {groups} groups below it, not {pod}"
        raise cluster.error(("fabric", "tiers", t, "pod"), f"{few}; drop `pod` or add a tier")
    return groups


def _spread(pod: int, up: int, down: int, planes: int) -> tuple[int, int]:
    """Return (planes that share upper switches, number of these switches), without unused ports if possible.

    pod: lower groups per upper group. up: uplinks per lower switch. down: ports down per upper switch. planes: per lower group.
    """
    # `merge` planes have pod·up·merge cables up. They fill whole switches of `down` ports only if that is a multiple of `down`,
    # so merge is a multiple of down / gcd(pod·up, down). Each lower switch must reach each of those upper switches by an uplink.
    step = down // gcd(pod * up, down)
    for merge in range(step, min(planes, down // pod) + 1, step):
        if planes % merge == 0 and pod * up * merge // down <= up:
            return merge, pod * up * merge // down
    return 1, -(-pod * up // down)


# The ports of each tier of switches, from the file or by default.

NAMES = ("leaf", "spine", "core", "tier4", "tier5")
ROUNDED = 1e-4
"""Largest relative deviation of a ratio from one of whole numbers: people write 1.4545."""


class Ports(NamedTuple):
    """Ports of the switches of one tier."""

    name: str
    down: int
    up: int
    """Upward ports per switch; 0 in the top tier."""
    radix: int
    """Ports per switch in total, some of which may be unused."""


def ports_of_tiers(cluster: NodeSpecs, spec: FatTree) -> tuple[Ports, ...]:
    """Return the ports of each tier from the leaves upwards. Raises ConfigError if they do not fit a switch."""
    ports = tuple(_ports(cluster, spec, i) for i in range(len(spec.tiers)))
    for i, tier in enumerate(ports):
        if tier.name in {lower.name for lower in ports[:i]}:
            twice = f"two tiers are called {tier.name!r}; give each its own name"
            raise cluster.error(("fabric", "tiers", i, "name"), twice)
    return ports


def _ports(cluster: NodeSpecs, spec: FatTree, index: int) -> Ports:
    """Return the ports of tier `index`. Its `radix` or its `down` is enough: without other keys, as many ports go up as down.

    The top tier has no uplinks: `down` or all of `radix` go down. Raises ConfigError if neither is given, if the top tier has
    `up` or `oversubscription`, and if the numbers exceed the radix or contradict the oversubscription.
    """
    tier, at = spec.tier(index), ("fabric", "tiers", index)
    name = tier.name or NAMES[index]
    if tier.radix is None and tier.down is None:
        raise cluster.error(at, f"{name} needs its number of ports; add radix, or down and up")
    if index == len(spec.tiers) - 1:
        for key in ("up", "oversubscription"):
            if getattr(tier, key) is not None:
                what = f"{name} is the top tier and has no uplinks; put `{key}` on the tier below"
                raise cluster.error((*at, key), what)
        down, up = tier.down or tier.radix or 0, 0
    elif index == 0 and tier.oversubscription and tier.radix and tier.down is None is tier.up:
        down, up = _in_use(cluster, spec, tier.radix, tier.oversubscription)
    else:
        down, up = _down_up(cluster, tier, name, at)
    if tier.radix is not None and down + up > tier.radix:
        many = f"{name}: {down} ports down and {up} up do not fit into radix {tier.radix}"
        raise cluster.error((*at, "radix"), f"{many}; use a larger switch or fewer ports")
    return Ports(name, down, up, tier.radix or down + up)


def _in_use(cluster: NodeSpecs, spec: FatTree, radix: int, ratio: float) -> tuple[int, int]:
    """Return the used downward ports of a full leaf, and its uplinks, fewer by `ratio` (ports down per port up).

    There are as few leaves as can hold all NICs of a rail, equally full, so that no uplinks serve unused ports; the uplinks of
    a leaf with one NIC more are rounded up. Raises ConfigError for a ratio that full leaves cannot have.
    """
    at: Loc = ("fabric", "oversubscription") if spec.oversubscription else ("fabric", "tiers", 0, "oversubscription")
    most_down, exact_ratio = _split(cluster, radix, ratio, at)
    rails = 1 if spec.rails == "none" else _rails(cluster, spec)
    by_rail = spec.rails != "none" and len(cluster.nic_counts) == 1  # otherwise NICs fill leaves in order
    per_node = cluster.nics // rails if by_rail else 1
    nodes = min(spec.scalable_unit or cluster.nodes, cluster.nodes)
    nics_to_connect = nodes * per_node if by_rail else cluster.endpoints // rails
    down = -(-nics_to_connect // -(-nics_to_connect // most_down))
    multiple = lcm(exact_ratio.numerator, per_node)
    if spec.scalable_unit is None and down < nics_to_connect and multiple <= most_down:
        down = -(-down // multiple) * multiple
    up = down / exact_ratio
    if up.denominator == 1 or (down == nics_to_connect and nodes < (spec.scalable_unit or nodes + 1)):
        return down, ceil(up)
    near = [f"{down / n:.5g} ({plural(n, 'uplink', 'uplinks')})" for n in (int(up) + 1, int(up)) if n]
    what = f"{down} NICs on a leaf are {ratio:.6g} : 1 with no whole number of uplinks"
    raise cluster.error(at, f"{'.'.join(map(str, at))}: {what}; write {' or '.join(near)}")


def _split(cluster: NodeSpecs, radix: int, ratio: float, at: Loc) -> tuple[int, Fraction]:
    """Return (largest number of ports down, exact ratio) of a switch of `radix` ports with `ratio` ports down per port up.

    Raises ConfigError at position `at` of the file if no such split is close enough.
    """
    up = max(1, int(radix / (1 + ratio) * (1 + ROUNDED)))
    exact_ratio = Fraction(ratio).limit_denominator(up)  # 1.4545 is 16 : 11
    most_down = radix // (exact_ratio.numerator + exact_ratio.denominator) * exact_ratio.numerator
    if most_down and abs(exact_ratio - Fraction(ratio)) <= ROUNDED * ratio:
        return most_down, exact_ratio
    what = f"{radix} ports of a switch cannot be shared out {ratio:.6g} : 1"
    near = f"{(radix - up) / up:.5g} ({radix - up} down, {up} up)"
    raise cluster.error(at, f"{'.'.join(map(str, at))}: {what}; write a ratio of small numbers such as 1.5, or {near}")


def _down_up(cluster: NodeSpecs, tier: Tier, name: str, at: Loc) -> tuple[int, int]:
    """Return a tier's ports (down, up) from those given and its oversubscription. Raises ConfigError if these contradict."""
    ratio, radix = tier.oversubscription or 1.0, tier.radix or 0
    if tier.down is None and tier.up is None:
        most_down, exact_ratio = _split(cluster, radix, ratio, (*at, "oversubscription"))
        return most_down, int(most_down / exact_ratio)
    if tier.down is None:
        up = tier.up or 0
        down = int(up * ratio) if tier.oversubscription else radix - up
    else:
        down = tier.down
        if tier.up is None and down / ratio % 1:
            few = f"{name}: {down} ports down over {ratio:g} is not a whole number of uplinks"
            raise cluster.error((*at, "oversubscription"), few)
        up = tier.up or (int(down / ratio) if tier.oversubscription or not radix else min(down, radix - down))
    if up < 1 or down < 1:
        raise cluster.error(at, f"{name} has {down} ports down and {up} up; at least one of each is needed")
    if tier.oversubscription and abs(down / up - ratio) > 1e-9:
        both = f"{name}: {down} down over {up} up is {down / up:g}, not {ratio:g}; drop one"
        raise cluster.error((*at, "oversubscription"), both)
    return down, up


# Values that a fat tree's file leaves open: the fewest tiers that connect all NICs, and cables as fast as the NICs.


def complete_tree(cluster: NodeSpecs, spec: FatTree) -> tuple[FatTree, Link, Tree]:
    """Return the specification with all its tiers, every cable, and the counted tree.

    A tree sized here is even: each switch has equally many cables to every upper switch that it reaches. Raises ConfigError if
    ports, pods or scalable units do not fit.
    """
    tiers = _oversubscribed(cluster, spec, spec.tiers) if spec.tiers else _smallest(cluster, spec)
    complete, spec_link = spec.model_copy(update={"tiers": tiers}), spec.link
    cable = spec_link.cable if spec.tiers else spec_link.cable[: len(tiers)]
    if cable and len(cable) != len(tiers):
        lengths = f"{len(cable)} cable lengths for {len(tiers)} tiers; give one a tier, from the NIC upwards"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}")
    # a switch has ports for the fastest NICs
    fastest = max((pool.node.nics.rate for pool in cluster.parts if pool.node.nics), default=1.0) / spec.planes
    link = Link.model_construct(rate=spec_link.rate or fastest, efficiency=spec_link.efficiency, cable=cable)
    ports = ports_of_tiers(cluster, complete)
    leaves = leaves_of(cluster, complete, ports[0])
    return complete, link, Tree(ports, leaves, tuple(_levels(cluster, complete, ports, leaves, even=not spec.tiers)))


def _smallest(cluster: NodeSpecs, spec: FatTree) -> tuple[Tier, ...]:
    """Return the fewest tiers that connect all NICs. Raises ConfigError without `radix`, or if five tiers do not suffice."""
    if spec.radix is None:
        open_ = "nothing says how large the switches are"
        raise cluster.error(("fabric",), f"fabric: {open_}; add radix, such as radix: 64, or tiers")
    apart = spec.rails != "none" and not spec.rail_planes  # with a single tier, rails would not be connected
    for count in range(2 if apart else 1, len(NAMES) + 1):
        tiers = (Tier(radix=spec.radix),) * count
        if count == 1 and not _joins(cluster, spec.model_copy(update={"tiers": tiers})):
            continue
        tiers = _oversubscribed(cluster, spec, tiers)
        if _joins(cluster, spec.model_copy(update={"tiers": tiers})):
            return tiers
    most = f"{len(NAMES)} tiers of {spec.radix} ports do not join {cluster.endpoints} NICs"
    raise cluster.error(("fabric", "radix"), f"fabric.radix: {most}; use larger switches or fewer nodes")


def _joins(cluster: NodeSpecs, spec: FatTree) -> bool:
    """Return whether each top switch has a port for every group of switches below it."""
    tiers = ports_of_tiers(cluster, spec)
    groups = leaves_of(cluster, spec, tiers[0]).total
    for tier in tiers[1:-1]:
        groups = -(-groups // tier.down)
    return groups <= (tiers[-1].down if len(tiers) > 1 else 1)


def _oversubscribed(cluster: NodeSpecs, spec: FatTree, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    """Return the tiers with the file's oversubscription at the leaves. Raises ConfigError if they have none, or their own."""
    if spec.oversubscription is None or (spec.oversubscription == 1 and len(tiers) == 1):
        return tiers
    loc, leaf = ("fabric", "oversubscription"), tiers[0]
    if len(tiers) == 1:
        raise cluster.error(loc, "fabric.oversubscription: one tier has no uplinks; leave it out, or add a tier")
    for key in ("down", "up", "oversubscription"):
        if getattr(leaf, key) is not None:
            raise cluster.error(loc, f"fabric.oversubscription: the leaves say their `{key}` too; keep one of the two")
    if spec.oversubscription == 1:
        return tiers
    return (leaf.model_copy(update={"oversubscription": spec.oversubscription}), *tiers[1:])
