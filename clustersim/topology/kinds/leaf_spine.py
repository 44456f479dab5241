"""`kind: leaf_spine`, another name of a `fat_tree` of exactly two tiers, leaf and spine."""

from clustersim.topology.kinds.fat_tree import SPEC
from clustersim.topology.kinds.fat_tree import leaf_spine as build

__all__ = ["SPEC", "build"]
