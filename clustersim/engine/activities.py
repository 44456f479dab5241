"""Kernels and exchanges become activities: seconds of compute with moves between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clustersim.engine.fabric import Activity, Carried, Move, Segment
from clustersim.engine.network import Network
from clustersim.engine.script import Call
from clustersim.workload.kernel import Kernel
from clustersim.workload.stages import Steps

Seconds = Mapping[Kernel, float]


@dataclass(frozen=True, slots=True)
class Activities:
    """Makes the activities of a job on its network; those with the same moves share their segments.

    seconds: of each kernel on a nominal GPU.
    """

    seconds: Seconds
    network: Network
    written: dict[tuple[object, ...], _Written] = field(default_factory=dict)
    known: dict[tuple[object, ...], Activity] = field(default_factory=dict)

    def work(self, items: Steps, slowdown: float, cells: Mapping[str, int]) -> Activity:
        """Return the activity of kernels and exchanges in the order given.

        slowdown: factor of this rank. cells: the rank's group cell by family; exchanges of other families are left out.
        """
        key = id(items), slowdown, frozenset(cells)
        if key not in self.written:
            self.written[key] = _write(items, self.seconds, slowdown, cells)
        written = self.written[key]
        moves = {call: self.network.moves(call, cells[call.family]) for call in written.sizes}
        same = *key, *map(id, moves.values())
        if same not in self.known:
            self.known[same] = Activity(_segments(written, moves))
        carried: Carried = {}
        for call, size in written.sizes.items():
            to = self.network.variant(call), cells[call.family]
            carried[to] = carried.get(to, 0.0) + size
        return self.known[same].carrying(carried)

    def transfer(self, call: Call, cell: int) -> Activity:
        """Return the activity of one collective or one message."""
        moves = self.network.moves(call, cell)
        return Activity((Segment(0.0, move) for move in moves), {(self.network.variant(call), cell): call.size})


class _Written(NamedTuple):
    """Seconds before each call, and after the last; and the bytes of each different call in all."""

    parts: tuple[tuple[float, Call], ...]
    rest: float
    sizes: Mapping[Call, float]


def _write(items: Steps, seconds: Seconds, slowdown: float, cells: Mapping[str, int]) -> _Written:
    parts: list[tuple[float, Call]] = []
    sizes: dict[Call, float] = {}
    compute = 0.0
    for item in items:
        if isinstance(item, Kernel):
            compute += seconds[item] * slowdown
        elif item.group in cells:
            call = Call(item.group, item.op, item.size)
            parts.append((compute, call))
            sizes[call] = sizes.get(call, 0.0) + call.size
            compute = 0.0
    return _Written(tuple(parts), compute, sizes)


def _segments(written: _Written, moves: Mapping[Call, Sequence[Move]]) -> Iterator[Segment]:
    compute = 0.0
    for before, call in written.parts:
        compute += before
        for move in moves[call]:
            yield Segment(compute, move)
            compute = 0.0
    yield Segment(compute + written.rest, None)
