"""Double binary trees over nodes, for the algorithms that use them on each rail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms.tree import depths, parents
from clustersim.collectives.model import Phase, Step, halves, merged

PairList = tuple[Ints, Ints, float]
"""Sources and destinations of pairs, and the fraction of the collective's size that each pair carries."""


@lru_cache(maxsize=64)
def node_trees(nodes: int) -> tuple[tuple[Ints, Ints, int], ...]:
    """Return (parent of each node, depth of each node, largest depth of both trees) for both trees; arrays are (nodes,).

    The root is node 0, its own parent, with depth 0.
    """
    if nodes == 1:
        zeros = np.zeros(1, np.int64)
        return ((zeros, zeros, 0),) * 2
    trees = [(parent, depths(parent)) for parent in parents(nodes)]
    largest_depth = max(int(depth.max()) for _, depth in trees)
    root = np.zeros(1, np.int64)
    return tuple((np.append(root, parent), np.append(root, depth), largest_depth) for parent, depth in trees)


def edges(heads: Ints) -> tuple[PairList, ...]:
    """Return the pairs between `heads` (nodes, rails) along both trees, first upwards and then downwards; () on one node."""
    nodes, rails = heads.shape
    if nodes == 1:
        return ()
    child_node = np.concatenate([np.arange(1, nodes)] * 2)
    parent_node = np.concatenate([parent[1:] for parent, _, _ in node_trees(nodes)])
    child_heads, parent_heads = heads[child_node].ravel(), heads[parent_node].ravel()
    return (child_heads, parent_heads, 0.5 / rails), (parent_heads, child_heads, 0.5 / rails)


def rounds(nodes: int, inside: int) -> int:
    """Return the number of rounds of an all_reduce up and down chains of at most `inside` GPUs and trees over `nodes` nodes."""
    return 2 * (node_trees(nodes)[0][2] + inside - 1)


def along(chains: Sequence[Ints]) -> Iterator[Step]:
    """Yield the steps of an all_reduce up both trees of each rail and down again, on chunk 2·rail + tree.

    `chains` are, for each node, the positions (rails, GPUs) along the chain of each rail, the head first.
    """
    return halves("all_reduce", _down(chains))


def _down(chains: Sequence[Ints]) -> Iterator[Step]:
    """Yield the steps of `along` down from the root of each tree, the head of node 0."""
    paths = [chain.tolist() for chain in chains]
    for tree, (parent, depth, _) in enumerate(node_trees(len(chains))):
        for rail in range(len(paths[0])):
            for node, chain in enumerate(paths):
                for position in range(node == 0, len(chain[rail])):  # the head of node 0 is the root
                    rank = chain[rail][position]
                    above = chain[rail][position - 1] if position else paths[int(parent[node])][rail][0]
                    yield Step(int(depth[node]) + position - 1, above, rank, 2 * rail + tree, reduce=False)


def phase(chains: Sequence[Ints]) -> Phase:
    """Return the phase of `along`: chains inside nodes and the edges of both trees between nodes, in both directions."""
    rails, inside = len(chains[0]), max(chain.shape[1] for chain in chains)
    low, high = (np.concatenate([chain[:, part].ravel() for chain in chains]) for part in (slice(1, None), slice(-1)))
    heads = np.stack([chain[:, 0] for chain in chains])
    return merged(rounds(len(chains), inside), (low, high, 1 / rails), (high, low, 1 / rails), *edges(heads))
