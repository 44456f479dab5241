"""Collective algorithms by their name in YAML: one file each, `steps` for the proof and `phases` for the fabric."""
