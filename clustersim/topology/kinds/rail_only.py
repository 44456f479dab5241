"""Rails that nothing joins (Wang et al. 2023, "Rail-only"): `fat_tree` with `rails: optimized` and `rail_planes: true`.

Traffic to another rail first goes to the GPU of that rail inside the node, as NCCL's PXN does.
"""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import FatTree
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import network
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `rail_only` fabric. Raises ConfigError as `fat_tree` does, and when nodes cannot change rails."""
    written = {"rails": "optimized", "rail_planes": True, **cluster.fabric}
    spec = validate(FatTree, cluster.document, written, ("fabric",))
    if spec.rails == "none" or not spec.rail_planes:
        key = "rails" if spec.rails == "none" else "rail_planes"
        raise cluster.error(
            ("fabric", key), f"fabric.{key}: rail_only keeps its rails apart; drop it, or use kind: fat_tree"
        )
    if cluster.node.scale_up.kind == "none" and cluster.nics > 1:
        alone = (
            "scale_up is missing; rails that nothing joins need links between the GPUs of a node to change rails over"
        )
        raise cluster.error((*cluster.at, "scale_up"), f"{alone}; add scale_up, or use kind: rail_optimized")
    return assemble(cluster, "rail_only", network(cluster, spec))
