"""Two tiers of switches: `fat_tree` with exactly a leaf and a spine tier."""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import FatTree
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import network
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `leaf_spine` fabric. Raises ConfigError as `fat_tree` does, and unless it has two tiers."""
    spec = validate(FatTree, cluster.document, cluster.fabric, ("fabric",))
    if len(spec.tiers) != 2:
        many = f"a leaf_spine has two tiers, a leaf and a spine, not {len(spec.tiers)}"
        raise cluster.error(("fabric", "tiers"), f"fabric.tiers: {many}; use kind: fat_tree for other trees")
    return assemble(cluster, "leaf_spine", network(cluster, spec))
