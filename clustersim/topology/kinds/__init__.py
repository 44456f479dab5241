"""Kinds of fabric by their name in YAML: one file each, `build(site) -> Topology`, and nothing else."""
