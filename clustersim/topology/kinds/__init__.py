"""Kinds of fabric by their name in YAML: each file has `build(cluster) -> Topology`, and nothing else."""
