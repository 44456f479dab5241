"""A topology as a networkx graph: for drawing, and for the tests that hold its routes against shortest paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clustersim.arrays import Ints
from clustersim.topology.model import Topology
from clustersim.topology.routing import Remaining

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(topology: Topology) -> nx.MultiDiGraph[str]:
    """Return the graph of a small cluster: one edge a directed link, with `link`, `capacity` (B/s), `latency` (s), `cables`.

    Nodes have a `kind`: gpu, nvswitch, nic, leaf, …. A GPU and its NIC are joined both ways by edges without `link`, which cost
    nothing: PCIe is already in the NIC's capacity.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for gpu in numbers(topology).tolist():
        graph.add_node(f"gpu[{gpu}]", kind="gpu")
    for link in range(len(topology.capacity)):
        start, end = topology.ends(link)
        for name in (start, end):
            graph.add_node(name, kind=name.partition("[")[0])
        capacity, latency = float(topology.capacity[link]), float(topology.latency[link])
        cables = float(topology.cables[link])
        graph.add_edge(start, end, link=link, capacity=capacity, latency=latency, cables=cables)
    for gpu_name, nic in _attachments(topology):
        graph.add_edge(gpu_name, nic, capacity=float("inf"), latency=0.0)
        graph.add_edge(nic, gpu_name, capacity=float("inf"), latency=0.0)
    return graph


def _attachments(topology: Topology) -> list[tuple[str, str]]:
    """Return each GPU with its NIC."""
    if topology.nodes == 1:
        return []
    both = zip(numbers(topology).tolist(), topology.numbering.nic.tolist(), strict=True)
    return [(f"gpu[{gpu}]", f"nic[{nic}]") for gpu, nic in both]


def numbers(topology: Topology) -> Ints:
    """Return the numbers of the GPUs by which links are named: those of dead nodes are skipped."""
    router = topology.router
    return router.gpus if isinstance(router, Remaining) else np.arange(topology.gpus)
