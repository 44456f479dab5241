"""Steps of jobs whose tasks slow each other here and there: all of them go through a compiled loop of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, entries, offsets
from clustersim.engine.loop_state import LoopJob, LoopState, loop_state
from clustersim.engine.record import SegmentEnds


class LoopStep(NamedTuple):
    """A step that the loop has played."""

    begin: float
    ends: Floats
    """When each node ended."""
    segment_ends: SegmentEnds
    """As in engine.record.Record …"""
    slowed: Floats | None
    events: int
    """… and of all steps until its end …"""
    solves: int


def loop(
    capacity: Floats,
    jobs: Sequence[LoopJob],
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[LoopStep], ...]:
    """Return the complete steps of jobs that share a fabric. capacity: bytes/s of each link that can be short.

    steps, starts, progress: as in engine.simulate.
    """
    from clustersim.engine.eventloop import play  # numba takes half a second to load

    own, now = loop_state(capacity, jobs), 0.0
    own.jobs["begin"] = starts or 0.0
    since, found = max(starts, default=0.0), tuple(list[LoopStep]() for _ in jobs)
    left = [steps] * len(jobs)
    while max(left) > 0 or _ends(own, now):
        number = play(own, now)
        found[number].append(_step(own, number, jobs[number]))
        left[number] -= found[number][-1].begin >= since
        now = float(own.jobs[number]["end"])
        progress(1 - sum(max(one, 0) for one in left) / (steps * len(jobs)))
        if max(left) > 0:
            _again(own, number, now)
    return found


def _ends(own: LoopState, now: float) -> bool:
    """Return whether another job ends a step at the very time."""
    from clustersim.engine.eventloop import LAST

    waiting = own.tasks[own.jobs["last_task"]]
    return any(own.queue[one["waits"]]["time"] <= now for one in waiting if one["call"] == LAST and one["waits"] >= 0)


def _step(own: LoopState, number: int, job: LoopJob) -> LoopStep:
    """Return the step that a job has just ended."""
    from clustersim.engine.eventloop import EVENTS, SOLVES

    one = own.jobs[number]
    nodes, tasks = slice(one["first"], one["last"]), np.arange(one["first_task"], one["last_task"])
    some = tasks[own.tasks["index"][tasks] > 0]  # those that have been awake
    ends = SegmentEnds(
        own.node[some] - one["first"], offsets(np.diff(own.half)[some]), own.ends[entries(own.half, some)]
    )
    slowed = own.longer[nodes].copy() if job.slowing else None
    counted = int(own.counts[EVENTS]), int(own.counts[SOLVES])
    return LoopStep(float(one["begin"]), own.end[nodes].copy(), ends, slowed, *counted)


def _again(own: LoopState, number: int, now: float) -> None:
    """Let a job that has ended a step begin another one."""
    one = own.jobs[number]
    nodes, tasks = slice(one["first"], one["last"]), slice(one["first_task"], one["last_task"])
    own.missing[nodes], own.longer[nodes] = 2, 0.0
    for name in ("index", "call", "awake", "late"):
        own.tasks[name][tasks] = 0
    one["begin"], one["idle"] = now, 1
