"""RCCL's trees where a link joins every two GPUs of a node: `rail_tree` whose chains are the paths of `mesh_ring`.

The chain of rail c runs along path c. Its first GPU, c, is the head that the two trees join. All links of a node work, each with
at most 2·S/g bytes for g GPUs per node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.algorithms.mesh_ring import paths
from clustersim.collectives.model import Group, Phase, Step, nodes_of
from clustersim.collectives.shared_steps import along, phase

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on two chunks per rail, one for each tree: up to the tree's root and down again."""
    return along(_chains(group))


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: the chains of all rails inside nodes, and the edges of both trees between nodes, in both directions."""
    return (phase(_chains(group)),)


def _chains(group: Group) -> list[Ints]:
    """Return for each node the chains of all rails, an array (rails, GPUs), each from the head on."""
    inside, nodes = nodes_of(group)
    return list(np.arange(nodes)[:, None, None] * inside + paths(inside)[:inside])
