"""What a fat tree's file leaves open: as few tiers as join all NICs, and cables as fast as these."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.config.fabric import FatTree, Link, Tier
from clustersim.topology.fat_tree_wiring import NAMES, Tree, leaves_of, ports_of_tiers, tree
from clustersim.topology.specs import NodeSpecs


class SizedTree(NamedTuple):
    """A fat tree with nothing left open."""

    spec: FatTree
    """As the file says it, with all its tiers."""
    link: Link
    """Every cable."""
    tree: Tree
    """Its switches and cables, counted."""


def sized(cluster: NodeSpecs, spec: FatTree) -> SizedTree:
    """Return a fat tree with nothing left open. Raises ConfigError when ports do not work out."""
    written = spec.link
    link = Link.model_construct(
        rate=written.rate or _line_rate(cluster, spec), efficiency=written.efficiency, cable=written.cable
    )
    if spec.tiers:
        whole = spec.model_copy(update={"tiers": _oversubscribed(cluster, spec, spec.tiers)})
        _check_cables(cluster, link, len(spec.tiers))
        return SizedTree(whole, link, tree(cluster, whole))
    whole = _smallest(cluster, spec)
    link = link.model_copy(update={"cable": link.cable[: len(whole.tiers)]})
    _check_cables(cluster, link, len(whole.tiers))
    return SizedTree(whole, link, tree(cluster, whole, even=True))


def _line_rate(cluster: NodeSpecs, spec: FatTree) -> float:
    rates = [pool.node.nics.rate for pool in cluster.parts if pool.node.nics]
    return max(rates) / spec.planes if rates else 1.0  # a switch has ports for the fastest of its NICs


def _check_cables(cluster: NodeSpecs, link: Link, tiers: int) -> None:
    if link.cable and len(link.cable) != tiers:
        lengths = f"{len(link.cable)} cable lengths for {tiers} tiers"
        raise cluster.error(
            ("fabric", "link", "cable"), f"fabric.link.cable: {lengths}; give one a tier, from the NIC upwards"
        )


def _smallest(cluster: NodeSpecs, spec: FatTree) -> FatTree:
    """Return the tree of the fewest tiers that joins all NICs. Raises ConfigError when the most are too few."""
    if spec.radix is None:
        open_ = "nothing says how large the switches are"
        raise cluster.error(("fabric",), f"fabric: {open_}; add radix, such as radix: 64, or tiers")
    apart = spec.rails != "none" and not spec.rail_planes  # rails of one tier would be joined by nothing
    for count in range(2 if apart else 1, len(NAMES) + 1):
        tiers = (Tier(radix=spec.radix),) * count
        if count == 1 and not _joins(cluster, spec.model_copy(update={"tiers": tiers})):
            continue
        whole = spec.model_copy(update={"tiers": _oversubscribed(cluster, spec, tiers)})
        if _joins(cluster, whole):
            return whole
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
    """Return the tiers with the oversubscription of the leaves in its place; 1 : 1 is what they have unsaid."""
    if spec.oversubscription is None or (spec.oversubscription == 1 and len(tiers) == 1):
        return tiers
    at, leaf = ("fabric", "oversubscription"), tiers[0]
    if len(tiers) == 1:
        raise cluster.error(at, "fabric.oversubscription: one tier has no uplinks; leave it out, or add a tier")
    said = next((key for key in ("down", "up", "oversubscription") if getattr(leaf, key) is not None), None)
    if said:
        raise cluster.error(at, f"fabric.oversubscription: the leaves say their `{said}` too; keep one of the two")
    if spec.oversubscription == 1:
        return tiers
    return (leaf.model_copy(update={"oversubscription": spec.oversubscription}), *tiers[1:])
