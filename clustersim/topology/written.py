"""The cables of a written-out graph, checked and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clustersim.config.topology import Explicit, ExplicitLink
from clustersim.config.yaml import Loc
from clustersim.errors import suggest
from clustersim.topology.site import Site


class Port(NamedTuple):
    """The one cable of an endpoint."""

    switch: str
    rate: float
    latency: float


Ports = Sequence[Port]
Trunks = Sequence[ExplicitLink]


def sort(site: Site, spec: Explicit) -> tuple[Ports, Trunks]:
    """Return the cable of each endpoint, and the trunks between switches. Raises ConfigError for loops, doubles, loose ends."""
    _check_names(site, spec)
    _check_pairs(site, spec)
    switches = set(spec.nodes)
    ports: dict[int, Port] = {}
    trunks: list[ExplicitLink] = []
    for i, link in enumerate(spec.links):
        if link.a in switches and link.b in switches:
            trunks.append(link)
        else:
            _plug(site, link, switches, ports, ("fabric", "links", i))
    joined = {end for link in spec.links for end in (link.a, link.b)}
    for i, name in enumerate(spec.nodes):
        if name not in joined:
            raise site.error(("fabric", "nodes", i), f"switch {name!r} has no cable; join it or drop it")
    loose = next((e for e in range(site.endpoints) if e not in ports), None)
    if loose is not None:
        raise site.error(
            ("fabric", "links"), f"nic[{loose}] hangs on no switch; add {{a: nic[{loose}], b: …, rate: …}}"
        )
    return [ports[e] for e in range(site.endpoints)], trunks


def _plug(site: Site, link: ExplicitLink, switches: set[str], ports: dict[int, Port], at: Loc) -> None:
    nic, switch = (link.a, link.b) if link.b in switches else (link.b, link.a)
    if switch not in switches:
        raise site.error(at, f"{link.a!r} to {link.b!r} joins no switch; {suggest(link.b, switches)}")
    for endpoint in _endpoints(site, nic, switches, at):
        if endpoint in ports:
            raise site.error(at, f"nic[{endpoint}] has a cable already; a NIC is one port, so give it one cable")
        ports[endpoint] = Port(switch, link.rate * link.count, link.latency)


def _check_names(site: Site, spec: Explicit) -> None:
    for i, name in enumerate(spec.nodes):
        if name in spec.nodes[:i]:
            raise site.error(("fabric", "nodes", i), f"duplicate switch {name!r}; give each its own name")
        if "[" in name:
            raise site.error(
                ("fabric", "nodes", i), f"{name!r}: brackets are for nic[e] and node[n]; write leaf0, not leaf[0]"
            )


def _check_pairs(site: Site, spec: Explicit) -> None:
    seen: dict[frozenset[str], int] = {}
    for i, link in enumerate(spec.links):
        pair, at = frozenset((link.a, link.b)), ("fabric", "links", i)
        if len(pair) == 1:
            raise site.error(at, f"a cable from {link.a!r} to itself carries nothing; name two different ends")
        if seen.setdefault(pair, i) != i:
            raise site.error(at, f"{link.a!r} and {link.b!r} are joined twice; write the number of cables as `count`")


def _endpoints(site: Site, name: str, switches: set[str], at: Loc) -> Sequence[int]:
    kind, _, rest = name.partition("[")
    count = {"nic": site.endpoints, "node": site.nodes}.get(kind, 0)
    if not rest.endswith("]") or not rest[:-1].isdecimal() or not count:
        raise site.error(at, f"{name!r} is neither a switch nor nic[e] nor node[n]; {suggest(name, switches)}")
    index = int(rest[:-1])
    if index >= count:
        size = f"cluster.nodes is {site.nodes}" + f" with {site.nics} NICs each" * (kind == "nic")
        raise site.error(
            at, f"{name!r} does not exist; {kind}[0] to {kind}[{count - 1}] do, as {size}; change one of them"
        )
    return [index] if kind == "nic" else range(index * site.nics, (index + 1) * site.nics)
