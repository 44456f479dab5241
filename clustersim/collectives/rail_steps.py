"""Steps through rail switches that add and copy, shared by NVLS and CollNet (SHARP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clustersim.collectives.model import Group, Step, backwards, network_switch, nodes_of


def all_gather(group: Group, within: Callable[[int, int, int], Iterator[Step]]) -> Iterator[Step]:
    """Yield the steps of an all_gather. In rounds 0 and 1 each chunk goes over its owner's rail to its head in every node.

    `within(node, head, chunk)` yields the steps from round 2 on, in which the rank `head` distributes the chunk in its node. The
    chunk of rank r has index r.
    """
    inside, nodes = nodes_of(group)
    for owner in range(group.n):
        home, rail = divmod(owner, inside)
        if nodes > 1:
            yield Step(0, owner, network_switch(rail), owner, reduce=False)
        for node in range(nodes):
            head = node * inside + rail
            if node != home:
                yield Step(1, network_switch(rail), head, owner, reduce=False)
            yield from within(node, head, owner)


def steps_of(op: str, all_reduce: Iterator[Step], all_gather: Iterator[Step], last: int) -> Iterator[Step]:
    """Yield the steps of an all_reduce, an all_gather, or a reduce_scatter: `all_gather` reversed. last: its last round."""
    if op == "all_reduce":
        yield from all_reduce
    elif op == "all_gather":
        yield from all_gather
    else:
        yield from backwards(all_gather, last)
