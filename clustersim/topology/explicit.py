"""A graph written out switch by switch: shortest paths by networkx, ties to the cable that stands first in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clustersim.config.fields import validate
from clustersim.config.topology import Explicit, ExplicitLink
from clustersim.config.yaml import Loc
from clustersim.errors import suggest
from clustersim.topology.assemble import assemble
from clustersim.topology.model import Floats, Ints, Topology
from clustersim.topology.site import Network, Run, Site

if TYPE_CHECKING:
    import networkx as nx

MAX_LEAVES = 512


class _Port(NamedTuple):
    """The one cable of an endpoint."""

    switch: str
    rate: float
    latency: float


def build(site: Site) -> Topology:
    """Return the topology of an `explicit` fabric. Raises ConfigError for a graph with loops, doubles or islands."""
    spec = validate(Explicit, site.document, site.fabric, ("fabric",))
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    _check_names(site, spec)
    ports, trunks = _sorted(site, spec)
    leaves = list(dict.fromkeys(port.switch for port in ports))
    if len(leaves) > MAX_LEAVES:
        many = f"{len(leaves)} switches with NICs are too many to write out (at most {MAX_LEAVES})"
        raise site.error(("fabric", "nodes"), f"{many}; use kind: fat_tree")
    graph = _graph(spec, trunks)
    table = _paths(site, graph, leaves, trunks)
    number = {name: i for i, name in enumerate(leaves)}
    leaf_of = np.array([number[port.switch] for port in ports], np.int64)
    names = tuple(port.switch for port in ports)
    return assemble(
        site,
        "explicit",
        Network(
            runs=tuple(_runs(trunks)),
            hops=_Table(table, leaf_of),
            port=names.__getitem__,
            ends=_Ends(tuple((link.a, link.b) for link in trunks)),
            counts=_counts(site, spec, ports, trunks),
            fanouts=(site.nodes,) if site.nodes > 1 else (),
            rate=np.array([port.rate for port in ports]),
            delay=np.array([port.latency for port in ports]),
        ),
    )


def _check_names(site: Site, spec: Explicit) -> None:
    for i, name in enumerate(spec.nodes):
        if name in spec.nodes[:i]:
            raise site.error(("fabric", "nodes", i), f"duplicate switch {name!r}; give each its own name")
        if "[" in name:
            raise site.error(
                ("fabric", "nodes", i), f"{name!r}: brackets are for nic[e] and node[n]; write leaf0, not leaf[0]"
            )
    seen: dict[frozenset[str], int] = {}
    for i, link in enumerate(spec.links):
        pair, at = frozenset((link.a, link.b)), ("fabric", "links", i)
        if len(pair) == 1:
            raise site.error(at, f"a cable from {link.a!r} to itself carries nothing; name two different ends")
        if seen.setdefault(pair, i) != i:
            raise site.error(at, f"{link.a!r} and {link.b!r} are joined twice; write the number of cables as `count`")


def _sorted(site: Site, spec: Explicit) -> tuple[list[_Port], list[ExplicitLink]]:
    """Split the links into the cables of the NICs, one an endpoint, and the trunks between switches."""
    ports: dict[int, _Port] = {}
    trunks: list[ExplicitLink] = []
    switches = set(spec.nodes)
    for i, link in enumerate(spec.links):
        at: Loc = ("fabric", "links", i)
        if link.a in switches and link.b in switches:
            trunks.append(link)
            continue
        nic, switch = (link.a, link.b) if link.b in switches else (link.b, link.a)
        if switch not in switches:
            raise site.error(at, f"{link.a!r} to {link.b!r} joins no switch; {suggest(link.b, switches)}")
        for endpoint in _endpoints(site, nic, switches, at):
            if endpoint in ports:
                raise site.error(at, f"nic[{endpoint}] has a cable already; a NIC is one port, so give it one cable")
            ports[endpoint] = _Port(switch, link.rate * link.count, link.latency)
    loose = next((e for e in range(site.endpoints) if e not in ports), None)
    if loose is not None:
        raise site.error(
            ("fabric", "links"), f"nic[{loose}] hangs on no switch; add {{a: nic[{loose}], b: …, rate: …}}"
        )
    return [ports[e] for e in range(site.endpoints)], trunks


def _endpoints(site: Site, name: str, switches: set[str], at: Loc) -> Sequence[int]:
    kind, _, rest = name.partition("[")
    count = {"nic": site.endpoints, "node": site.nodes}.get(kind, 0)
    if not rest.endswith("]") or not rest[:-1].isdecimal() or not count:
        raise site.error(at, f"{name!r} is neither a switch nor nic[e] nor node[n]; {suggest(name, switches)}")
    index = int(rest[:-1])
    if index >= count:
        raise site.error(at, f"{name!r} does not exist; {kind}[0] to {kind}[{count - 1}] do")
    return [index] if kind == "nic" else range(index * site.nics, (index + 1) * site.nics)


def _graph(spec: Explicit, trunks: Sequence[ExplicitLink]) -> nx.Graph[str]:
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(spec.nodes)
    graph.add_edges_from((link.a, link.b) for link in trunks)
    return graph


def _paths(site: Site, graph: nx.Graph[str], leaves: Sequence[str], trunks: Sequence[ExplicitLink]) -> Ints:
    """Return the links from leaf to leaf: an array (leaves, leaves, longest path), padded with -1."""
    import networkx as nx

    number = {(link.a, link.b): i for i, link in enumerate(trunks)}
    number |= {(link.b, link.a): len(trunks) + i for i, link in enumerate(trunks)}
    found = [nx.single_source_shortest_path(graph, leaf) for leaf in leaves]
    for there in leaves:
        if there not in found[0]:
            apart = f"no cables lead from {leaves[0]!r} to {there!r}"
            raise site.error(("fabric", "links"), f"the graph is not connected: {apart}; add a link between its parts")
    width = max(len(paths[there]) - 1 for paths in found for there in leaves)
    table = np.full((len(leaves), len(leaves), width), -1, np.int64)
    for i, paths in enumerate(found):
        for j, there in enumerate(leaves):
            row = [number[pair] for pair in pairwise(paths[there])]
            table[i, j, : len(row)] = row
    return table


def _runs(trunks: Sequence[ExplicitLink]) -> Iterator[Run]:
    for name in ("trunk-up", "trunk-down") if trunks else ():
        yield Run(
            name,
            _array(t.rate * t.count for t in trunks),
            _array(t.latency for t in trunks),
            _array(t.count for t in trunks),
        )


def _array(values: Iterator[float]) -> Floats:
    return np.array(list(values), np.float64)


def _counts(site: Site, spec: Explicit, ports: Sequence[_Port], trunks: Sequence[ExplicitLink]) -> dict[str, float]:
    """Count; the bisection is the largest flow from the first half of the nodes to the second (Ford and Fulkerson, 1956)."""
    import networkx as nx

    cables = sum(link.count for link in trunks) + site.endpoints
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in trunks:
        graph.add_edge(link.a, link.b, capacity=link.rate * link.count)
        graph.add_edge(link.b, link.a, capacity=link.rate * link.count)
    half = site.endpoints // site.nodes * (site.nodes // 2)
    for e, port in enumerate(ports):
        pair = ("\0first", port.switch) if e < half else (port.switch, "\0second")
        old = graph.get_edge_data(*pair, {"capacity": 0.0})["capacity"]
        graph.add_edge(*pair, capacity=old + port.rate)
    flow = nx.maximum_flow_value(graph, "\0first", "\0second") if half else 0.0
    total = sum(port.rate for port in ports[:half])
    return {
        "switches": len(spec.nodes),
        "cables": cables,
        "bisection": float(flow),
        "oversubscription": max(1.0, total / flow) if flow else 1.0,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Paths looked up by the leaves of the two endpoints."""

    paths: Ints
    leaf_of: Ints

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        return self.paths[self.leaf_of[source], self.leaf_of[destination]]


@dataclass(frozen=True, slots=True)
class _Ends:
    """The two ends of a trunk."""

    trunks: tuple[tuple[str, str], ...]

    def __call__(self, link: int) -> tuple[str, str]:
        backward, trunk = divmod(link, len(self.trunks))
        return self.trunks[trunk][::-1] if backward else self.trunks[trunk]
