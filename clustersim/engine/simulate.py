"""SimPy plays the programs of jobs, step after step: one long-lived process a rank cell."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import simpy

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import Fabric
from clustersim.engine.program import Program, Span
from clustersim.engine.ranks import Meter, World, play_rank
from clustersim.errors import SimulationError


class Record(NamedTuple):
    """What one step of a job leaves behind.

    begin, end: in seconds of the simulation. events: SimPy events that the whole simulation processed; solves: max-min
    problems that it solved.
    """

    spans: list[Span]
    end: float
    events: int
    solves: int
    begin: float = 0.0


def simulate(
    plans: Sequence[Plan],
    progress: Callable[[float], None] = lambda _: None,
    steps: int = 1,
    starts: Sequence[float] = (),
) -> tuple[list[Record], ...]:
    """Play the plans of jobs that share a cluster, and return the complete steps of each job.

    Every job starts at its time of `starts` (seconds; default: all at 0) and repeats its step until each has completed
    `steps` that began when all had started. A step begins when all ranks of the job have ended the one before. progress is
    told the share of the actions that are done, a hundred times at most. Raises SimulationError when no event is left and a
    rank still waits.
    """
    env = simpy.Environment()
    fabric = Fabric(env, plans[0].network.capacity.tolist())
    meter = Meter([program for plan in plans for program in plan.programs], steps, progress)
    stop = simpy.Event(env)
    target = _Target(stop, max(starts, default=0.0), dict.fromkeys(range(len(plans)), steps))
    jobs = [_Repeated(World(env, fabric, plan, meter), job, plan.programs, target) for job, plan in enumerate(plans)]
    for job, start in zip(jobs, starts or [0.0] * len(jobs), strict=True):
        job.start(start)
    with _no_garbage_collection():
        try:
            env.run(until=stop)  # not until the queue is empty: timers that were overtaken are still in it
        except RuntimeError:
            raise SimulationError(f"deadlock at {env.now} s: {_stuck(jobs)}") from None
    events = next(env._eid)
    return tuple([step._replace(events=events, solves=fabric.flows.solves) for step in job.steps] for job in jobs)


def _stuck(jobs: Sequence[_Repeated]) -> str:
    """Return which rank waits for what."""
    number, job = next((number, job) for number, job in enumerate(jobs) if job.ranks)
    rank = next(rank for rank, process in enumerate(job.ranks) if process.is_alive)
    whose = f" of job {number}" if len(jobs) > 1 else ""
    return f"rank cell {rank}{whose} waits at {job.world.at[rank]}"


class _Target:
    """Stops the simulation when no job has steps left to do; those that began before `since` do not count: not all ran yet."""

    def __init__(self, stop: simpy.Event, since: float, left: dict[int, int]) -> None:
        self.stop, self.since, self.left = stop, since, left

    def reached(self, job: int, begin: float) -> bool:
        """Count a step of a job; return whether every job has its steps."""
        if begin >= self.since:
            self.left[job] -= 1
        over = max(self.left.values()) <= 0
        if over and not self.stop.triggered:  # others may end at the same moment
            self.stop.succeed()
        return over


class _Repeated:
    """A job that plays its step again and again."""

    def __init__(self, world: World, number: int, programs: Sequence[Program], target: _Target) -> None:
        self.world, self.number, self.programs, self.target = world, number, programs, target
        self.ranks: list[simpy.Process] = []
        self.steps: list[Record] = []
        self.begun, self.running = 0.0, 0

    def start(self, time: float) -> None:
        if time:
            simpy.Timeout(self.world.env, time).callbacks.append(lambda _: self.begin())
        else:
            self.begin()

    def begin(self) -> None:
        self.begun, self.running = self.world.env.now, len(self.programs)
        self.ranks = [self.world.env.process(play_rank(self.world, *one)) for one in enumerate(self.programs)]
        for process in self.ranks:
            process.callbacks.append(self.ended)

    def ended(self, process: simpy.Event) -> None:
        """Count a rank that has ended; after the last one go on to the next step."""
        self.running -= 1
        if self.running or not process.ok:
            return
        self.steps.append(Record(self.world.flushed(), self.world.env.now, 0, 0, self.begun))
        if not self.target.reached(self.number, self.begun):
            self.begin()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of live spans make every cycle collection slow, and a simulation makes no garbage cycles to speak of."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
