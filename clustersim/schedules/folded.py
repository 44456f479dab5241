"""Schedules of ranks with two chunks whose stages go down the ranks and come back: rank r of p holds stages r and 2p-1-r.

Those of controllable memory (Qi et al. 2024, arXiv 2405.15362) repeat the passes of one microbatch every six units of time.
Gradients of weights fill what is free, and then each pass begins as early as it can without more memory: all of them first, then
those behind the last forward pass of a rank once more, before any gradients of weights (their section 3.3). Passes are tried in
the order of AMD's Primus (primus/core/pipeline_parallel/scheduler/algorithms/zbv_greedy.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, count

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, Schedule
from clustersim.schedules.pipeline import Pipeline
from clustersim.schedules.play import needs

PERIOD = 6
"""Units of a microbatch: forward, gradients of inputs and of weights of two stages, one each."""
KEPT = {"F": 1, "I": 0, "W": -1}
"""By which a pass changes the number of microbatches that a rank keeps."""
Timetable = dict[int, Action]
"""Passes of a rank, each one unit long, by the unit at which they begin."""


def two_chunks(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 2."""
    if chunks != 2:
        raise InputError(f"{schedule} has 2 model chunks a rank, not {chunks}; set vpp to 2")


def pipeline(stages: int, chunks: int = 2) -> Pipeline:
    """Return the pipeline of two chunks a rank."""
    return Pipeline(stages, chunks, folded=True)


def repeated(first: Sequence[Sequence[int]], microbatches: int) -> Schedule:
    """Return the schedule of ranks that begin the passes of the first microbatch at these units of time.

    first: by rank, of the forward passes of its first and its second stage, then of the gradients of inputs of its second and its
    first.
    """
    on = pipeline(len(first))
    rows = [_filled(on.own(rank), starts, microbatches) for rank, starts in enumerate(first)]
    late = {one for row in rows for one in _behind_forwards(row)}
    _pull(rows, on, {one for row in rows for one in row.values()}, max(max(_kept(row)) for row in rows))
    put_off = [_without_weights(row, late) for row in rows]
    _pull(rows, on, late, math.inf)
    for row, weights in zip(rows, put_off, strict=True):
        begin = {one: unit for unit, one in row.items()}
        for one in weights:
            row[next(unit for unit in count(begin[one._replace(letter="I")]) if unit not in row)] = one
    return tuple(tuple(row[unit] for unit in sorted(row)) for row in rows)


def _filled(stages: Sequence[int], starts: Sequence[int], microbatches: int) -> Timetable:
    """Return what a rank does of all microbatches, gradients of weights where it is idle."""
    down, up = stages
    kinds: tuple[tuple[int, Letter], ...] = ((down, "F"), (up, "F"), (up, "I"), (down, "I"))
    row = {
        start + PERIOD * i: Action(stage, letter, i)
        for (stage, letter), start in zip(kinds, starts, strict=True)
        for i in range(microbatches)
    }
    due, last = deque[Action](), max(row)
    for unit in count():
        if unit in row:
            due.extend([row[unit]] * (row[unit].letter == "I"))
        elif due:
            row[unit] = due.popleft()._replace(letter="W")
        elif unit > last:
            return row
    raise AssertionError  # count() has no end


def _behind_forwards(row: Timetable) -> Iterator[Action]:
    last = max(unit for unit, one in row.items() if one.letter == "F")
    return (one for unit, one in row.items() if unit > last)


def _without_weights(row: Timetable, late: Collection[Action]) -> list[Action]:
    """Take gradients of weights out of a row, and return them in their order."""
    units = [unit for unit in sorted(row) if row[unit].letter == "W" and row[unit] in late]
    return [row.pop(unit) for unit in units]


def _kept(row: Timetable) -> list[int]:
    """Return how many microbatches a rank keeps from each unit on."""
    return list(accumulate(KEPT[row[unit].letter] if unit in row else 0 for unit in range(max(row) + 1)))


def _pull(rows: Sequence[Timetable], on: Pipeline, moved: Collection[Action], most: float) -> None:
    """Let passes begin as early as they can where a rank is idle and keeps at most `most` microbatches, the earliest first."""
    begin = {one: unit for row in rows for unit, one in row.items()}
    kept = [_kept(row) for row in rows]
    for unit, rank in sorted((unit, rank) for rank, row in enumerate(rows) for unit in row):
        row, own, action = rows[rank], kept[rank], rows[rank][unit]
        if action not in moved:
            continue
        more = KEPT[action.letter]
        least = 1 + max((begin[one] for one in _before(action, on)), default=-1)
        lowest = unit
        while lowest > least and own[lowest - 1] + more <= most:
            lowest -= 1
        place = next((one for one in range(lowest, unit) if one not in row), unit)
        row[place] = row.pop(unit)
        begin[action] = place
        own[place:unit] = [number + more for number in own[place:unit]]


def _before(action: Action, on: Pipeline) -> Iterator[Action]:
    """Yield the passes that end before a pass begins: those that it needs, and its own of the microbatch before."""
    for one in needs(action, on):
        yield one._replace(letter="I") if one.letter == "B" else one
    if action.microbatch:
        yield action._replace(microbatch=action.microbatch - 1)
