"""CollNet direct: GPUs hand their slices to the rail heads of their node, and network switches add (SHARP).

Slice c of an all_reduce goes straight to GPU c of the same node, through the switches of rail c, and back the same way. A NIC
sends S/g once, where a ring sends 2(n-1)/n·S/g. Time does not grow with the number of nodes, except for a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from clustersim.collectives.model import Group, Phase, Step, halves, node_pairs, nodes_of
from clustersim.collectives.shared_steps import copies, rail_phase

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of an all_reduce, all_gather or reduce_scatter; other operations are not supported.

    In an all_reduce, the GPUs of rail c sum chunk c. Otherwise chunk r starts or ends on rank r.
    """
    return halves(op, copies(op, group, partial(_within, group)))


def _within(group: Group, node: int, head: int, chunk: int) -> Iterator[Step]:
    """Yield the steps in which the head of a chunk sends it to the other GPUs of its node."""
    inside, _ = nodes_of(group)
    for rank in range(node * inside, (node + 1) * inside):
        if rank != head:
            yield Step(2, head, rank, chunk, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: all pairs inside nodes, and each rank to the switches of its rail and back."""
    inside, nodes = nodes_of(group)
    both = op == "all_reduce"
    pairs = [(*node_pairs(group), 2 / inside if both else nodes / group.n)] if inside > 1 else []
    return (rail_phase(op, group, (1 + both) * (inside > 1), pairs),)
