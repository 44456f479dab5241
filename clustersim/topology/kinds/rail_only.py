"""Rails that nothing joins (Wang et al. 2023, "Rail-only"): `fat_tree` with `rails: optimized` and `rail_planes: true`.

Traffic to another rail first goes to the GPU of that rail inside the node, as NCCL's PXN does.
"""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import FatTree
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import network
from clustersim.topology.model import Topology
from clustersim.topology.specs import Site


def build(site: Site) -> Topology:
    """Return the topology of a `rail_only` fabric. Raises ConfigError as `fat_tree` does, and when nodes cannot change rails."""
    written = {"rails": "optimized", "rail_planes": True, **site.fabric}
    spec = validate(FatTree, site.document, written, ("fabric",))
    if spec.rails == "none" or not spec.rail_planes:
        key = "rails" if spec.rails == "none" else "rail_planes"
        raise site.error(
            ("fabric", key), f"fabric.{key}: rail_only keeps its rails apart; drop it, or use kind: fat_tree"
        )
    if site.node.scale_up.kind == "none" and site.nics > 1:
        alone = (
            "scale_up is missing; rails that nothing joins need links between the GPUs of a node to change rails over"
        )
        raise site.error((*site.at, "scale_up"), f"{alone}; add scale_up, or use kind: rail_optimized")
    return assemble(site, "rail_only", network(site, spec))
