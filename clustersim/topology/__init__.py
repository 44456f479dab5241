"""Clusters from YAML, one file a kind of fabric: `build(site) -> Topology`; routing by arithmetic."""

SHARED = (
    "alike",
    "model", "site", "assemble", "router", "inside", "lattice", "detours", "ports", "wiring", "cables", "climb", "groups",
    "limits", "memo",
    "cells", "rows", "written", "nearer", "shortest", "faults", "bisection",
    "graph", "build", "outside", "describe", "measure", "foreign", "drawing",
)  # fmt: skip
