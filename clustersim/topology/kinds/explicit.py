"""An explicit graph of switches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, distinct
from clustersim.config.fabric import Explicit, ExplicitLink
from clustersim.config.yaml import Loc
from clustersim.errors import suggest
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import check_routing
from clustersim.topology.model import Topology
from clustersim.topology.shortest import FIRST, SECOND, ShortestPaths, Wires, max_flow, next_hops
from clustersim.topology.specs import BuiltFabric, NodeSpecs, both_ways
from clustersim.units import either

MAX_LEAVES = 512

Trunks = Sequence[ExplicitLink]
SPEC = Explicit


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of an `explicit` fabric. Raises ConfigError for invalid cables, separate parts or too many leaves."""
    spec = cluster.section(Explicit)
    check_routing(cluster, spec.routing)
    ports, trunks = _cables_and_trunks(cluster, spec)
    leaves = list(dict.fromkeys(port.switch for port in ports))
    if len(leaves) > MAX_LEAVES:
        many = f"{len(leaves)} switches with NICs are too many to write out (at most {MAX_LEAVES})"
        raise cluster.error(("fabric", "nodes"), f"{many}; use kind: fat_tree")
    figures = np.array([(trunk.rate * trunk.count, trunk.latency, trunk.count) for trunk in trunks], np.float64)
    rate, latency, cables = figures.reshape(-1, 3).T
    graph = _graph(trunks, leaves, np.tile(rate, 2), np.tile(cables, 2))
    table, number = next_hops(graph), {name: i for i, name in enumerate(leaves)}
    for leaf in np.flatnonzero(table.distance[0] < 0).tolist():
        apart = f"no cables lead from {leaves[0]!r} to {leaves[leaf]!r}"
        raise cluster.error(("fabric", "links"), f"the graph is not connected: {apart}; add a link between its parts")
    network = BuiltFabric(
        ranges=both_ways("trunk", len(trunks), rate, latency, cables) if trunks else (),
        hops=ShortestPaths(spec.routing, table, np.array([number[port.switch] for port in ports], np.int64)),
        port=tuple(port.switch for port in ports).__getitem__,
        ends=graph.ends,
        counts=_counts(cluster, spec, ports, trunks),
        fanouts=(cluster.nodes,) if cluster.nodes > 1 else (),
        rate=np.array([port.rate for port in ports]),
        delay=np.array([port.latency for port in ports]),
        paths=spec.routing.qps,
        key="fabric.links",
    )
    return assemble(cluster, "explicit", network)


def _graph(trunks: Trunks, leaves: Sequence[str], rate: Floats, cables: Floats) -> Wires:
    """Return the directed links of trunks: first all from a to b, then all reversed. rate (bytes/s), cables: of each (links,)."""
    names = tuple(dict.fromkeys([*leaves, *(end for t in trunks for end in (t.a, t.b))]))
    number = {name: i for i, name in enumerate(names)}
    a, b = np.array([(number[t.a], number[t.b]) for t in trunks], np.int64).reshape(-1, 2).T
    return Wires(np.concatenate([a, b]), np.concatenate([b, a]), rate, cables, len(leaves), names)


