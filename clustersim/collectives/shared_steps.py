"""Steps and phases that several algorithms share: double binary trees over nodes, and rail switches that add and copy (SHARP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms.tree import depths, parents
from clustersim.collectives.model import Group, Phase, Step, halves, merged, network_switch, nodes_of

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


def rail_chains(group: Group) -> list[Ints]:
    """Return for each node the chains of all rails, an array (rails, GPUs), each from the head on."""
    inside, nodes = nodes_of(group)
    sizes = group.sizes or (inside,) * nodes
    rail = np.arange(min(sizes))[:, None]
    return [end - size + (rail - np.arange(size)) % size for size, end in zip(sizes, accumulate(sizes), strict=True)]


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


# Steps and phases through the switches of rails, for NVLS and CollNet.


def copies(op: str, group: Group, within: Callable[[int, int, int], Iterator[Step]]) -> Iterator[Step]:
    """Yield the half of `op` that copies: in an all_reduce chunk c from the switches of rail c, otherwise chunk r from rank r.

    In rounds 0 and 1 each chunk goes over its rail to the head of that rail in every node. `within(node, head, chunk)` yields the
    steps from round 2 on, in which the rank `head` distributes the chunk in its node.
    """
    inside, nodes = nodes_of(group)
    summed = op == "all_reduce"
    for chunk in range(inside if summed else group.n):
        home, rail = divmod(chunk, inside)
        if nodes > 1 and not summed:
            yield Step(0, chunk, network_switch(rail), chunk, reduce=False)
        for node in range(nodes):
            head = node * inside + rail
            if nodes > 1 and (summed or node != home):
                yield Step(1, network_switch(rail), head, chunk, reduce=False)
            yield from within(node, head, chunk)


def rail_phase(op: str, group: Group, rounds: int, within: Sequence[PairList]) -> Phase:
    """Return one phase: `within` in `rounds` rounds inside nodes, and in two more each rank to the switches of its rail and back.

    `within` has the pairs of an all_gather if `op` is a reduce_scatter, which runs them backwards.
    """
    n, (inside, nodes) = group.n, nodes_of(group)
    rank = np.arange(n, dtype=np.int64)
    network = network_switch(0) - rank % inside
    up, down = (1 / inside, 1 / inside) if op == "all_reduce" else (1 / n, (nodes - 1) / n)
    parts = [*within, *([(rank, network, up), (network, rank, down)] if nodes > 1 else [])]
    if op == "reduce_scatter":
        parts = [(b, a, fraction) for a, b, fraction in parts]
    return merged(rounds + 2 * (nodes > 1), *parts)
