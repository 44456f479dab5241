"""A cluster as GraphML, which Gephi, yEd and networkx read."""

from __future__ import annotations

from io import BytesIO
from math import isinf

from clustersim.topology.graph import to_networkx
from clustersim.topology.model import Topology


def text(topology: Topology) -> str:
    """Return the file: vertices with their `kind`, and an edge a directed link:
    `link`, `capacity_bytes_per_s`, `latency_s`, `cables`.

    An edge from a GPU to its NIC has no capacity, as PCIe is in the NIC's.
    """
    import networkx as nx

    graph = to_networkx(topology)
    for _, _, data in graph.edges(data=True):
        capacity, data["latency_s"] = data.pop("capacity"), data.pop("latency")
        if not isinf(capacity):
            data["capacity_bytes_per_s"] = capacity
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    return buffer.getvalue().decode()
