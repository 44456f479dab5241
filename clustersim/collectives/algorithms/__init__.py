"""Collective algorithms by their name in YAML: each file is one `collectives.model.Algorithm`, and nothing else."""
