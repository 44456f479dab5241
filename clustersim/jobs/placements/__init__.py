"""Placements by their name: one file each, whose `place` is a `jobs.request.PlacementKind`, and nothing else."""
