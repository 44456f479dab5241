"""NVLSTree: node switches add and copy, and double binary trees join the nodes (NVIDIA/nccl, NCCL_ALGO_NVLS_TREE).

Slice c is added in the switch of every node and handed to GPU c, which passes it along the two trees of its rail. A NIC carries
up to 2·S/g in each direction for g GPUs per node, and S/g on two nodes. That is less than the ring's 2(n-1)/n·S/g, so the bus
bandwidth on two nodes exceeds the wire's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.algorithms.nvls import switches
from clustersim.collectives.model import Group, Phase, Step, merged, node_switch, nodes_of
from clustersim.collectives.shared_steps import along, edges, node_trees

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on two chunks per rail, one for each tree."""
    inside, nodes = nodes_of(group)
    last = 2 + 2 * node_trees(nodes)[0][2]
    for rank in range(group.n):
        node, rail = divmod(rank, inside)
        switch = node_switch(node)
        for chunk in range(2 * inside):
            yield Step(0, rank, switch, chunk, reduce=True)
            yield Step(last + 1, switch, rank, chunk, reduce=False)
        for chunk in (2 * rail, 2 * rail + 1):
            yield Step(1, switch, rank, chunk, reduce=False)
            yield Step(last, rank, switch, chunk, reduce=False)
    heads = np.arange(group.n).reshape(nodes, inside, 1)
    yield from (step._replace(round=2 + step.round) for step in along([*heads]))


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: each rank to the switch of its node and back, and heads to heads along the trees."""
    inside, nodes = nodes_of(group)
    rank, switch = switches(group)
    part = 1 + 1 / inside
    trees = edges(np.arange(group.n).reshape(nodes, inside))
    return (merged(4 + 2 * node_trees(nodes)[0][2], (rank, switch, part), (switch, rank, part), *trees),)
