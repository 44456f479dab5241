"""Steps and phases through rail switches that add and copy, shared by NVLS and CollNet (SHARP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, merged, network_switch, nodes_of
from clustersim.collectives.tree_steps import PairList


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
