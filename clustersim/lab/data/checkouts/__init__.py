"""Checkouts of public repositories with measured kernels, one layout per file.

A layout has `REPOSITORY`, `root(path)` (the folder of its data below a path, or None), `files(root)` (all files it reads),
`holds(root, name)`, and `table(root, name)`, which returns a tidy table (clustersim.lab.data.sources) that it holds.
"""
