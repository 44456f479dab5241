"""Loads schedules and checks them: each action once and on its rank, no deadlock, number of microbatches in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import Any, cast

from clustersim import plugins
from clustersim.errors import InputError, SimulationError, shown
from clustersim.schedules.action import Action, ActionRow, Schedule, ScheduleKind
from clustersim.schedules.pipeline import Pipeline, action_units
from clustersim.schedules.timing import time_actions

ROOM = "clustersim.schedules"
_COMPLETE = (set("FB"), set("FIW"))
"""Sets of letters that a rank may run for one microbatch on one of its stages."""


def load(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule `name` for `stages` pipeline ranks with `chunks` stages each.

    name: file in `kinds/`, alias, or schedule of a plugin, which is checked each time. Raises UnknownNameError for an unknown
    name, InputError for unsupported sizes and for a plugin that fails or returns an illegal schedule.

    >>> [" ".join(map(str, row)) for row in load("1f1b", stages=2, microbatches=2)]
    ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """
    for noun, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if count < 1:
            raise InputError(f"a schedule needs 1 or more {noun}, not {count}")
    build: ScheduleKind = plugins.load(ROOM, name, "build")
    with plugins.blaming(ROOM, name):
        schedule = build(stages, microbatches, chunks, *group(name))
        if plugins.outside(ROOM, name):
            most = 4 * microbatches * chunks  # no legal row has more
            schedule = tuple([ActionRow.of(islice(row, most)) for row in schedule])
            check(schedule, Pipeline(stages, chunks), microbatches)
    return tuple(map(ActionRow.of, schedule))


def group(name: str) -> tuple[int, ...]:
    """Return (microbatches per group,) from a name such as `interleaved/5`, else (). Raises InputError for an invalid number.

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
    """Return a sentence on why a built-in schedule does not support these sizes, else None; always None for a plugin."""
    sizes = _module_function(name, "sizes")
    try:
        if sizes:
            sizes(stages, microbatches, chunks, *group(name))
    except InputError as error:
        return str(error)
    return None


@lru_cache(maxsize=1024)
def pipeline(name: str, stages: int, chunks: int = 1) -> Pipeline:
    """Return the layout of stages on `stages` ranks that a schedule needs. By default every chunk begins on rank 0."""
    build = _module_function(name, "pipeline")
    return build(stages, chunks) if build else Pipeline(stages, chunks)


def peak_microbatches(name: str, stages: int, microbatches: int, chunks: int = 1) -> int:
    """Return a number of microbatches, at most `microbatches`, at which every rank reaches its peak memory.

    Return `microbatches` for a schedule whose module does not define `peak_microbatches`, such as a plugin's.
    """
    fewest: Callable[..., int] | None = _module_function(name, "peak_microbatches")
    return min(microbatches, fewest(stages, chunks, *group(name))) if fewest else microbatches


@cache
def _module_function(name: str, function: str) -> Callable[..., Any] | None:
    """Return a function of the module of a built-in schedule; None if the module lacks it, or for a plugin's schedule."""
    if plugins.outside(ROOM, name):
        return None
    return cast("Callable[..., Any] | None", plugins.load(ROOM, name, "__dict__").get(function))


def check(schedule: Schedule, pipeline: Pipeline, microbatches: int) -> None:
    """Raise SimulationError unless every rank runs each of its actions once and the schedule has no deadlock.

    Every stage needs F, and B or both I and W, of every microbatch of its copy of the model. The error names the first wrong rank
    and action, or the first stuck rank, its action and the action it waits for.
    """
    if len(schedule) != pipeline.ranks:
        raise SimulationError(
            f"the schedule has {len(schedule)} rows for {pipeline.ranks} pipeline ranks; write one row per rank"
        )
    for rank, row in enumerate(schedule):
        _check_row(row, rank, pipeline, microbatches)
    time_actions(schedule, pipeline)


def _check_row(row: Sequence[Action], rank: int, pipeline: Pipeline, microbatches: int) -> None:
    """Raise SimulationError unless a rank runs each of its passes once, on its stages and within the microbatches."""
    stages = pipeline.rank_stages(rank)
    work: dict[tuple[int, int], str] = {}
    for action in row:
        stage, letter, i = action
        if stage not in stages:
            raise SimulationError(f"rank {rank} runs {action}, but its stages are {', '.join(map(str, stages))}")
        if not 0 <= i < microbatches:
            raise SimulationError(f"rank {rank} runs {action}, but there are only {microbatches} microbatches")
        if letter in (done := work.get((stage, i), "")):
            raise SimulationError(f"rank {rank} runs {action} more than once; once is right")
        work[stage, i] = done + letter
    for stage_microbatch in _required_passes(stages, pipeline, microbatches):
        if set(work.get(stage_microbatch, "")) not in _COMPLETE:
            raise SimulationError(_incomplete(rank, *stage_microbatch, work.get(stage_microbatch, "")))


def _required_passes(stages: Iterable[int], pipeline: Pipeline, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield each (stage, microbatch) that a rank with these stages must run: every microbatch of a stage's copy of the model."""
    for stage in stages:
        yield from ((stage, i) for i in range(stage // pipeline.stages, microbatches, pipeline.copies))


def _incomplete(rank: int, stage: int, microbatch: int, letters: str) -> str:
    return (
        f"rank {rank} runs {', '.join(letters) or 'nothing'} of microbatch {microbatch} on stage {stage}; "
        "it needs F and B, or F, I and W"
    )


def in_flight(row: Sequence[Action], paired: bool = False) -> int:
    """Return the peak number of microbatches with activations on a rank, counted once per stage: from F to the end of B or W.

    With `paired` passes (see `Pipeline`), the activations of a pair's forward pass come on top of those its backward pass frees.
    """
    saved = peak = 0
    for unit in action_units(row, paired):
        saved += sum(action.letter == "F" for action in unit)
        peak = max(peak, saved)
        saved -= sum(action.letter in "BW" for action in unit)
    return peak
