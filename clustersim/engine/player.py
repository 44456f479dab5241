"""Engines of a step: SimPy, the reference, or the event loop, which is faster with equal results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from clustersim.cache import Cache
from clustersim.engine.compile import Plan
from clustersim.engine.compiled import loop
from clustersim.engine.fabric import HOST
from clustersim.engine.launching import Seconds
from clustersim.engine.loop import LoopJob
from clustersim.engine.record import Record
from clustersim.engine.simulate import simulate
from clustersim.engine.times import Tasks, loop_times

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


@dataclass(frozen=True, slots=True)
class Player:
    """Executes the steps of one job."""

    engine: Engine = "simpy"
    cache: Cache | None = None
    """Cache of compiled plans for other jobs; None: no cache."""
    structure: Hashable = None
    """Key shared by jobs that differ only in kernel seconds; None: compiled plans are not cached."""

    def replay_cached(self, seconds: Sequence[Seconds]) -> Record | None:
        """Execute the plan compiled for another job of the structure; None if there is none."""
        if self.cache is None or self.structure is None or self.engine == "simpy":
            return None
        found = self.cache.get(self.structure)
        return None if found is None else self.execute(found.retimed(seconds))

    def step(self, plan: Plan, progress: Callable[[float], None] = lambda _: None) -> Record:
        """Return one step of a plan that is alone on its fabric."""
        tasks = Tasks(plan)
        # what a host launches between computations depends on their seconds: such a plan serves no other times
        hosted = any(task.stream == HOST for task in tasks.shape.lines)
        if self.structure is not None and self.cache is not None and not hosted:
            self.cache.keep(self.structure, tasks)
        return self.execute(tasks, progress)

    def execute(self, tasks: Tasks, progress: Callable[[float], None] = lambda _: None) -> Record:
        """Return the record of one step."""
        [[record]] = together([tasks], self.engine, progress=progress)
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
    own = [LoopJob(tasks, loop_times(tasks, capacity)) for tasks in jobs]
    name, execute = ("simpy", simulate) if engine == "simpy" else ("loop", loop)
    lines = execute(capacity, own, steps, starts, progress)
    return tuple([Record.of(tasks, step, name) for step in line] for tasks, line in zip(jobs, lines, strict=True))


SIMPY = Player()
