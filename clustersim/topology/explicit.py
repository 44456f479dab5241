"""A graph written out switch by switch: shortest paths by networkx, ties to the cable that stands first in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from clustersim.config.fields import validate
from clustersim.config.topology import Explicit
from clustersim.topology.alike import Classes
from clustersim.topology.assemble import assemble
from clustersim.topology.detours import Detours
from clustersim.topology.model import Floats, Ints, Mask, Topology
from clustersim.topology.site import Network, Run, Site
from clustersim.topology.written import Ports, Trunks, sort

if TYPE_CHECKING:
    import networkx as nx

MAX_LEAVES = 512


def build(site: Site) -> Topology:
    """Return the topology of an `explicit` fabric. Raises ConfigError for a graph with loops, doubles or islands."""
    spec = validate(Explicit, site.document, site.fabric, ("fabric",))
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    ports, trunks = sort(site, spec)
    leaves = list(dict.fromkeys(port.switch for port in ports))
    if len(leaves) > MAX_LEAVES:
        many = f"{len(leaves)} switches with NICs are too many to write out (at most {MAX_LEAVES})"
        raise site.error(("fabric", "nodes"), f"{many}; use kind: fat_tree")
    return assemble(site, "explicit", _network(site, spec, ports, trunks, leaves))


def _network(site: Site, spec: Explicit, ports: Ports, trunks: Trunks, leaves: Sequence[str]) -> Network:
    number = {name: i for i, name in enumerate(leaves)}
    leaf_of = np.array([number[port.switch] for port in ports], np.int64)
    return Network(
        runs=tuple(_runs(trunks)),
        hops=_Table(_paths(site, _graph(spec, trunks), leaves, trunks), leaf_of, tuple(leaves), trunks),
        port=tuple(port.switch for port in ports).__getitem__,
        ends=_Ends(tuple((link.a, link.b) for link in trunks)),
        counts=_counts(site, spec, ports, trunks),
        fanouts=(site.nodes,) if site.nodes > 1 else (),
        rate=np.array([port.rate for port in ports]),
        delay=np.array([port.latency for port in ports]),
    )


def _graph(spec: Explicit, trunks: Trunks) -> nx.Graph[str]:
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(spec.nodes)
    graph.add_edges_from((link.a, link.b) for link in trunks)
    return graph


def _paths(site: Site, graph: nx.Graph[str], leaves: Sequence[str], trunks: Trunks) -> Ints:
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


def _runs(trunks: Trunks) -> Iterator[Run]:
    for name in ("trunk-up", "trunk-down") if trunks else ():
        yield Run(
            name,
            _array(t.rate * t.count for t in trunks),
            _array(t.latency for t in trunks),
            _array(t.count for t in trunks),
        )


def _array(values: Iterator[float]) -> Floats:
    return np.array(list(values), np.float64)


def _counts(site: Site, spec: Explicit, ports: Ports, trunks: Trunks) -> dict[str, float]:
    half = site.nics * (site.nodes // 2)
    flow, total = _flow(ports, trunks, half), sum(port.rate for port in ports[:half])
    return {
        "switches": len(spec.nodes),
        "cables": sum(link.count for link in trunks) + site.endpoints,
        "bisection": flow,
        "oversubscription": max(1.0, total / flow) if flow else 1.0,
    }


def _flow(ports: Ports, trunks: Trunks, half: int) -> float:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Paths looked up by the leaves of the two endpoints."""

    paths: Ints
    leaf_of: Ints
    leaves: tuple[str, ...]
    trunks: Trunks

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        return self.paths[self.leaf_of[source], self.leaf_of[destination]]

    def classes(self, endpoint: Ints) -> Classes:
        """Return the leaves of endpoints."""
        return self.leaf_of[endpoint], self.leaf_of[endpoint]

    def without(self, dead: Mask) -> Detours:
        """Return the paths around dead trunks. Raises UnreachableError when a switch is cut off."""
        names = list(dict.fromkeys([*self.leaves, *(end for t in self.trunks for end in (t.a, t.b))]))
        number = {name: i for i, name in enumerate(names)}
        a, b = (
            np.array([number[end] for end in ends]) for ends in zip(*((t.a, t.b) for t in self.trunks), strict=True)
        )
        wires = np.concatenate([a, b]), np.concatenate([b, a])
        return Detours.around(self, dead, wires, 1, names.__getitem__, self.leaf_of)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The two ends of a trunk."""

    trunks: tuple[tuple[str, str], ...]

    def __call__(self, link: int) -> tuple[str, str]:
        backward, trunk = divmod(link, len(self.trunks))
        return self.trunks[trunk][::-1] if backward else self.trunks[trunk]
