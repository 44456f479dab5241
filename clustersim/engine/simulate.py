"""SimPy plays the programs: one long-lived process a rank cell, streams and groups by callbacks."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import simpy

from clustersim.engine.fabric import Activity, Fabric, Segment
from clustersim.engine.plan import Plan
from clustersim.engine.program import Group, Instruction, Post, Program, Receive, Run, Send, Span
from clustersim.errors import SimulationError

Done = Callable[[float, list[float] | None], None]
"""Called at the end of an activity with the time it began and the ends of its half segments."""


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
    meter = _Meter([program for plan in plans for program in plan.programs], steps, progress)
    stop = simpy.Event(env)
    target = _Target(stop, max(starts, default=0.0), dict.fromkeys(range(len(plans)), steps))
    jobs = [_Repeated(_World(env, fabric, plan, meter), job, plan.programs, target) for job, plan in enumerate(plans)]
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

    def __init__(self, world: _World, number: int, programs: Sequence[Program], target: _Target) -> None:
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
        self.ranks = [self.world.env.process(_rank(self.world, *one)) for one in enumerate(self.programs)]
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


class _Meter:
    """Counts actions and reports every hundredth of those that `steps` steps have."""

    def __init__(self, programs: Sequence[Program], steps: int, report: Callable[[float], None]) -> None:
        self.total = steps * sum(len(program.row) for program in programs) or 1
        self.report, self.done, self.next = report, 0, 0

    def tick(self) -> None:
        self.done += 1
        if self.done >= self.next:
            self.next += self.total // 100 + 1
            self.report(min(self.done / self.total, 1.0))


class _World:
    """Everything the ranks of a job share; `env`, `fabric` and `meter` are those of all jobs."""

    def __init__(self, env: simpy.Environment, fabric: Fabric, plan: Plan, meter: _Meter) -> None:
        self.env, self.fabric, self.members, self.meter = env, fabric, plan.members, meter
        self.spans: list[Span] = []
        self.gates: dict[Group, _Gate] = {}
        self.mail: dict[Group, _Mail] = {}
        self.at: dict[int, Instruction] = {}
        self.merged: dict[frozenset[Activity], Activity] = {}

    def together(self, group: Group | None, rank: int, activity: Activity, done: Done) -> None:
        """Start an activity when every member of its group has asked for it."""
        if group is None or self.members[group] == 1:
            begun = self.env.now
            self.fabric.start(activity, lambda marks: done(begun, marks))
            return
        if group not in self.gates:
            self.gates[group] = _Gate(self, self.members[group])
        self.gates[group].join(rank, activity, done)

    def flushed(self) -> list[Span]:
        """Return the spans of a step that is over, and forget it."""
        spans, self.spans, self.mail = self.spans, [], {}
        return spans

    def box(self, group: Group) -> _Mail:
        if group not in self.mail:
            self.mail[group] = _Mail(self.env)
        return self.mail[group]


def _fire(event: simpy.Event) -> None:
    """Trigger an event now, inside the event that causes it, without another trip through SimPy's queue.

    Whoever waits goes on at the same time and in the same order as after `event.succeed()`; it halves the events of a run.
    """
    event._ok, event._value = True, None
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)


class _Gate:
    """The meeting point of a group: the k-th calls of all members belong together."""

    def __init__(self, world: _World, members: int) -> None:
        self.world, self.members = world, members
        self.calls: dict[int, int] = {}
        self.slots: dict[int, list[tuple[Activity, Done]]] = {}

    def join(self, rank: int, activity: Activity, done: Done) -> None:
        slot = self.calls.get(rank, 0)
        self.calls[rank] = slot + 1
        waiting = self.slots.setdefault(slot, [])
        waiting.append((activity, done))
        if len(waiting) == self.members:
            del self.slots[slot]
            self.release(waiting)

    def release(self, waiting: list[tuple[Activity, Done]]) -> None:
        begun = self.world.env.now

        def finish(marks: list[float] | None) -> None:
            for _, done in waiting:
                done(begun, marks)

        together = _slowest([activity for activity, _ in waiting], self.world.merged)
        self.world.fabric.start(together, finish)


def _slowest(activities: list[Activity], known: dict[frozenset[Activity], Activity]) -> Activity:
    """Return what ranks in lock-step do together: each segment takes as long as its slowest computation."""
    distinct = dict.fromkeys(activities)
    if len(distinct) == 1:
        return activities[0]
    key = frozenset(distinct)
    if key not in known:
        columns = zip(*(a.segments for a in distinct), strict=True)
        known[key] = Activity(Segment(max(s.compute for s in column), column[0].move) for column in columns)
    return known[key]


class _Mail:
    """Messages from one rank cell to another, by (stage, microbatch): (posted, arrived) or an event that waits."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.posted: dict[tuple[int, int], float] = {}
        self.arrived: set[tuple[int, int]] = set()
        self.waiting: dict[tuple[int, int], simpy.Event] = {}

    def deliver(self, key: tuple[int, int]) -> None:
        self.arrived.add(key)
        event = self.waiting.pop(key, None)
        if event is not None:
            _fire(event)

    def wait(self, key: tuple[int, int]) -> simpy.Event:
        event = self.waiting[key] = simpy.Event(self.env)
        return event


