"""Checkouts of public repositories of measured kernels, read as they are: one file a layout.

A layout has `REPOSITORY`, `root(path) -> Path | None` (where its data lie below a folder), `files(root)` (all that is
read), `holds(root, name)`, and `table(root, name)`, which returns a tidy table (clustersim.lab.data.sources) or None.
"""
