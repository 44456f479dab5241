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
"""A schedule of (ranks + `FILLED`) microbatches is full: each further microbatch only repeats the six passes of one."""
NEEDED = {"F": ((-1, "F"),), "I": ((0, "F"), (1, "I")), "W": ((0, "I"),)}
"""{letter: stages, counted from its own, and letters of the passes of the same microbatch that must end before}"""
SAVED = {"F": 1, "I": 0, "W": -1}
"""{letter: change that its pass makes to the number of microbatches in a rank's memory}"""
Timetable = dict[int, Action]
"""{unit of time: pass of a rank that starts then}; each pass takes one unit."""


def two_chunks(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 2. schedule: name for the message."""
    if chunks != 2:
        raise InputError(f"{schedule} has 2 model chunks per rank, not {chunks}; set vpp to 2")


def pipeline(stages: int, chunks: int = 2) -> Pipeline:
    """Return the layout of two stages per rank that go down the ranks and come back."""
    return Pipeline(stages, chunks, folded=True)


def repeated(first: Sequence[Sequence[int]], microbatches: int) -> Schedule:
    """Return the schedule that repeats the passes of microbatch 0 every six units of time, then starts each as early as possible.

    first: four start units per rank, for microbatch 0: the forward passes of its first and second stage, then the input gradients
    of its second and first stage. Microbatches beyond ranks + `FILLED` repeat the six passes that end with the last forward pass
    on a rank's first stage.
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


def _pulled(first: Sequence[Sequence[int]], microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """Return the schedule of `repeated`, computed pass by pass for all microbatches."""
    layout = pipeline(len(first))
    rows = [_filled(layout.rank_stages(rank), starts, microbatches) for rank, starts in enumerate(first)]
    last_forwards = [max(unit for unit, action in row.items() if action.letter == "F") for row in rows]
    late = {
        action for row, last in zip(rows, last_forwards, strict=True) for unit, action in row.items() if unit > last
    }
    _pull(rows, {action for row in rows for action in row.values()}, max(max(_saved(row)) for row in rows))
    deferred = [_remove_weights(row, late) for row in rows]
    _pull(rows, late, math.inf)
    for row, weights in zip(rows, deferred, strict=True):
        begin = {action: unit for unit, action in row.items()}
        for action in weights:
            row[next(unit for unit in count(begin[action._replace(letter="I")]) if unit not in row)] = action
    return tuple(tuple(row[unit] for unit in sorted(row)) for row in rows)


def _filled(stages: Sequence[int], starts: Sequence[int], microbatches: int) -> Timetable:
    """Return the timetable of a rank for all microbatches, with weight gradients in idle units. starts: a row of `first`."""
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


def _remove_weights(row: Timetable, late: Collection[Action]) -> list[Action]:
    """Remove the weight gradients of the passes in `late` from a timetable, and return them in their order."""
    units = [unit for unit in sorted(row) if row[unit].letter == "W" and row[unit] in late]
    return [row.pop(unit) for unit in units]


def _saved(row: Timetable) -> Ints:
    """Return the number of microbatches in a rank's memory in each unit of time (units,): from F until before W, per stage."""
    return np.cumsum([SAVED[row[unit].letter] if unit in row else 0 for unit in range(max(row) + 1)])


def _pull(rows: Sequence[Timetable], moved: Collection[Action], most: float) -> None:
    """Move the passes `moved` in `rows`, in order of time, to the first unit in which their rank is idle, their dependencies have
    ended, and at most `most` microbatches are in memory."""
    begin: dict[tuple[int, str, int], int] = {other: unit for row in rows for unit, other in row.items()}
    saved = [_saved(row) for row in rows]
    for unit, rank in sorted((unit, rank) for rank, row in enumerate(rows) for unit in row):
        row, rank_saved, action = rows[rank], saved[rank], rows[rank][unit]
        if action not in moved:
            continue
        (stage, letter, i), more = action, SAVED[action.letter]
        needs = [(stage, letter, i - 1), *((stage + step, earlier, i) for step, earlier in NEEDED[letter])]
        lowest = 1 + max([begin.get(other, -1) for other in needs])
        if more > 0:  # no other pass exceeds the memory
            full = np.flatnonzero(rank_saved[lowest:unit] >= most)
            lowest += full[-1] + 1 if len(full) else 0
        target = next((idle for idle in range(lowest, unit) if idle not in row), unit)
        row[target] = row.pop(unit)
        begin[action] = target
        rank_saved[target:unit] += more
