"""The event loop in C, with the interface of `loop.Loop`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats, offsets
from clustersim.engine.loop import Loop
from clustersim.engine.record import Record
from clustersim.engine.times import LoopJob

try:
    from clustersim.engine import _loop  # type: ignore[attr-defined]  # built where a compiler is
except ImportError:
    _loop = None

PYTHON = "CLUSTERSIM_LOOP"
"""Environment variable: `python` chooses the loop in plain Python."""


def is_compiled() -> bool:
    """Return whether the loop in C was built from this version's source and is not switched off."""
    return _loop is not None and os.environ.get(PYTHON) != "python" and _is_current()


@cache
def _is_current() -> bool:
    """Return whether the extension has the check sum of its source, which `hatch_build.py` compiles into it."""
    source = Path(__file__).with_name("_loop.c").read_bytes()
    return getattr(_loop, "SOURCE", None) == zlib.crc32(source) & 0x7FFFFFFF


def new_loop(capacity: Floats, jobs: Sequence[LoopJob]) -> Loop | CompiledLoop:
    """Return a loop in C, or in plain Python if that is not built. capacity: bytes/s of each link that can be a bottleneck."""
    return (CompiledLoop if is_compiled() else Loop)(capacity, jobs)


def loop(
    capacity: Floats,
    jobs: Sequence[LoopJob],
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...]:
    """Execute steps of jobs that share links in the event loop. Return the records of each job's complete steps, in order.

    Arguments and errors are those of `engine.simulate.simulate`; progress is called at the end of each step.
    """
    starts = starts or [0.0] * len(jobs)
    engine, since, records = new_loop(capacity, jobs), max(starts), tuple(list[Record]() for _ in jobs)
    for number, start in enumerate(starts):
        engine.begin_step(number, start)
    left, now = [steps] * len(jobs), 0.0
    while max(left) > 0 or engine.ends_now(now):
        number = engine.run_step()
        step = engine.step(number)
        records[number].append(step)
        left[number] -= step.begin >= since
        now = step.end
        progress(1 - sum(max(steps_left, 0) for steps_left in left) / (steps * len(jobs)))
        if max(left) > 0:
            engine.begin_step(number, now)
    return records


class CompiledLoop:
    """Executes steps of jobs that share links, in C: `begin_step`, `run_step` until it returns the job, then `step`."""

    def __init__(self, capacity: Floats, jobs: Sequence[LoopJob]) -> None:
        """capacity: bytes/s of each link that can be a bottleneck."""
        first = offsets(np.array([job.shape.events for job in jobs]))
        self.jobs = jobs
        columns = tuple(_columns(job, place) for job, place in zip(jobs, first.tolist(), strict=False))
        self.loop: Any = _loop.create(np.ascontiguousarray(capacity, float), columns)
        self.columns: list[tuple[NDArray[Any], ...]] = [()] * len(jobs)

    def begin_step(self, number: int, begin: float) -> None:
        """Begin a step of job `number` at time `begin` (s)."""
        shape, losses = self.jobs[number].shape, self.jobs[number].losses
        events, waits = shape.events, int(shape.pass_wait[-1])
        floats = [np.zeros(events) for _ in range(3)]
        integers = [np.empty(events, np.int32) for _ in range(2)]
        slowed = np.zeros(events if losses else 0)
        self.columns[number] = (*floats, *integers, np.empty(waits, np.int32), np.zeros(waits), slowed)
        _loop.begin_step(self.loop, number, begin, self.columns[number])

    def run_step(self) -> int:
        """Process events until a job ends a step; return its number. Raises DeadlockError if a step can never end."""
        number: int = _loop.run_step(self.loop)
        if number < 0:
            raise self.jobs[-1 - number].shape.stuck(*_loop.stuck(self.loop, -1 - number))
        return number

    def ends_now(self, now: float) -> bool:
        """Return whether another job ends a step at time `now` (s) or before."""
        return bool(_loop.ends_now(self.loop, now))

    def step(self, number: int) -> Record:
        """Return the record of the step that job `number` has just ended."""
        begin, end, events, solves, *awake = _loop.facts(self.loop, number)
        starts, ends, asked, cause, leader, wait_event, wait_asked, slowed = self.columns[number]
        leaders, bounds, times = (
            np.frombuffer(one or b"", kind).tolist()
            for one, kind in zip(awake, (np.int32, np.int64, float), strict=True)
        )
        halves = {one: times[a:b] for one, a, b in zip(leaders, [0, *bounds], bounds, strict=False)}
        own = slowed if self.jobs[number].losses else None
        columns = starts, ends, asked, cause, leader, wait_event, wait_asked
        return Record(self.jobs[number].tasks, "loop", begin, end, *columns, halves, own, events, solves)


TASKS = "op stream free gives event wait what which first but"
PASSES = "pass_task pass_end microbatch"
LONG = "rank_pass pass_event pass_wait launched"


def _columns(job: LoopJob, first_event: int) -> tuple[NDArray[Any], ...]:
    """Return the columns of a job in the order of COLUMNS in _loop.c. first_event: number of events of the jobs before it."""
    shape, losses, held = job.shape, job.losses, job.held

    def of(names: str, owner: object, kind: type) -> list[NDArray[Any]]:
        """Return attributes of `owner`, named with spaces between, as contiguous arrays of type `kind`."""
        return [np.ascontiguousarray(getattr(owner, name), kind) for name in names.split()]

    sizes = [len(shape.streams), shape.messages, bool(losses), first_event]
    return (
        *of(f"{TASKS} {PASSES}", shape, np.int32),
        *of("event size slot", shape.meetings, np.int32),
        *of("task_rank", shape, np.int32),
        *of(LONG, shape, np.int64),
        *of("kind link_start link segment_start flow load_start load_link", held, np.int32),
        *of("idle", job, float),
        *of("share", held, float),
        *of("segment", job, float),
        *of("flows load_weight", held, float),
        *of("sms memory compute bound", losses, float),
        *of("taking losing", losses, np.uint8),
        np.array(sizes, np.int64),
    )
