"""Clusters from YAML: GPUs, directed links and a router by arithmetic; each kind of fabric is a file of `kinds/`."""
