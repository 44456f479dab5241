"""Clusters from YAML, one file a kind of fabric: `build(site) -> Topology`; routing by arithmetic."""

SHARED = (
    "model", "site", "assemble", "router", "ports", "wiring", "cables", "written", "faults", "graph", "build", "describe",
)  # fmt: skip
