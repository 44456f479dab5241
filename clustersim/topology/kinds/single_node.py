"""One node and nothing between nodes: what a file without `fabric` describes."""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import SingleNode
from clustersim.topology.assemble import assemble
from clustersim.topology.model import Topology
from clustersim.topology.specs import Site


def build(site: Site) -> Topology:
    """Return the topology of one node. Raises ConfigError when there are several."""
    if site.fabric:
        validate(SingleNode, site.document, site.fabric, ("fabric",))
    if site.nodes > 1:
        raise site.error(("cluster", "nodes"), f"{site.nodes} nodes need a network between them; add `fabric:`")
    return assemble(site, "single_node", None)
