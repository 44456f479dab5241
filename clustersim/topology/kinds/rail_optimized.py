"""A fat tree in which NIC j of every node hangs on a leaf of rail j (`fat_tree` with `rails: optimized`)."""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import FatTree
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import network
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `rail_optimized` fabric. Raises ConfigError as `fat_tree` does."""
    spec = validate(FatTree, cluster.document, {"rails": "optimized", **cluster.fabric}, ("fabric",))
    return assemble(cluster, "rail_optimized", network(cluster, spec))
