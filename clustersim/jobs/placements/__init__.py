"""Placements, one per file. The file's name is its name on the command line, its `place` a `jobs.request.PlacementKind`."""
