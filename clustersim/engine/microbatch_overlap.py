"""Order of a rank's passes: one after the other, or passes of two microbatches interleaved in parts.

A pass that exchanges rows with experts on other ranks idles at each exchange. With `overlap.ep: microbatch`, a backward pass and
the next forward pass are cut at their exchanges, and their parts alternate: one exchanges while the other computes. This is
Megatron's overlap_moe_expert_parallel_comm, with its order on both streams (core/models/common/model_chunk_schedule_plan.py,
core/pipeline_parallel/combined_1f1b.py). In a schedule of pairs (`Pipeline.paired`) both passes receive before either computes,
and neither sends before both have ended, as in DualPipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import action_units

StepKey = tuple[str, int] | tuple[str, int, int, int]
"""(letter, chunk) of a pass, chunk being the index of its stage among the rank's. A part of a pass also has its index, and the
number of exchanges of the overlapping pass. In a schedule of pairs, part -1 receives and the part after the last one sends."""
Turn = tuple[StepKey, Action]
"""A pass, or a part of one, with its action."""


class Pairing(NamedTuple):
    """Overlap of each backward pass with the forward pass right after it; false without overlap."""

    exchanges: Mapping[tuple[str, int], int] = {}
    """{(letter, chunk): number of exchanges at which the pass is cut}"""
    paired: bool = False
    """Whether the schedule pairs passes."""

    def __bool__(self) -> bool:
        return self.paired or bool(self.exchanges)


ALONE = Pairing()
"""No passes overlap."""


def turns(row: Sequence[Action], stages: Sequence[int], pairing: Pairing) -> list[Turn]:
    """Return the turns of a rank in order. row: actions of a step. stages: global stages of the rank, by chunk."""
    chunk = {stage: index for index, stage in enumerate(stages)}
    if not pairing:
        return [((action.letter, chunk[action.stage]), action) for action in row]
    result, orders = list[Turn](), dict[tuple[int, int], list[tuple[StepKey, int]]]()
    for unit in action_units(row, True):
        if len(unit) == 1:
            result.append(((unit[0].letter, chunk[unit[0].stage]), unit[0]))
            continue
        chunks = chunk[unit[0].stage], chunk[unit[1].stage]
        if chunks not in orders:
            orders[chunks] = list(_side_by_side(*chunks, pairing))
        result += [(key, unit[side]) for key, side in orders[chunks]]
    return result


def _side_by_side(backward: int, forward: int, pairing: Pairing) -> Iterator[tuple[StepKey, int]]:
    """Yield (key of a part, 0 for the backward pass or 1 for the forward pass) in order. backward, forward: their chunks."""
    passes = ("B", backward), ("F", forward)
    exchanges = [pairing.exchanges.get(key, 0) for key in passes]

    def part(side: int, number: int) -> tuple[StepKey, int]:
        """Return the key of part `number` of the backward (0) or forward (1) pass, and `side`."""
        return (*passes[side], number, exchanges[1 - side]), side

    if pairing.paired:
        yield from (part(side, -1) for side in (0, 1))
    for number in range(max(exchanges) + 1):
        yield from (part(side, number) for side in (0, 1) if number <= exchanges[side])
    if pairing.paired:
        yield from (part(side, exchanges[side] + 1) for side in (0, 1))


def launched_between(key: tuple[str, int, int, int]) -> int:
    """Return the number of exchanges of the other pass that are launched between the exchange before a part and the part itself.

    key: letter, chunk, index of the part, and number of exchanges of the overlapping pass.
    """
    letter, _, part, exchanges = key
    return int(part <= exchanges if letter == "B" else part < exchanges)


def memory_order(schedule: Schedule, overlap: bool) -> Schedule:
    """Return a schedule in the order in which its passes change memory.

    overlap: whether it pairs passes; then the forward pass of a pair comes first, because activations of both are saved.
    """
    if not overlap:
        return schedule
    return tuple(tuple(action for unit in action_units(row, True) for action in reversed(unit)) for row in schedule)
