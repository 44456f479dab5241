"""Engines of a step: SimPy, the reference, or the event loop, which is faster with equal results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from clustersim.cache import Cache
from clustersim.engine.compile import Work, plan
from clustersim.engine.compiled import loop
from clustersim.engine.record import Record
from clustersim.engine.shape import BUSY
from clustersim.engine.simulate import simulate
from clustersim.engine.times import Tasks, loop_times
from clustersim.topology.model import Topology

Engine = Literal["simpy", "auto"]
"""Engine of a step: `simpy`, or `auto` for the event loop."""
ROOM = 640 << 20
"""Largest number of bytes of cached compiled plans."""
EVENT, TASK = 33, 1_500
"""Bytes of an event of a shape with its labels, and of a task with its activity."""


def plan_cache(most: float = ROOM) -> Cache:
    """Return a cache of up to `most` bytes of the compiled plans of a sweep, by the structure that jobs share."""
    return Cache(
        most, lambda tasks: EVENT * tasks.shape.events + TASK * len(tasks.shape.op) + tasks.plan.network.nbytes
    )


def play(
    work: Work,
    topology: Topology,
    fold: bool = True,
    engine: Engine = "simpy",
    progress: Callable[[float], None] = lambda _: None,
    cache: Cache | None = None,
    structure: Hashable = None,
) -> Record:
    """Return one step of a job that has the cluster to itself.

    fold: whether identical ranks are simulated once. progress: receives the share of completed tasks. cache: compiled plans of
    other jobs (`plan_cache`) for the event loop. structure: key shared by jobs that differ only in kernel seconds; None: the plan
    is not cached.
    """
    kept = None if engine == "simpy" or structure is None else cache
    if kept is not None and (known := kept.get(structure)) is not None:
        return execute(known.retimed(work.seconds), engine)
    [planned] = plan([work], topology, fold)
    tasks = Tasks(planned)
    # what a host launches between computations depends on their seconds: such a plan serves no other times
    if kept is not None and not (tasks.shape.op >= BUSY).any():
        kept.keep(structure, tasks)
    return execute(tasks, engine, progress)


def execute(tasks: Tasks, engine: Engine = "simpy", progress: Callable[[float], None] = lambda _: None) -> Record:
    """Return the record of one step of a job that is alone on its fabric."""
    [[record]] = together([tasks], engine, progress=progress)
    return record


def together(
    jobs: Sequence[Tasks],
    engine: Engine = "auto",
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...]:
    """Return the complete steps of jobs that share a fabric; the arguments are those of `engine.compiled.loop`."""
    capacity = jobs[0].plan.network.capacity
    own = [loop_times(tasks, capacity) for tasks in jobs]
    return (simulate if engine == "simpy" else loop)(capacity, own, steps, starts, progress)
