"""`kind: rail_optimized`, another name of a `fat_tree` with `rails: optimized`."""

from clustersim.topology.kinds.fat_tree import SPEC
from clustersim.topology.kinds.fat_tree import rail_optimized as build

__all__ = ["SPEC", "build"]
