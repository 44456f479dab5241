"""A cluster as GraphML, which Gephi, yEd and networkx read."""

from __future__ import annotations

from io import BytesIO
from math import isinf

from clustersim.topology.model import Topology


def text(topology: Topology) -> str:
    """Return the file: vertices with their `kind`, one edge a directed link with `capacity` (B/s), `latency` (s), `cables`.

    An edge from a GPU to its NIC has no capacity, as PCIe is in the NIC's.
    """
    import networkx as nx

    graph = topology.graph()
    for _, _, data in graph.edges(data=True):
        if isinf(data["capacity"]):
            del data["capacity"]
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    return buffer.getvalue().decode()
