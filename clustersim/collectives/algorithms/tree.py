"""Double binary tree: two trees carry half the array each, and no rank is an inner node of both (Sanders, Speck & Träff 2009).

The trees are NCCL's (src/graph/trees.cc). Below rank 0 hangs a balanced binary tree of ranks 1 … n-1 whose leaves are the odd
ranks. The second tree is its mirror image, or for even n the first one shifted by one rank. Reduction runs up and broadcast
down, both pipelined at the same time: 2·ceil(log2 n)·a + 2·S/B if a rank has one port of B bytes/s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.model import Group, Phase, Step, halves, uniform

OPS = frozenset({"all_reduce", "broadcast", "reduce"})


def parents(n: int) -> tuple[Ints, Ints]:
    """Return the parents of ranks 1 … n-1 in the first and in the second tree, two arrays (n-1,) whose index i is rank i + 1."""
    rank = np.arange(1, n, dtype=np.int64)
    low = rank & -rank
    up = (rank ^ low) | (low << 1)
    first = np.where(up < n, up, rank ^ low)
    image = n - rank if n % 2 else rank % (n - 1) + 1  # image[i] takes the part of rank i + 1
    second = np.empty_like(first)
    second[image - 1] = np.where(first > 0, image[first - 1], 0)
    return first, second


def depths(parent: Ints) -> Ints:
    """Return the distance from rank 0 in hops of each rank 1 … n-1, given the `parent` of each; both arrays are (n-1,)."""
    depth = np.zeros_like(parent)
    above = np.arange(1, len(parent) + 1)
    while above.any():
        depth += above > 0
        above = np.where(above > 0, parent[above - 1], 0)
    return depth


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on two chunks, one per tree; each level of the trees is one round."""
    trees = (enumerate(zip(parent.tolist(), depths(parent).tolist(), strict=True), 1) for parent in parents(group.n))
    down = ((level - 1, above, rank, chunk) for chunk, tree in enumerate(trees) for rank, (above, level) in tree)
    return halves(op, (Step(*hop, reduce=False) for hop in down))


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: every edge of both trees carries S/2 up (all_reduce, reduce) and down (all_reduce, broadcast)."""
    first, second = parents(group.n)
    rank = np.arange(1, group.n, dtype=np.int64)
    low, high = np.concatenate((rank, rank)), np.concatenate((first, second))
    deepest = float(depths(first).max())
    if op == "all_reduce":
        return (uniform(2 * deepest, np.concatenate((low, high)), np.concatenate((high, low)), 0.5),)
    return (uniform(deepest, low, high, 0.5) if op == "reduce" else uniform(deepest, high, low, 0.5),)
