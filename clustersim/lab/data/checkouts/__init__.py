"""Checkouts of public repositories with measured kernels, one layout per file.

A layout has `REPOSITORY`, `root(path) -> Path

 None` (its data below a folder), `files(root)` (all files it reads), `holds(root, name)`, and `table(root, name)`, which returns
a tidy table (clustersim.lab.data.sources) or None.
"""