def _counts(cluster: NodeSpecs, spec: Explicit, ports: Sequence[Port], trunks: Trunks) -> dict[str, float]:
    """Return {name: number} of switches and cables, with the bisection in bytes/s by maximum flow between halves."""
    half, edges = int(cluster.numbering().first_nic[cluster.nodes // 2]), list[tuple[str, str, float]]()
    line = np.broadcast_to(cluster.by_endpoint(lambda pool: pool.nic_line), len(ports)).tolist()
    for link in trunks:
        edges += [(link.a, link.b, link.rate * link.count), (link.b, link.a, link.rate * link.count)]
    for e, ((switch, rate, _), nic_line) in enumerate(zip(ports, line, strict=True)):
        edges.append((FIRST, switch, min(rate, nic_line)) if e < half else (switch, SECOND, min(rate, nic_line)))
    flow, total = max_flow(edges), math.fsum(rate for tail, _, rate in edges if tail == FIRST)
    return {
        "switches": len(spec.nodes),
        "cables": sum(link.count for link in trunks) + cluster.endpoints,
        "ends": total,
        "bisection": flow,
        "oversubscription": max(1.0, total / flow) if flow else 1.0,
    }


class Port(NamedTuple):
    """The single cable of an endpoint: the switch that it leads to, bytes/s, latency in seconds."""

    switch: str
    rate: float
    latency: float


def _cables_and_trunks(cluster: NodeSpecs, spec: Explicit) -> tuple[Sequence[Port], Trunks]:
    """Return the cable of each endpoint, and the trunks between switches.

    Raises ConfigError for loops, duplicate or unknown ends, a second cable of a NIC, and parts without a cable.
    """
    _check(cluster, spec)
    switches = set(spec.nodes)
    ports: dict[int, Port] = {}
    trunks: list[ExplicitLink] = []
    for i, link in enumerate(spec.links):
        if link.a in switches and link.b in switches:
            trunks.append(link)
        else:
            _plug(cluster, link, switches, ports, ("fabric", "links", i))
    connected = {end for link in spec.links for end in (link.a, link.b)}
    for i, name in enumerate(spec.nodes):
        if name not in connected:
            raise cluster.error(("fabric", "nodes", i), f"switch {name!r} has no cable; join it or drop it")
    loose = next((e for e in range(cluster.endpoints) if e not in ports), None)
    if loose is not None:
        what = f"nic[{loose}] hangs on no switch; add {{a: nic[{loose}], b: …, rate: …}}"
        raise cluster.error(("fabric", "links"), what)
    return [ports[e] for e in range(cluster.endpoints)], trunks


def _plug(cluster: NodeSpecs, link: ExplicitLink, switches: set[str], ports: dict[int, Port], at: Loc) -> None:
    """Add the NICs at one end of `link` to `ports`, {NIC: its port}. Raises ConfigError if no end is in `switches`, or twice."""
    nic, switch = (link.a, link.b) if link.b in switches else (link.b, link.a)
    if switch not in switches:
        raise cluster.error(at, f"{link.a!r} to {link.b!r} joins no switch; {suggest(link.b, switches)}")
    for endpoint in _endpoints(cluster, nic, switches, at):
        if endpoint in ports:
            raise cluster.error(at, f"nic[{endpoint}] has a cable already; a NIC is one port, so give it one cable")
        ports[endpoint] = Port(switch, link.rate * link.count, link.latency)


def _check(cluster: NodeSpecs, spec: Explicit) -> None:
    """Raise ConfigError for duplicate switches, brackets in their names, and duplicate or circular cables."""
    for i, name in enumerate(spec.nodes):
        if name in spec.nodes[:i]:
            raise cluster.error(("fabric", "nodes", i), f"duplicate switch {name!r}; give each its own name")
        if "[" in name:
            what = f"{name!r}: brackets are for nic[e] and node[n]; write leaf0, not leaf[0]"
            raise cluster.error(("fabric", "nodes", i), what)
    first_link: dict[frozenset[str], int] = {}
    for i, link in enumerate(spec.links):
        pair, at = frozenset((link.a, link.b)), ("fabric", "links", i)
        if len(pair) == 1:
            raise cluster.error(at, f"a cable from {link.a!r} to itself carries nothing; name two different ends")
        if first_link.setdefault(pair, i) != i:
            twice = f"{link.a!r} and {link.b!r} are joined twice; write the number of cables as `count`"
            raise cluster.error(at, twice)


def _endpoints(cluster: NodeSpecs, name: str, switches: set[str], at: Loc) -> Sequence[int]:
    """Return the endpoints of `nic[e]`, or of all NICs of `node[n]`. Raises ConfigError if there is no such NIC or node."""
    kind, _, rest = name.partition("[")
    count = {"nic": cluster.endpoints, "node": cluster.nodes}.get(kind, 0)
    if not rest.endswith("]") or not rest[:-1].isdecimal() or not count:
        raise cluster.error(at, f"{name!r} is neither a switch nor nic[e] nor node[n]; {suggest(name, switches)}")
    index = int(rest[:-1])
    if index >= count:
        size = f"cluster.nodes is {cluster.nodes}" + f" with {either(cluster.nic_counts)} NICs each" * (kind == "nic")
        known = f"{kind}[0] to {kind}[{count - 1}] do"
        raise cluster.error(at, f"{name!r} does not exist; {known}, as {size}; change one of them")
    numbering = cluster.numbering()
    return [index] if kind == "nic" else distinct(numbering.nic[numbering.gpus_of(np.array([index]))]).tolist()
