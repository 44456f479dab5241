"""The two engines that execute steps: SimPy, the reference, and the event loop, which is faster with equal results."""

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
"""Name of an engine: `simpy`, or `auto` for the event loop."""
ROOM = 640 << 20
"""Default limit of the bytes of cached compiled plans."""
EVENT, TASK = 33, 1_500
"""Bytes of an event of a shape with its labels, and of a task with its activity, for the size of a cached plan."""


def plan_cache(limit: float = ROOM) -> Cache:
    """Return a cache {structure: compiled plan} for `run_step`, of up to `limit` bytes."""
    return Cache(
        limit, lambda tasks: EVENT * tasks.shape.events + TASK * len(tasks.shape.op) + tasks.plan.network.nbytes
    )


def run_step(
    work: Work,
    topology: Topology,
    fold: bool = True,
    engine: Engine = "simpy",
    progress: Callable[[float], None] = lambda _: None,
    cache: Cache | None = None,
    structure: Hashable = None,
) -> Record:
    """Simulate one step of a job that has the cluster to itself. Return its record.

    fold: whether identical ranks are simulated once. progress: called with the share of completed tasks (0 to 1). cache: compiled
    plans (`plan_cache`), which only the event loop uses. structure: key shared by jobs that differ only in kernel seconds; None:
    the plan is not cached. Raises SimulationError at a deadlock.
    """
    plans = None if engine == "simpy" or structure is None else cache
    if plans is not None and (compiled := plans.get(structure)) is not None:
        return execute(compiled.retimed(work.seconds), engine)
    [new_plan] = plan([work], topology, fold)
    tasks = Tasks(new_plan)
    # if hosts launch between computations, their tasks depend on kernel seconds: such a plan serves no other times
    if plans is not None and not (tasks.shape.op >= BUSY).any():
        plans.keep(structure, tasks)
    return execute(tasks, engine, progress)


def execute(tasks: Tasks, engine: Engine = "simpy", progress: Callable[[float], None] = lambda _: None) -> Record:
    """Execute one step of a job that has the cluster to itself. Return its record. progress: as in `run_step`."""
    [[record]] = execute_together([tasks], engine, progress=progress)
    return record


def execute_together(
    jobs: Sequence[Tasks],
    engine: Engine = "auto",
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...]:
    """Execute steps of jobs that share a cluster. Return the records of each job's complete steps.

    jobs: tasks from one call of `plan`. steps: number of steps that each job must complete. starts: start of each job in seconds;
    () is 0 for all. progress: called with the share of completed tasks or steps. Details are in `engine.simulate.simulate`.
    """
    capacity = jobs[0].plan.network.capacity
    loop_jobs = [loop_times(tasks, capacity) for tasks in jobs]
    return (simulate if engine == "simpy" else loop)(capacity, loop_jobs, steps, starts, progress)
