"""Schedules with two chunks per rank whose stages go down the ranks and come back: rank r of p holds stages r and 2p-1-r.

The schedules with controllable memory (Qi et al. 2024, arXiv 2405.15362) repeat the passes of one microbatch every six units of
time. Weight gradients fill idle time. Then each pass starts as early as it can without more memory: first all passes, then those
after the last forward pass of a rank once more, before any weight gradients (section 3.3). Passes are tried in the order of
AMD's Primus (primus/core/pipeline_parallel/scheduler/algorithms/zbv_greedy.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from itertools import count

import numpy as np

from clustersim.arrays import Ints
from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, Schedule
from clustersim.schedules.pipeline import Pipeline

PERIOD = 6
"""Units of time of a microbatch: forward, input gradients and weight gradients of two stages, one unit each."""
FILLED = 4
"""Number of microbatches beyond the number of ranks from which on more of them only repeat the passes of one."""
NEEDED = {"F": ((-1, "F"),), "I": ((0, "F"), (1, "I")), "W": ((0, "I"),)}
"""{letter: stages, counted from its own, and letters of the passes of the same microbatch that must end before}"""
KEPT = {"F": 1, "I": 0, "W": -1}
"""Change that a pass makes to the number of microbatches that a rank keeps."""
Timetable = dict[int, Action]
"""Passes of a rank by the unit of time at which they start; each is one unit long."""


def two_chunks(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 2."""
    if chunks != 2:
        raise InputError(f"{schedule} has 2 model chunks a rank, not {chunks}; set vpp to 2")


def pipeline(stages: int, chunks: int = 2) -> Pipeline:
    """Return the pipeline with two chunks per rank."""
    return Pipeline(stages, chunks, folded=True)


def repeated(first: Sequence[Sequence[int]], microbatches: int) -> Schedule:
    """Return the schedule whose ranks start the passes of microbatch 0 at the units `first`, and of each later one six units
    later.

    `first` holds four units per rank: the forward passes of its first and second stage, then the input gradients of its second
    and first stage. More microbatches than ranks only repeat the six passes up to the last forward pass of a first stage.
    """
    few = min(microbatches, len(first) + FILLED)
    more, rows = microbatches - few, _pulled(first, few)
    ends = [row.index(Action(rank, "F", few - 1)) + 1 for rank, row in enumerate(rows)]
    return tuple(
        row[:end]
        + tuple(Action(stage, letter, i + by + 1) for by in range(more) for stage, letter, i in row[end - PERIOD : end])
        + tuple(Action(stage, letter, i + more) for stage, letter, i in row[end:])
        for row, end in zip(rows, ends, strict=True)
    )


def _pulled(first: Sequence[Sequence[int]], microbatches: int) -> Schedule:
    """Return the schedule of `repeated`, with passes moved one by one."""
    on = pipeline(len(first))
    rows = [_filled(on.own(rank), starts, microbatches) for rank, starts in enumerate(first)]
    last_forwards = [max(unit for unit, one in row.items() if one.letter == "F") for row in rows]
    late = {one for row, last in zip(rows, last_forwards, strict=True) for unit, one in row.items() if unit > last}
    _pull(rows, {one for row in rows for one in row.values()}, max(max(_kept(row)) for row in rows))
    put_off = [_without_weights(row, late) for row in rows]
    _pull(rows, late, math.inf)
    for row, weights in zip(rows, put_off, strict=True):
        begin = {one: unit for unit, one in row.items()}
        for one in weights:
            row[next(unit for unit in count(begin[one._replace(letter="I")]) if unit not in row)] = one
    return tuple(tuple(row[unit] for unit in sorted(row)) for row in rows)


def _filled(stages: Sequence[int], starts: Sequence[int], microbatches: int) -> Timetable:
    """Return the timetable of a rank for all microbatches, with weight gradients in its idle units."""
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
    raise AssertionError  # count() never ends


def _without_weights(row: Timetable, late: Collection[Action]) -> list[Action]:
    """Remove the weight gradients of the passes in `late` from a timetable, and return them in their order."""
    units = [unit for unit in sorted(row) if row[unit].letter == "W" and row[unit] in late]
    return [row.pop(unit) for unit in units]


def _kept(row: Timetable) -> Ints:
    """Return the number of microbatches that a rank keeps from each unit on."""
    return np.cumsum([KEPT[row[unit].letter] if unit in row else 0 for unit in range(max(row) + 1)])


def _pull(rows: Sequence[Timetable], moved: Collection[Action], most: float) -> None:
    """Move passes to the earliest units in which a rank is idle and keeps at most `most` microbatches, earliest first."""
    begin: dict[tuple[int, str, int], int] = {one: unit for row in rows for unit, one in row.items()}
    kept = [_kept(row) for row in rows]
    for unit, rank in sorted((unit, rank) for rank, row in enumerate(rows) for unit in row):
        row, own, action = rows[rank], kept[rank], rows[rank][unit]
        if action not in moved:
            continue
        (stage, letter, i), more = action, KEPT[action.letter]
        needs = [(stage, letter, i - 1), *((stage + step, other, i) for step, other in NEEDED[letter])]
        lowest = 1 + max([begin.get(one, -1) for one in needs])
        if more > 0:  # no other pass exceeds the memory
            full = np.flatnonzero(own[lowest:unit] >= most)
            lowest += full[-1] + 1 if len(full) else 0
        place = next((one for one in range(lowest, unit) if one not in row), unit)
        row[place] = row.pop(unit)
        begin[action] = place
        own[place:unit] += more
