"""One node and nothing between nodes: what a file without `fabric` describes."""

from __future__ import annotations

from clustersim.config.fabric import SingleNode
from clustersim.config.fields import validate
from clustersim.topology.assemble import assemble
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs

SPEC = SingleNode


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of one node. Raises ConfigError when there are several."""
    if cluster.fabric:
        validate(SingleNode, cluster.document, cluster.fabric, ("fabric",))
    if cluster.nodes > 1:
        raise cluster.error(("cluster", "nodes"), f"{cluster.nodes} nodes need a network between them; add `fabric:`")
    return assemble(cluster, "single_node", None)
