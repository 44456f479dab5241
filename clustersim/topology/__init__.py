"""Clusters from YAML: GPUs, directed links and a router; each kind of fabric is a file of `kinds/`."""
