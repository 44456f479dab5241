"""A single node without network, described by a file without `fabric`."""

from __future__ import annotations

from clustersim.config.fabric import SingleNode
from clustersim.config.fields import validate
from clustersim.topology.assemble import assemble
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs

SPEC = SingleNode


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of one node. Raises ConfigError if there are several."""
    if cluster.fabric:
        validate(SingleNode, cluster.document, cluster.fabric, ("fabric",))
    if cluster.nodes > 1:
        raise cluster.error(("cluster", "nodes"), f"{cluster.nodes} nodes need a network between them; add `fabric:`")
    return assemble(cluster, "single_node", None)
