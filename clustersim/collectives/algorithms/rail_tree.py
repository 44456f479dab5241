"""NCCL's trees: on every rail a chain inside each node and double binary trees over the nodes (src/graph/connect.cc).

On rail c the chain of a node runs c+1 … c-1, c. Its head, GPU c, is joined to the heads of other nodes by the two trees of
`tree`. All NICs work, each with up to 2·S/g in each direction for g GPUs per node: 2((g-1)·a + log2(nodes)·b) + S/rate. If nodes
have different numbers of GPUs, the smallest sets the number of rails, and the longest chain the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of
from clustersim.collectives.shared_steps import along, edges, phase, rail_chains, rounds

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on two chunks per rail, one for each tree: up to the tree's root and down again."""
    return along(rail_chains(group))


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: the chains of all rails inside nodes, and the edges of both trees between nodes, in both directions."""
    if group.sizes:
        return (phase(rail_chains(group)),)
    inside, nodes = nodes_of(group)
    rank = np.arange(group.n, dtype=np.int64)
    above = rank // inside * inside + (rank + 1) % inside
    part = (inside - 1) / inside  # the chain of rail c ends at GPU c
    chains = ((rank, above, part), (above, rank, part)) if inside > 1 else ()
    return (merged(rounds(nodes, inside), *chains, *edges(rank.reshape(nodes, inside))),)
