"""Routes walked hop by hop, and compared with shortest paths of the graph."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from clustersim.topology.export import to_networkx
from clustersim.topology.model import Topology


def pairs(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(topology.gpus)
    return np.repeat(every, topology.gpus), np.tile(every, topology.gpus)


def walks(topology: Topology, links: list[int], share: np.ndarray) -> list[list[tuple[str, str]]]:
    """Split a row of Routes into the paths of its queue pairs, each as edges."""
    edges = [topology.ends(link) for link in links]
    if not edges or not edges[-1][1].startswith("nic") or share.min() == 1:
        return [edges]
    qps = round(1 / share.min())
    inner = [i for i, part in enumerate(share) if part < 1]
    width = len(inner) // qps
    head, tail = edges[: inner[0]], edges[inner[-1] + 1 :]
    return [head + [edges[i] for i in inner[k * width : (k + 1) * width]] + tail for k in range(qps)]


def check_routes(topology: Topology) -> None:
    graph = to_networkx(topology)
    fabric = nx.DiGraph(
        graph.subgraph(n for n, kind in graph.nodes(data="kind") if kind not in {"gpu", "nvswitch", "nvlink"})
    )
    hops = dict(nx.all_pairs_shortest_path_length(fabric))
    source, destination = pairs(topology)
    routes = topology.route(source, destination)
    for i, (a, b) in enumerate(zip(source, destination, strict=True)):
        row = slice(routes.start[i], routes.start[i + 1])
        links, share = routes.links[row].tolist(), routes.share[row]
        assert routes.latency[i] == pytest.approx(float((topology.latency[links] * share).sum()), rel=1e-12)
        for edges in walks(topology, links, share):
            check_walk(graph, edges, f"gpu[{a}]", f"gpu[{b}]", topology)
            outside = [edge for edge in edges if edge[0] in fabric and edge[1] in fabric]
            if outside:
                assert len(outside) == hops[outside[0][0]][outside[-1][1]]
                unique = list(nx.all_shortest_paths(fabric, outside[0][0], outside[-1][1]))
                assert [outside[0][0], *(v for _, v in outside)] in unique


def check_walk(graph, edges, start: str, end: str, topology: Topology) -> None:
    if start == end:
        assert edges == []
        return
    places = [start]
    for u, v in edges:
        if u != places[-1]:
            assert graph.has_edge(places[-1], u), "only a GPU and its own NIC are joined without a link"
            assert {places[-1].partition("[")[0], u.partition("[")[0]} == {"gpu", "nic"}
        places += [v] if u == places[-1] else [u, v]
    assert places[-1] == end or graph.has_edge(places[-1], end)
    assert len(set(places)) == len(places)
    assert all(graph.has_edge(u, v) for u, v in pairwise(places))
