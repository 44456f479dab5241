"""Kinds of fabric by their name in YAML: one file each, `build(cluster) -> Topology`, and nothing else."""
