"""A fat tree in which NIC j of every node hangs on a leaf of rail j (`fat_tree` with `rails: optimized`)."""

from __future__ import annotations

from clustersim.config.fields import validate
from clustersim.config.topology import FatTree
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.fat_tree import network
from clustersim.topology.model import Topology
from clustersim.topology.specs import Site


def build(site: Site) -> Topology:
    """Return the topology of a `rail_optimized` fabric. Raises ConfigError as `fat_tree` does."""
    spec = validate(FatTree, site.document, {"rails": "optimized", **site.fabric}, ("fabric",))
    return assemble(site, "rail_optimized", network(site, spec))
