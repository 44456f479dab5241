"""The double binary trees over nodes, for the algorithms that use them on each rail."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms.tree import depths, parents
from clustersim.collectives.model import Group, Step, nodes_of

PairList = tuple[Ints, Ints, float]


@lru_cache(maxsize=64)
def node_trees(nodes: int) -> tuple[tuple[Ints, Ints, int], ...]:
    """Return (parent of every node, depth of every node, deepest) of both trees; the root is node 0, its own parent."""
    if nodes == 1:
        one = np.zeros(1, np.int64)
        return ((one, one, 0),) * 2
    found = [(parent, depths(parent)) for parent in parents(nodes)]
    deepest = max(int(depth.max()) for _, depth in found)
    first = np.zeros(1, np.int64)
    return tuple((np.append(first, parent), np.append(first, depth), deepest) for parent, depth in found)


def between(group: Group, rail: int, start: int) -> Iterator[Step]:
    """Yield the steps of an all_reduce between the heads (position `rail`) of all nodes, chunk 2·rail + tree,
    from round `start`.
    """
    inside, nodes = nodes_of(group)
    for tree, (parent, depth, deepest) in enumerate(node_trees(nodes)):
        for node in range(1, nodes):
            head, above = node * inside + rail, int(parent[node]) * inside + rail
            level, chunk = int(depth[node]), 2 * rail + tree
            yield Step(start + deepest - level, head, above, chunk, reduce=True)
            yield Step(start + deepest + level - 1, above, head, chunk, reduce=False)


def edges(group: Group) -> tuple[PairList, PairList]:
    """Return the pairs (source, destination, fraction) between heads, upwards and downwards: 1/(2g) of the array an edge."""
    inside, nodes = nodes_of(group)
    rail = np.arange(inside)
    child = np.concatenate([np.arange(1, nodes)] * 2)
    above = np.concatenate([parent[1:] for parent, _, _ in node_trees(nodes)])
    low, high = ((node[:, None] * inside + rail).ravel() for node in (child, above))
    return (low, high, 0.5 / inside), (high, low, 0.5 / inside)


def along(group: Group, chains: Ints) -> Iterator[Step]:
    """Yield the steps of an all_reduce up both trees of each rail and down again, on chunk 2·rail + tree.

    chains: the positions in a node (rails, GPUs) that the chain of each rail runs through, its head first.
    """
    inside, nodes = nodes_of(group)
    for tree, (parent, depth, deepest) in enumerate(node_trees(nodes)):
        last = deepest + inside - 1
        for rail, path in enumerate(chains.tolist()):
            for node in range(nodes):
                for place in range(node == 0, inside):  # the head of node 0 is the root
                    rank = node * inside + path[place]
                    above = node * inside + path[place - 1] if place else int(parent[node]) * inside + rail
                    level = int(depth[node]) + place
                    yield Step(last - level, rank, above, 2 * rail + tree, reduce=True)
                    yield Step(last + level - 1, above, rank, 2 * rail + tree, reduce=False)
