"""`kind: leaf_spine`, another name of a `fat_tree` of exactly two tiers, a leaf and a spine."""

from clustersim.topology.kinds.fat_tree import SPEC
from clustersim.topology.kinds.fat_tree import leaf_spine as build

__all__ = ["SPEC", "build"]
