"""`kind: rail_only`, another name of a `fat_tree` with `rails: optimized` and `rail_planes: true`: rails are not connected."""

from clustersim.topology.kinds.fat_tree import SPEC
from clustersim.topology.kinds.fat_tree import rail_only as build

__all__ = ["SPEC", "build"]
