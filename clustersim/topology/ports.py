"""The ports of each tier of switches, as written or by default."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.config.topology import FatTree, Tier
from clustersim.config.yaml import Loc
from clustersim.topology.site import Site

NAMES = ("leaf", "spine", "core", "tier4", "tier5")


class Ports(NamedTuple):
    """One tier of switches: ports down and up (0 in the top tier)."""

    name: str
    down: int
    up: int


def tiers(site: Site, spec: FatTree) -> tuple[Ports, ...]:
    """Return the ports of each tier from the leaves upwards. Raises ConfigError when they do not fit a switch."""
    found = tuple(_ports(site, spec, i) for i in range(len(spec.tiers)))
    for i, tier in enumerate(found):
        if tier.name in {other.name for other in found[:i]}:
            raise site.error(
                ("fabric", "tiers", i, "name"), f"two tiers are called {tier.name!r}; give each its own name"
            )
    return found


def _ports(site: Site, spec: FatTree, index: int) -> Ports:
    tier, at = spec.tiers[index], ("fabric", "tiers", index)
    name = tier.name or NAMES[index]
    if tier.radix is None and tier.down is None:
        raise site.error(at, f"{name} needs its number of ports; add radix, or down and up")
    if index == len(spec.tiers) - 1:
        ports = Ports(name, _top(site, tier, name, at), 0)
    else:
        ports = Ports(name, *_down_up(site, tier, name, at))
    if tier.radix is not None and ports.down + ports.up > tier.radix:
        many = f"{name}: {ports.down} ports down and {ports.up} up do not fit into radix {tier.radix}"
        raise site.error((*at, "radix"), f"{many}; use a larger switch or fewer ports")
    return ports


def _top(site: Site, tier: Tier, name: str, at: Loc) -> int:
    if tier.up is not None or tier.oversubscription is not None:
        key = "up" if tier.up is not None else "oversubscription"
        raise site.error((*at, key), f"{name} is the top tier and has no uplinks; put `{key}` on the tier below")
    return tier.down or tier.radix or 0


def _down_up(site: Site, tier: Tier, name: str, at: Loc) -> tuple[int, int]:
    ratio, radix = tier.oversubscription or 1.0, tier.radix or 0
    down, up = tier.down, tier.up
    if down is None:
        up = up or int(radix / (1 + ratio))
        down = int(up * ratio) if tier.oversubscription or tier.up is None else radix - up
    elif up is None:
        whole = down / ratio
        if whole != int(whole):
            raise site.error(
                (*at, "oversubscription"), f"{name}: {down} ports down over {ratio:g} is no whole number of uplinks"
            )
        up = int(whole) if tier.oversubscription or not radix else min(down, radix - down)
    if up < 1 or down < 1:
        raise site.error(at, f"{name} has {down} ports down and {up} up; at least one of each is needed")
    if tier.oversubscription and abs(down / up - ratio) > 1e-9:
        raise site.error(
            (*at, "oversubscription"), f"{name}: {down} down over {up} up is {down / up:g}, not {ratio:g}; drop one"
        )
    return down, up
