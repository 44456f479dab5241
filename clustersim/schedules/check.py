"""Loads schedules and checks them: each action once and on its rank, no deadlock, number of microbatches in memory."""

from __future__ import annotations

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

    An outside schedule is proved legal each time, built-in ones by tests. Raises UnknownNameError for an unknown name, and
    InputError for unsupported sizes and for an outside schedule that fails or is illegal.

    >>> [" ".join(map(str, row)) for row in load("1f1b", stages=2, microbatches=2)]
    ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """
    for what, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if count < 1:
            raise InputError(f"a schedule needs 1 or more {what}, not {count}")
    build: ScheduleKind = plugins.load(ROOM, name, "build")
    with plugins.blaming(ROOM, name):
        schedule = build(stages, microbatches, chunks, *group(name))
        if plugins.outside(ROOM, name):
            schedule = _actions(schedule, 4 * microbatches * chunks)
            check(schedule, Pipeline(stages, chunks), microbatches)
    return schedule


def group(name: str) -> tuple[int, ...]:
    """Return the parameter in a schedule's name. Raises InputError for an invalid one.

    >>> group("interleaved/5"), group("1f1b")
    ((5,), ())
    """
    kind, slash, text = name.partition("/")
    if not slash or plugins.outside(ROOM, name):
        return ()
    if kind != "interleaved":
        raise InputError(f"{shown(name)}: only interleaved has groups of microbatches; write {kind}")
    if not text.isdecimal() or not 0 < len(text) < 8 or not int(text):
        raise InputError(f"{shown(name)}: {shown(text)} must be a whole number of microbatches, such as interleaved/5")
    return (int(text),)


def misfit(name: str, stages: int, microbatches: int, chunks: int = 1) -> str | None:
    """Return why a built-in schedule does not support these sizes, or None. Nothing is built."""
    sizes = _stated(name, "sizes")
    try:
        if sizes:
            sizes(stages, microbatches, chunks, *group(name))
    except InputError as error:
        return str(error)
    return None


@lru_cache(maxsize=1024)
def pipeline(name: str, stages: int, chunks: int = 1) -> Pipeline:
    """Return the pipeline of `stages` ranks for a schedule. By default every chunk of stages begins on rank 0."""
    made = _stated(name, "pipeline")
    return made(stages, chunks) if made else Pipeline(stages, chunks)


def settled(name: str, stages: int, microbatches: int, chunks: int = 1) -> int:
    """Return the smallest number of microbatches that fills every rank's memory as much as any larger number, at most
    `microbatches`.

    Returns `microbatches` for a schedule that does not declare it, such as an outside one.
    """
    least: Callable[..., int] | None = _stated(name, "settled")
    return min(microbatches, least(stages, chunks, *group(name))) if least else microbatches


@cache
def _stated(name: str, what: str) -> Callable[..., Any] | None:
    """Return the function called `what` that a built-in schedule's module defines besides `build`, or None."""
    if plugins.outside(ROOM, name):
        return None
    return cast("Callable[..., Any] | None", plugins.load(ROOM, name, "__dict__").get(what))


def _actions(rows: Iterable[Iterable[Action]], most: int) -> Schedule:
    """Return an outside schedule as rows of actions, each cut after `most` + 1 actions, more than a legal row has."""
    return tuple(tuple(_action(*action) for action in islice(row, most)) for row in rows)


def _action(stage: int, letter: str, microbatch: int) -> Action:
    if letter not in ("F", "B", "I", "W"):
        raise SimulationError(f"{shown(letter)} is not the letter of an action; write F, B, I or W")
    return Action(index(stage), letter, index(microbatch))  # type: ignore[arg-type]


def check(schedule: Schedule, pipeline: Pipeline, microbatches: int) -> None:
    """Prove that every rank runs each of its actions once and that all of them can end.

    Every stage needs F, and B or both I and W, of every microbatch of its copy of the model. Raises SimulationError with the
    first wrong rank and action, or with the first stuck rank, its action and what it waits for.
    """
    if len(schedule) != pipeline.ranks:
        raise SimulationError(
            f"the schedule has {len(schedule)} rows for {pipeline.ranks} pipeline ranks; write one row a rank"
        )
    for rank, row in enumerate(schedule):
        _check_row(row, rank, pipeline, microbatches)
    play(schedule, pipeline)


def _check_row(row: tuple[Action, ...], rank: int, pipeline: Pipeline, microbatches: int) -> None:
    """Raise SimulationError unless a rank runs each of its passes once, on its stages and within the microbatches."""
    own = pipeline.own(rank)
    work: dict[tuple[int, int], str] = {}
    for action in row:
        stage, letter, i = action
        if stage not in own:
            raise SimulationError(f"rank {rank} runs {action}, but its stages are {', '.join(map(str, own))}")
        if not 0 <= i < microbatches:
            raise SimulationError(f"rank {rank} runs {action}, but there are only {microbatches} microbatches")
        if letter in (done := work.get((stage, i), "")):
            raise SimulationError(f"rank {rank} runs {action} more than once; once is right")
        work[stage, i] = done + letter
    for place in _places(own, pipeline, microbatches):
        if set(work.get(place, "")) not in _WHOLE:
            raise SimulationError(_incomplete(rank, *place, work.get(place, "")))


def _places(own: Iterable[int], pipeline: Pipeline, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, microbatch) of all passes that belong to a rank with the stages `own`."""
    for stage in own:
        yield from ((stage, i) for i in range(stage // pipeline.stages, microbatches, pipeline.copies))


def _incomplete(rank: int, stage: int, microbatch: int, letters: str) -> str:
    return (
        f"rank {rank} runs {', '.join(letters) or 'nothing'} of microbatch {microbatch} on stage {stage}; "
        "it needs F and B, or F, I and W"
    )


def in_flight(row: Sequence[Action], paired: bool = False) -> int:
    """Return the peak number of microbatches with activations on a rank: after F on a stage and before the end of B (or W).

    With `paired` passes (see `Pipeline`), the activations of a pair's forward pass come on top of those its backward pass frees.
    """
    kept = peak = 0
    for unit in together(row, paired):
        kept += sum(action.letter == "F" for action in unit)
        peak = max(peak, kept)
        kept -= sum(action.letter in "BW" for action in unit)
    return peak
