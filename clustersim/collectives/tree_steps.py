"""Double binary trees over nodes, for the algorithms that use them on each rail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms.tree import depths, parents
from clustersim.collectives.model import Group, Phase, Step, merged, nodes_of

PairList = tuple[Ints, Ints, float]


@lru_cache(maxsize=64)
def node_trees(nodes: int) -> tuple[tuple[Ints, Ints, int], ...]:
    """Return (parent of every node, depth of every node, largest depth) of both trees. The root is node 0, its own parent."""
    if nodes == 1:
        one = np.zeros(1, np.int64)
        return ((one, one, 0),) * 2
    found = [(parent, depths(parent)) for parent in parents(nodes)]
    deepest = max(int(depth.max()) for _, depth in found)
    first = np.zeros(1, np.int64)
    return tuple((np.append(first, parent), np.append(first, depth), deepest) for parent, depth in found)


def between(group: Group, rail: int, start: int) -> Iterator[Step]:
    """Yield the steps of an all_reduce between the heads (position `rail`) of all nodes on chunk 2·rail + tree, from round
    `start` on."""
    inside, nodes = nodes_of(group)
    for tree, (parent, depth, deepest) in enumerate(node_trees(nodes)):
        for node in range(1, nodes):
            head, above = node * inside + rail, int(parent[node]) * inside + rail
            level, chunk = int(depth[node]), 2 * rail + tree
            yield Step(start + deepest - level, head, above, chunk, reduce=True)
            yield Step(start + deepest + level - 1, above, head, chunk, reduce=False)


def edges(heads: Ints) -> tuple[PairList, ...]:
    """Return the pairs (source, destination, fraction) between heads (nodes, rails), upwards and downwards; none on one node."""
    nodes, rails = heads.shape
    if nodes == 1:
        return ()
    child = np.concatenate([np.arange(1, nodes)] * 2)
    above = np.concatenate([parent[1:] for parent, _, _ in node_trees(nodes)])
    low, high = heads[child].ravel(), heads[above].ravel()
    return (low, high, 0.5 / rails), (high, low, 0.5 / rails)


def rounds(nodes: int, inside: int) -> int:
    """Return the number of rounds of an all_reduce up and down the trees over `nodes` nodes, the largest with `inside` GPUs."""
    return 2 * (node_trees(nodes)[0][2] + inside - 1)


def along(chains: Sequence[Ints]) -> Iterator[Step]:
    """Yield the steps of an all_reduce up both trees of each rail and down again, on chunk 2·rail + tree.

    `chains` are, for each node, the positions (rails, GPUs) along the chain of each rail, the head first.
    """
    inside = max(own.shape[1] for own in chains)
    paths = [own.tolist() for own in chains]
    for tree, (parent, depth, deepest) in enumerate(node_trees(len(chains))):
        last = deepest + inside - 1
        for rail in range(len(paths[0])):
            for node, own in enumerate(paths):
                for place in range(node == 0, len(own[rail])):  # the head of node 0 is the root
                    rank = own[rail][place]
                    above = own[rail][place - 1] if place else paths[int(parent[node])][rail][0]
                    level = int(depth[node]) + place
                    yield Step(last - level, rank, above, 2 * rail + tree, reduce=True)
                    yield Step(last + level - 1, above, rank, 2 * rail + tree, reduce=False)


def phase(chains: Sequence[Ints]) -> Phase:
    """Return the phase of `along`: chains inside nodes and the edges of both trees between nodes, in both directions."""
    rails, inside = len(chains[0]), max(own.shape[1] for own in chains)
    low, high = (np.concatenate([own[:, part].ravel() for own in chains]) for part in (slice(1, None), slice(-1)))
    heads = np.stack([own[:, 0] for own in chains])
    return merged(rounds(len(chains), inside), (low, high, 1 / rails), (high, low, 1 / rails), *edges(heads))
