"""In which turns a rank runs its passes: one after the other, or two of different microbatches in parts, beside each other.

A pass that exchanges rows with experts on other ranks stands still at each exchange. Where `overlap.ep: microbatch` asks for it,
a backward pass and the forward pass behind it are cut at their exchanges, and their parts take turns: what the one exchanges
moves while the other computes. So Megatron's overlap_moe_expert_parallel_comm, with this order on both streams
(core/models/common/model_chunk_schedule_plan.py, core/pipeline_parallel/combined_1f1b.py). In a schedule of pairs
(`Pipeline.paired`) both have received before either computes, and neither sends before both are over, as in DualPipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import together

StepKey = tuple[str, int] | tuple[str, int, int, int]
"""A pass by its letter and chunk, the place of its stage among those of the rank; of one in parts also which part, and how many
exchanges the pass beside it has. Part -1 of a pair receives, and the part behind the last one sends."""
Turn = tuple[StepKey, Action]


class Pairing(NamedTuple):
    """Which passes run beside each other: a backward pass and a forward pass right behind it, or none."""

    exchanges: Mapping[tuple[str, int], int] = {}
    """Of passes that are cut there, by letter and chunk."""
    paired: bool = False

    def __bool__(self) -> bool:
        return self.paired or bool(self.exchanges)


ALONE = Pairing()


def turns(row: Sequence[Action], own: Sequence[int], pairing: Pairing) -> list[Turn]:
    """Return what a rank does, in order. own: its stages."""
    chunk = {stage: place for place, stage in enumerate(own)}
    if not pairing:
        return [((action.letter, chunk[action.stage]), action) for action in row]
    found, orders = list[Turn](), dict[tuple[int, int], list[tuple[StepKey, int]]]()
    for unit in together(row, True):
        if len(unit) == 1:
            found.append(((unit[0].letter, chunk[unit[0].stage]), unit[0]))
            continue
        chunks = chunk[unit[0].stage], chunk[unit[1].stage]
        if chunks not in orders:
            orders[chunks] = list(_side_by_side(*chunks, pairing))
        found += [(key, unit[which]) for key, which in orders[chunks]]
    return found


def _side_by_side(backward: int, forward: int, pairing: Pairing) -> Iterator[tuple[StepKey, int]]:
    """Yield the parts of a backward pass (0) and a forward pass (1) of two chunks, the backward one's first."""
    passes = ("B", backward), ("F", forward)
    exchanges = [pairing.exchanges.get(one, 0) for one in passes]

    def part(which: int, number: int) -> tuple[StepKey, int]:
        return (*passes[which], number, exchanges[1 - which]), which

    if pairing.paired:
        yield from (part(which, -1) for which in (0, 1))
    for number in range(max(exchanges) + 1):
        yield from (part(which, number) for which in (0, 1) if number <= exchanges[which])
    if pairing.paired:
        yield from (part(which, exchanges[which] + 1) for which in (0, 1))


def launched_between(key: tuple[str, int, int, int]) -> int:
    """Return how many exchanges the pass beside launches between the last one of a pass and the part that waits for it."""
    letter, _, part, beside = key
    return int(part <= beside if letter == "B" else part < beside)


def memory_order(schedule: Schedule, beside: bool) -> Schedule:
    """Return a schedule as memory sees it. beside: passes run beside each other, and what the forward one keeps comes on top."""
    if not beside:
        return schedule
    return tuple(tuple(action for unit in together(row, True) for action in reversed(unit)) for row in schedule)
