"""Pure functions `build(spec) -> Topology`, one file a kind of fabric; routing by arithmetic."""

SHARED = ("model", "node", "graph", "build")