class _Stream:
    """Collectives of one family on one rank, one after the other."""

    def __init__(self, world: _World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.queue: deque[Callable[[Callable[[], None]], None]] = deque()
        self.busy = False
        self.done = 0
        self.awaited: tuple[int, simpy.Event] | None = None

    def put(self, job: Callable[[Callable[[], None]], None]) -> None:
        self.queue.append(job)
        if not self.busy:
            self.busy = True
            self.next()

    def next(self) -> None:
        if self.queue:
            self.queue.popleft()(self.over)
        else:
            self.busy = False

    def over(self) -> None:
        self.done += 1
        self.next()
        if self.awaited is not None and self.done >= self.awaited[0]:
            event, self.awaited = self.awaited[1], None
            _fire(event)

    def pending(self, count: int | None) -> int:
        """Return how many of the first `count` (or of all) that were put are not over."""
        every = self.done + len(self.queue) + self.busy
        return max(min(count or every, every) - self.done, 0)

    def drained(self, pending: int) -> simpy.Event:
        self.awaited = self.done + pending, simpy.Event(self.world.env)
        return self.awaited[1]


def _rank(world: _World, rank: int, program: Program) -> Generator[simpy.Event, object, None]:
    streams: dict[str, _Stream] = {}
    for step, microbatch in program.instructions():
        world.at[rank] = step
        kind = type(step)
        if kind is Run:
            yield _run(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Receive:
            yield from _receive(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Send or kind is Post:
            stream = streams.setdefault(step.group[0], _Stream(world, rank))  # type: ignore[union-attr, index]
            job = _send(world, rank, step, microbatch) if kind is Send else _post(world, rank, step)  # type: ignore[arg-type]
            stream.put(job)
            if kind is Send and step.wait:  # type: ignore[union-attr]
                yield from _drain(world, rank, stream, "send")
        elif step.family in streams:  # type: ignore[union-attr]
            yield from _drain(world, rank, streams[step.family], step.family, step.first)  # type: ignore[union-attr]


def _run(world: _World, rank: int, step: Run, microbatch: int) -> simpy.Event:
    event = simpy.Event(world.env)
    asked = world.env.now

    def done(begun: float, marks: list[float] | None) -> None:
        now = world.env.now
        world.meter.tick()
        world.spans.append(
            Span(rank, "compute", step.kind, step.stage, microbatch, asked, begun, now, step.activity, marks)
        )
        _fire(event)

    world.together(step.group, rank, step.activity, done)
    return event


def _receive(world: _World, rank: int, step: Receive, microbatch: int) -> Generator[simpy.Event, object, None]:
    box, key, asked = world.box(step.group), (step.stage, microbatch), world.env.now
    if key not in box.arrived:
        yield box.wait(key)
        now = world.env.now
        start = min(max(asked, box.posted[key]), now)
        world.spans.append(Span(rank, "wait", "receive", step.stage, microbatch, asked, start, now, None, None))


def _send(world: _World, rank: int, step: Send, microbatch: int) -> Callable[[Callable[[], None]], None]:
    box, key, asked = world.box(step.group), (step.stage, microbatch), world.env.now
    box.posted[key] = asked
    name = step.group[0]

    def begin(next_job: Callable[[], None]) -> None:
        begun = world.env.now

        def done(marks: list[float] | None) -> None:
            now = world.env.now
            world.spans.append(
                Span(rank, name, "send", step.stage, microbatch, asked, begun, now, step.activity, marks)
            )
            box.deliver(key)
            next_job()

        world.fabric.start(step.activity, done)

    return begin


def _post(world: _World, rank: int, step: Post) -> Callable[[Callable[[], None]], None]:
    asked = world.env.now

    def begin(next_job: Callable[[], None]) -> None:
        def done(begun: float, marks: list[float] | None) -> None:
            span = Span(
                rank, step.group[0], step.kind, step.stage, -1, asked, begun, world.env.now, step.activity, marks
            )
            world.spans.append(span)
            next_job()

        world.together(step.group, rank, step.activity, done)

    return begin


def _drain(
    world: _World, rank: int, stream: _Stream, kind: str, count: int | None = None
) -> Generator[simpy.Event, object, None]:
    pending = stream.pending(count)
    if pending:
        asked = world.env.now
        yield stream.drained(pending)
        world.spans.append(Span(rank, "wait", kind, -1, -1, asked, asked, world.env.now, None, None))
