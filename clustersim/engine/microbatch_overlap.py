"""Order of a rank's passes: one after the other, or two of different microbatches interleaved in parts.

A pass that exchanges rows with experts on other ranks idles at each exchange. With `overlap.ep: microbatch`, a backward pass and
the next forward pass are cut at their exchanges, and their parts alternate: one exchanges while the other computes. This is
Megatron's overlap_moe_expert_parallel_comm, with its order on both streams (core/models/common/model_chunk_schedule_plan.py,
core/pipeline_parallel/combined_1f1b.py). In a schedule of pairs (`Pipeline.paired`) both have received before either computes,
and neither sends before both have ended, as in DualPipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import action_units

StepKey = tuple[str, int] | tuple[str, int, int, int]
"""A pass by letter and chunk (index of its stage among the rank's); for a pass in parts also the index of the part and the number
of exchanges of the overlapping pass. Part -1 of a pair receives, and the part after the last one sends."""
Turn = tuple[StepKey, Action]


class Pairing(NamedTuple):
    """Passes that overlap: a backward pass and the forward pass right after it, or none."""

    exchanges: Mapping[tuple[str, int], int] = {}
    """Number of exchanges of passes that are cut, by letter and chunk."""
    paired: bool = False

    def __bool__(self) -> bool:
        return self.paired or bool(self.exchanges)


ALONE = Pairing()


def turns(row: Sequence[Action], own: Sequence[int], pairing: Pairing) -> list[Turn]:
    """Return the turns of a rank, in order. own: its stages."""
    chunk = {stage: place for place, stage in enumerate(own)}
    if not pairing:
        return [((action.letter, chunk[action.stage]), action) for action in row]
    found, orders = list[Turn](), dict[tuple[int, int], list[tuple[StepKey, int]]]()
    for unit in action_units(row, True):
        if len(unit) == 1:
            found.append(((unit[0].letter, chunk[unit[0].stage]), unit[0]))
            continue
        chunks = chunk[unit[0].stage], chunk[unit[1].stage]
        if chunks not in orders:
            orders[chunks] = list(_side_by_side(*chunks, pairing))
        found += [(key, unit[which]) for key, which in orders[chunks]]
    return found


def _side_by_side(backward: int, forward: int, pairing: Pairing) -> Iterator[tuple[StepKey, int]]:
    """Yield the parts of a backward pass (0) and a forward pass (1) of two chunks, backward parts first."""
    passes = ("B", backward), ("F", forward)
    exchanges = [pairing.exchanges.get(one, 0) for one in passes]

    def part(which: int, number: int) -> tuple[StepKey, int]:
        """Return (key of a part, `which`). number: of the part; -1 receives, and the one after the last exchange sends."""
        return (*passes[which], number, exchanges[1 - which]), which

    if pairing.paired:
        yield from (part(which, -1) for which in (0, 1))
    for number in range(max(exchanges) + 1):
        yield from (part(which, number) for which in (0, 1) if number <= exchanges[which])
    if pairing.paired:
        yield from (part(which, exchanges[which] + 1) for which in (0, 1))


def launched_between(key: tuple[str, int, int, int]) -> int:
    """Return the number of exchanges of the overlapping pass between a pass's last exchange and the part that waits for it."""
    letter, _, part, beside = key
    return int(part <= beside if letter == "B" else part < beside)


def memory_order(schedule: Schedule, beside: bool) -> Schedule:
    """Return a schedule in the order of memory. beside: passes overlap, and the forward pass's activations come on top."""
    if not beside:
        return schedule
    return tuple(tuple(action for unit in action_units(row, True) for action in reversed(unit)) for row in schedule)
