"""Is a schedule legal: every action once, on its rank, and no deadlock? And how much does a rank keep in memory?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
from operator import index
from typing import Any, cast

from clustersim import plugins
from clustersim.errors import InputError, SimulationError, shown
from clustersim.schedules.action import Action, Schedule, ScheduleKind
from clustersim.schedules.pipeline import Pipeline, together
from clustersim.schedules.play import play

ROOM = "clustersim.schedules"
_WHOLE = (set("FB"), set("FIW"))


def load(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule `name` for `stages` pipeline ranks with `chunks` stages each.

    One from outside is proved to be legal each time, built-in ones are by tests. Raises UnknownNameError for an unknown name,
    InputError for sizes it cannot do and when a schedule from outside fails or is illegal.
    """
    for what, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if count < 1:
            raise InputError(f"a schedule needs 1 or more {what}, not {count}")
    build: ScheduleKind = plugins.load(ROOM, name, "build")
    with plugins.blaming(ROOM, name):
        schedule = build(stages, microbatches, chunks)
        if plugins.outside(ROOM, name):
            schedule = _actions(schedule, 4 * microbatches * chunks)
            check(schedule, Pipeline(stages, chunks), microbatches)
    return schedule


def possible(name: str, stages: int, microbatches: int, chunks: int = 1) -> bool:
    """Return whether a built-in schedule can do these sizes, as far as it says so without being made."""
    sizes = _stated(name, "sizes")
    try:
        if sizes:
            sizes(stages, microbatches, chunks)
    except InputError:
        return False
    return True


@lru_cache(maxsize=1024)
def pipeline(name: str, stages: int, chunks: int = 1) -> Pipeline:
    """Return the pipeline of `stages` ranks that a schedule runs on: without a word of it, each chunk begins on rank 0."""
    made = _stated(name, "pipeline")
    return made(stages, chunks) if made else Pipeline(stages, chunks)


def settled(name: str, stages: int, microbatches: int, chunks: int = 1) -> int:
    """Return the number of microbatches, at most those given, from which on more of them fill no rank's memory any further.

    All of them for a schedule that does not say, such as one from outside.
    """
    least: Callable[[int, int], int] | None = _stated(name, "settled")
    return min(microbatches, least(stages, chunks)) if least else microbatches


def period(name: str, stages: int, chunks: int = 1) -> int | None:
    """Return after how many microbatches every rank repeats itself; None for a schedule that does not say.

    With so many microbatches more, every rank does the same between the first ones and the last, once more.
    """
    found: Callable[[int, int], int] | None = _stated(name, "period")
    return found(stages, chunks) if found else None


def repeating(name: str, stages: int, chunks: int = 1) -> int:
    """Return the least number of microbatches in whose middle a schedule that states a period most likely runs two of them."""
    least: Callable[[int, int], int] | None = _stated(name, "repeating")
    if least:
        return least(stages, chunks)
    every = period(name, stages, chunks) or 0
    return settled(name, stages, sys.maxsize, chunks) + 2 * every


@cache
def _stated(name: str, what: str) -> Callable[..., Any] | None:
    """Return the declarations of a built-in schedule besides `build`."""
    if plugins.outside(ROOM, name):
        return None
    return cast("Callable[..., Any] | None", plugins.load(ROOM, name, "__dict__").get(what))


def _actions(rows: Iterable[Iterable[Action]], most: int) -> Schedule:
    """Return a schedule from outside as rows of actions, each cut where it is longer than any legal one."""
    return tuple(tuple(_action(*action) for action in islice(row, most)) for row in rows)


def _action(stage: int, letter: str, microbatch: int) -> Action:
    if letter not in ("F", "B", "I", "W"):
        raise SimulationError(f"{shown(letter)} is no letter of an action; write F, B, I or W")
    return Action(index(stage), letter, index(microbatch))  # type: ignore[arg-type]


def check(schedule: Schedule, pipeline: Pipeline, microbatches: int) -> None:
    """Prove that every rank runs each of its actions once and that all of them can end.

    Every stage needs F, and B or both I and W, of every microbatch of its copy of the model. Raises SimulationError with the
    first wrong rank and action, or with the stuck rank, its action and what it waits for.
    """
    if len(schedule) != pipeline.ranks:
        raise SimulationError(
            f"the schedule has {len(schedule)} rows for {pipeline.ranks} pipeline ranks; write one row a rank"
        )
    for rank, row in enumerate(schedule):
        _check_row(row, rank, pipeline, microbatches)
    play(schedule, pipeline)


def _check_row(row: tuple[Action, ...], rank: int, pipeline: Pipeline, microbatches: int) -> None:
    own = pipeline.own(rank)
    work: dict[tuple[int, int], str] = {}
    for action in row:
        stage, letter, i = action
        if stage not in own:
            raise SimulationError(f"rank {rank} runs {action}, but its stages are {_listed(own)}")
        if not 0 <= i < microbatches:
            raise SimulationError(f"rank {rank} runs {action}, but there are only {microbatches} microbatches")
        if letter in (done := work.get((stage, i), "")):
            raise SimulationError(f"rank {rank} runs {action} more than once; once is right")
        work[stage, i] = done + letter
    for place in _places(own, pipeline, microbatches):
        if set(work.get(place, "")) not in _WHOLE:
            raise SimulationError(_incomplete(rank, *place, work.get(place, "")))


def _places(own: Iterable[int], pipeline: Pipeline, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield the stages of a rank with each microbatch that runs through them."""
    for stage in own:
        yield from ((stage, i) for i in range(stage // pipeline.stages, microbatches, pipeline.copies))


def _incomplete(rank: int, stage: int, microbatch: int, letters: str) -> str:
    return (
        f"rank {rank} runs {', '.join(letters) or 'nothing'} of microbatch {microbatch} on stage {stage}; "
        "it needs F and B, or F, I and W"
    )


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def in_flight(row: Sequence[Action], paired: bool = False) -> int:
    """Return the peak number of microbatches that a rank keeps: forwarded on a stage, and not yet through B (or W).

    paired: as of `Pipeline`; what the forward pass of a pair keeps comes on top of what the backward one lets go.
    """
    kept = peak = 0
    for unit in together(row, paired):
        kept += sum(action.letter == "F" for action in unit)
        peak = max(peak, kept)
        kept -= sum(action.letter in "BW" for action in unit)
    return peak
