"""The trees of RCCL where a link joins every two GPUs of a node: `rail_tree` with the paths of `mesh_ring` for its chains.

The chain of rail c runs along path c, whose first GPU, c, is the head that the two trees join. All links of a node work, each
with 2·S/g at most for g GPUs a node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.algorithms.mesh_ring import paths
from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of
from clustersim.collectives.tree_steps import along, edges, node_trees

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps on two chunks a rail, one for each tree: up to the root of the tree, and down again."""
    inside, _ = nodes_of(group)
    return along(group, paths(inside)[:inside])


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: chains of all rails inside nodes, edges of both trees between them, both ways."""
    inside, nodes = nodes_of(group)
    rounds = 2 * (node_trees(nodes)[0][2] + inside - 1)
    local, node = paths(inside)[:inside], np.arange(nodes)[:, None, None] * inside
    low, high = (node + local[:, 1:]).ravel(), (node + local[:, :-1]).ravel()
    chains = ((low, high, 1 / inside), (high, low, 1 / inside)) if inside > 1 else ()
    return (merged(rounds, *chains, *(edges(group) if nodes > 1 else ())),)
