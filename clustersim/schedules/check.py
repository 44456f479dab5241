"""Is a schedule legal: every action once, on its rank, and no deadlock? And how much does a rank keep in memory?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from clustersim import plugins
from clustersim.errors import InputError, SimulationError
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.play import play

ROOM = "clustersim.schedules"


def load(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the checked schedule `name` for `stages` pipeline ranks with `chunks` stages each.

    Raises UnknownNameError for an unknown name, InputError for sizes it cannot do, SimulationError when an outside
    schedule is illegal.
    """
    for what, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if count < 1:
            raise InputError(f"a schedule needs 1 or more {what}, not {count}")
    schedule = cast(Schedule, plugins.load(ROOM, name, "build")(stages, microbatches, chunks))
    check(schedule, stages, microbatches, chunks)
    return schedule


def check(schedule: Schedule, stages: int, microbatches: int, chunks: int = 1) -> None:
    """Prove that every rank runs each of its actions once and that all of them can end.

    Every stage needs F, and B or both I and W, of every microbatch. Raises SimulationError with the first wrong rank and
    action, or with the stuck rank, its action and what it waits for.
    """
    if len(schedule) != stages:
        raise SimulationError(
            f"the schedule has {len(schedule)} rows for {stages} pipeline ranks; write one row a rank"
        )
    for rank, row in enumerate(schedule):
        _check_row(row, rank, range(rank, stages * chunks, stages), microbatches)
    play(schedule, stages * chunks - 1)


def _check_row(row: tuple[Action, ...], rank: int, own: range, microbatches: int) -> None:
    for action in row:
        if action.stage not in own:
            raise SimulationError(f"rank {rank} runs {action}, but its stages are {_listed(own)}")
        if not 0 <= action.microbatch < microbatches:
            raise SimulationError(f"rank {rank} runs {action}, but there are only {microbatches} microbatches")
    count = Counter(row)
    twice = next((action for action in row if count[action] > 1), None)
    if twice:
        raise SimulationError(f"rank {rank} runs {twice} {count[twice]} times; once is right")
    for stage in own:
        for i in range(microbatches):
            _check_work("".join(letter for letter in "FBIW" if (stage, letter, i) in count), rank, stage, i)


def _check_work(found: str, rank: int, stage: int, microbatch: int) -> None:
    if found not in ("FB", "FIW"):
        raise SimulationError(
            f"rank {rank} runs {', '.join(found) or 'nothing'} of microbatch {microbatch} on stage {stage}; "
            "it needs F and B, or F, I and W"
        )


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def in_flight(row: Iterable[Action]) -> int:
    """Return the peak number of microbatches that a rank keeps: forwarded on a stage, and not yet through B (or W)."""
    kept = peak = 0
    for action in row:
        kept += {"F": 1, "I": 0}.get(action.letter, -1)
        peak = max(peak, kept)
    return peak
