"""Clusters from YAML, one file a kind of fabric: `build(site) -> Topology`; routing by arithmetic."""

SHARED = ("model", "site", "assemble", "router", "ports", "wiring", "cables", "faults", "graph", "build", "describe")
