"""The trees of NCCL: a chain inside every node, double binary trees over the nodes, on every rail (src/graph/connect.cc).

On rail c the chain of a node runs c+1 … c-1, c, and its head, GPU c, is joined to the heads of other nodes by the two trees of
`tree`. All NICs work, each with up to 2·S/g each way for g GPUs a node: 2((g-1)·a + log2(nodes)·b) + S/rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of
from clustersim.collectives.tree_steps import along, edges, node_trees

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps on two chunks a rail, one for each tree: up to the root of the tree, and down again."""
    inside, _ = nodes_of(group)
    return along(group, (np.arange(inside)[:, None] - np.arange(inside)) % inside)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: chains of all rails inside nodes, edges of both trees between them, both ways."""
    inside, nodes = nodes_of(group)
    rounds = 2 * (node_trees(nodes)[0][2] + inside - 1)
    rank = np.arange(group.n, dtype=np.int64)
    above = rank // inside * inside + (rank + 1) % inside
    part = (inside - 1) / inside  # the chain of rail c ends at GPU c
    chains = ((rank, above, part), (above, rank, part)) if inside > 1 else ()
    return (merged(rounds, *chains, *(edges(group) if nodes > 1 else ())),)
