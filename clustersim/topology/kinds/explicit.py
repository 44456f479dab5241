"""A graph written out switch by switch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, distinct
from clustersim.config.fabric import Explicit, ExplicitLink
from clustersim.config.fields import validate
from clustersim.config.yaml import Loc
from clustersim.errors import suggest
from clustersim.topology.assemble import assemble
from clustersim.topology.model import Topology
from clustersim.topology.shortest import NextHops, Wires, next_hops, paths
from clustersim.topology.specs import BuiltFabric, LinkRange, NodeSpecs
from clustersim.units import either

MAX_LEAVES = 512

SPEC = Explicit
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of an `explicit` fabric. Raises ConfigError for a graph with loops, doubles or islands."""
    spec = validate(Explicit, cluster.document, cluster.fabric, ("fabric",))
    if cluster.node.nics is None:
        raise cluster.error((*cluster.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    if spec.routing.qps > 1 and spec.routing.mode != "ecmp":
        one = f"qps is for `mode: ecmp`; {spec.routing.mode} sends one flow a pair"
        raise cluster.error(("fabric", "routing", "qps"), one)
    ports, trunks = sort(cluster, spec)
    leaves = list(dict.fromkeys(port.switch for port in ports))
    if len(leaves) > MAX_LEAVES:
        many = f"{len(leaves)} switches with NICs are too many to write out (at most {MAX_LEAVES})"
        raise cluster.error(("fabric", "nodes"), f"{many}; use kind: fat_tree")
    return assemble(cluster, "explicit", _network(cluster, spec, ports, trunks, leaves))


def _network(
    cluster: NodeSpecs, spec: Explicit, ports: Sequence[Port], trunks: Trunks, leaves: Sequence[str]
) -> BuiltFabric:
    number = {name: i for i, name in enumerate(leaves)}
    leaf_of = np.array([number[port.switch] for port in ports], np.int64)
    return BuiltFabric(
        ranges=tuple(_ranges(trunks)),
        hops=paths(spec.routing, _next_hops(cluster, trunks, leaves), leaf_of),
        port=tuple(port.switch for port in ports).__getitem__,
        ends=_ExplicitEnds(tuple((link.a, link.b) for link in trunks)),
        counts=_counts(cluster, spec, ports, trunks),
        fanouts=(cluster.nodes,) if cluster.nodes > 1 else (),
        rate=np.array([port.rate for port in ports]),
        delay=np.array([port.latency for port in ports]),
        paths=spec.routing.qps,
        key="fabric.links",
    )


def _next_hops(cluster: NodeSpecs, trunks: Trunks, leaves: Sequence[str]) -> NextHops:
    """Return the links that lead to each leaf. Raises ConfigError when the leaves are not connected."""
    names = tuple(dict.fromkeys([*leaves, *(end for t in trunks for end in (t.a, t.b))]))
    number = {name: i for i, name in enumerate(names)}
    a, b = (
        np.array([number[end] for end in ends], np.int64) for ends in ([t.a for t in trunks], [t.b for t in trunks])
    )
    rate, cables = _array(t.rate * t.count for t in trunks), _array(t.count for t in trunks)
    tail, head = np.concatenate([a, b]), np.concatenate([b, a])
    found = next_hops(Wires(tail, head, np.tile(rate, 2), np.tile(cables, 2), len(leaves), names))
    for leaf in np.flatnonzero(found.distance[0] < 0).tolist():
        apart = f"no cables lead from {leaves[0]!r} to {leaves[leaf]!r}"
        raise cluster.error(("fabric", "links"), f"the graph is not connected: {apart}; add a link between its parts")
    return found


def _ranges(trunks: Trunks) -> Iterator[LinkRange]:
    for name in ("trunk-up", "trunk-down") if trunks else ():
        yield LinkRange(
            name,
            _array(t.rate * t.count for t in trunks),
            _array(t.latency for t in trunks),
            _array(t.count for t in trunks),
        )


def _array(values: Iterator[float]) -> Floats:
    return np.array(list(values), np.float64)


def _counts(cluster: NodeSpecs, spec: Explicit, ports: Sequence[Port], trunks: Trunks) -> dict[str, float]:
    half = int(cluster.numbering().first_nic[cluster.nodes // 2])
    line = np.broadcast_to(cluster.by_endpoint(lambda pool: pool.nic_line), len(ports)).tolist()
    ports = [port._replace(rate=min(port.rate, own)) for port, own in zip(ports, line, strict=True)]
    flow, total = _flow(ports, trunks, half), math.fsum(port.rate for port in ports[:half])
    return {
        "switches": len(spec.nodes),
        "cables": sum(link.count for link in trunks) + cluster.endpoints,
        "ends": total,
        "bisection": flow,
        "oversubscription": max(1.0, total / flow) if flow else 1.0,
    }


def _flow(ports: Sequence[Port], trunks: Trunks, half: int) -> float:
    """Return the bytes/s that the first `half` of the endpoints can send to the rest (Ford and Fulkerson, 1956)."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in trunks:
        graph.add_edge(link.a, link.b, capacity=link.rate * link.count)
        graph.add_edge(link.b, link.a, capacity=link.rate * link.count)
    for e, port in enumerate(ports):
        pair = ("\0first", port.switch) if e < half else (port.switch, "\0second")
        old = graph.get_edge_data(*pair, {"capacity": 0.0})["capacity"]
        graph.add_edge(*pair, capacity=old + port.rate)
    return float(nx.maximum_flow_value(graph, "\0first", "\0second")) if half else 0.0


@dataclass(frozen=True, slots=True)
class _ExplicitEnds:
    """The two ends of a trunk."""

    trunks: tuple[tuple[str, str], ...]

    def __call__(self, link: int) -> tuple[str, str]:
        backward, trunk = divmod(link, len(self.trunks))
        return self.trunks[trunk][::-1] if backward else self.trunks[trunk]


# The cables of a written-out graph, checked and sorted.


class Port(NamedTuple):
    """The one cable of an endpoint."""

    switch: str
    """Where it leads."""
    rate: float
    """Bytes/s."""
    latency: float
    """Seconds."""


Trunks = Sequence[ExplicitLink]


def sort(cluster: NodeSpecs, spec: Explicit) -> tuple[Sequence[Port], Trunks]:
    """Return the cable of each endpoint, and the trunks between switches. Raises ConfigError for loops, doubles, loose ends."""
    _check_names(cluster, spec)
    _check_pairs(cluster, spec)
    switches = set(spec.nodes)
    ports: dict[int, Port] = {}
    trunks: list[ExplicitLink] = []
    for i, link in enumerate(spec.links):
        if link.a in switches and link.b in switches:
            trunks.append(link)
        else:
            _plug(cluster, link, switches, ports, ("fabric", "links", i))
    joined = {end for link in spec.links for end in (link.a, link.b)}
    for i, name in enumerate(spec.nodes):
        if name not in joined:
            raise cluster.error(("fabric", "nodes", i), f"switch {name!r} has no cable; join it or drop it")
    loose = next((e for e in range(cluster.endpoints) if e not in ports), None)
    if loose is not None:
        raise cluster.error(
            ("fabric", "links"), f"nic[{loose}] hangs on no switch; add {{a: nic[{loose}], b: …, rate: …}}"
        )
    return [ports[e] for e in range(cluster.endpoints)], trunks


def _plug(cluster: NodeSpecs, link: ExplicitLink, switches: set[str], ports: dict[int, Port], at: Loc) -> None:
    nic, switch = (link.a, link.b) if link.b in switches else (link.b, link.a)
    if switch not in switches:
        raise cluster.error(at, f"{link.a!r} to {link.b!r} joins no switch; {suggest(link.b, switches)}")
    for endpoint in _endpoints(cluster, nic, switches, at):
        if endpoint in ports:
            raise cluster.error(at, f"nic[{endpoint}] has a cable already; a NIC is one port, so give it one cable")
        ports[endpoint] = Port(switch, link.rate * link.count, link.latency)


def _check_names(cluster: NodeSpecs, spec: Explicit) -> None:
    for i, name in enumerate(spec.nodes):
        if name in spec.nodes[:i]:
            raise cluster.error(("fabric", "nodes", i), f"duplicate switch {name!r}; give each its own name")
        if "[" in name:
            raise cluster.error(
                ("fabric", "nodes", i), f"{name!r}: brackets are for nic[e] and node[n]; write leaf0, not leaf[0]"
            )


def _check_pairs(cluster: NodeSpecs, spec: Explicit) -> None:
    seen: dict[frozenset[str], int] = {}
    for i, link in enumerate(spec.links):
        pair, at = frozenset((link.a, link.b)), ("fabric", "links", i)
        if len(pair) == 1:
            raise cluster.error(at, f"a cable from {link.a!r} to itself carries nothing; name two different ends")
        if seen.setdefault(pair, i) != i:
            raise cluster.error(
                at, f"{link.a!r} and {link.b!r} are joined twice; write the number of cables as `count`"
            )


def _endpoints(cluster: NodeSpecs, name: str, switches: set[str], at: Loc) -> Sequence[int]:
    kind, _, rest = name.partition("[")
    count = {"nic": cluster.endpoints, "node": cluster.nodes}.get(kind, 0)
    if not rest.endswith("]") or not rest[:-1].isdecimal() or not count:
        raise cluster.error(at, f"{name!r} is neither a switch nor nic[e] nor node[n]; {suggest(name, switches)}")
    index = int(rest[:-1])
    if index >= count:
        size = f"cluster.nodes is {cluster.nodes}" + f" with {either(cluster.nic_counts)} NICs each" * (kind == "nic")
        raise cluster.error(
            at, f"{name!r} does not exist; {kind}[0] to {kind}[{count - 1}] do, as {size}; change one of them"
        )
    numbering = cluster.numbering()
    return [index] if kind == "nic" else distinct(numbering.nic[numbering.gpus_of(np.array([index]))]).tolist()
