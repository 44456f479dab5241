"""The trees of NCCL: a chain inside every node, double binary trees over the nodes, on every rail (src/graph/connect.cc).

On rail c the chain of a node runs c+1 … c-1, c, and its head, GPU c, is joined to the heads of other nodes by the two trees of
`tree`. All NICs work, each with up to 2·S/g each way for g GPUs a node: 2((g-1)·a + log2(nodes)·b) + S/rate.
Of nodes with different numbers of GPUs, the smallest says how many rails there are, and the longest chain how many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of
from clustersim.collectives.tree_steps import along, edges, phase, rounds

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps on two chunks a rail, one for each tree: up to the root of the tree, and down again."""
    return along(_chains(group))


def _chains(group: Group) -> list[Ints]:
    """Return by node the chains of all rails (rails, GPUs); of nodes with different numbers, the smallest says how many."""
    inside, nodes = nodes_of(group)
    sizes = group.sizes or (inside,) * nodes
    rail = np.arange(min(sizes))[:, None]
    return [end - size + (rail - np.arange(size)) % size for size, end in zip(sizes, accumulate(sizes), strict=True)]


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: chains of all rails inside nodes, edges of both trees between them, both ways."""
    if group.sizes:
        return (phase(_chains(group)),)
    inside, nodes = nodes_of(group)
    rank = np.arange(group.n, dtype=np.int64)
    above = rank // inside * inside + (rank + 1) % inside
    part = (inside - 1) / inside  # the chain of rail c ends at GPU c
    chains = ((rank, above, part), (above, rank, part)) if inside > 1 else ()
    return (merged(rounds(nodes, inside), *chains, *edges(rank.reshape(nodes, inside))),)
