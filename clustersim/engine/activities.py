"""Kernels and exchanges become activities: seconds of compute with moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clustersim.engine.fabric import Activity, Carried, Segment
from clustersim.engine.network import Network
from clustersim.engine.script import Call
from clustersim.workload.kernel import Kernel
from clustersim.workload.operator import Exchange

Seconds = Mapping[Kernel, float]


def activity(
    work: Iterable[Kernel | Exchange], seconds: Seconds, slowdown: float, network: Network, cells: Mapping[str, int]
) -> Activity:
    """Return the activity of kernels and exchanges in the order given.

    seconds: of each kernel on a nominal GPU. slowdown: factor of this rank. cells: the rank's group cell by family.
    """
    segments: list[Segment] = []
    carried: Carried = {}
    compute = 0.0
    for item in work:
        if isinstance(item, Kernel):
            compute += seconds[item] * slowdown
        elif item.group in cells:
            call, cell = Call(item.group, item.op, item.size), cells[item.group]
            key = (network.variant(call), cell)
            carried[key] = carried.get(key, 0.0) + call.size
            for move in network.moves(call, cell):
                segments.append(Segment(compute, move))
                compute = 0.0
    segments.append(Segment(compute, None))
    return Activity(segments, carried)


def transfer(network: Network, call: Call, cell: int) -> Activity:
    """Return the activity of one collective or one message."""
    return Activity(
        (Segment(0.0, move) for move in network.moves(call, cell)), {(network.variant(call), cell): call.size}
    )
