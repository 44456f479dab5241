"""What one rank does, instruction by instruction: a long-lived SimPy process, its streams by callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

import simpy

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import Activity, Fabric, Segment
from clustersim.engine.program import Group, Instruction, Post, Program, Receive, Run, Send, Span


def play_rank(world: World, rank: int, program: Program) -> Generator[simpy.Event, object, None]:
    """Play the program of a rank cell."""
    streams: dict[str, Stream] = {}
    for step, microbatch in program.instructions():
        world.at[rank] = step
        kind = type(step)
        if kind is Run:
            yield _run(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Receive:
            yield from _receive(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Send or kind is Post:
            stream = streams.setdefault(step.group[0], Stream(world, rank))  # type: ignore[union-attr, index]
            job = _send(world, rank, step, microbatch) if kind is Send else _post(world, rank, step)  # type: ignore[arg-type]
            stream.put(job)
            if kind is Send and step.wait:  # type: ignore[union-attr]
                yield from _drain(world, rank, stream, "send")
        elif step.family in streams:  # type: ignore[union-attr]
            yield from _drain(world, rank, streams[step.family], step.family, step.first)  # type: ignore[union-attr]


def _run(world: World, rank: int, step: Run, microbatch: int) -> simpy.Event:
    event = simpy.Event(world.env)
    asked = world.env.now

    def done(begun: float, marks: list[float] | None) -> None:
        now = world.env.now
        world.meter.tick()
        world.spans.append(
            Span(rank, "compute", step.kind, step.stage, microbatch, asked, begun, now, step.activity, marks)
        )
        fire(event)

    world.together(step.group, rank, step.activity, done)
    return event


def _receive(world: World, rank: int, step: Receive, microbatch: int) -> Generator[simpy.Event, object, None]:
    box, key, asked = world.box(step.group), (step.stage, microbatch), world.env.now
    if key not in box.arrived:
        yield box.wait(key)
        now = world.env.now
        start = min(max(asked, box.posted[key]), now)
        world.spans.append(Span(rank, "wait", "receive", step.stage, microbatch, asked, start, now, None, None))


def _send(world: World, rank: int, step: Send, microbatch: int) -> Callable[[Callable[[], None]], None]:
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


def _post(world: World, rank: int, step: Post) -> Callable[[Callable[[], None]], None]:
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
    world: World, rank: int, stream: Stream, kind: str, count: int | None = None
) -> Generator[simpy.Event, object, None]:
    pending = stream.pending(count)
    if pending:
        asked = world.env.now
        yield stream.drained(pending)
        world.spans.append(Span(rank, "wait", kind, -1, -1, asked, asked, world.env.now, None, None))


# What the ranks of a job share while they are played: meeting points of groups, mail, streams.

Done = Callable[[float, list[float] | None], None]
"""Called at the end of an activity with the time it began and the ends of its half segments."""


class Meter:
    """Counts actions and reports every hundredth of those that `steps` steps have."""

    def __init__(self, programs: Sequence[Program], steps: int, report: Callable[[float], None]) -> None:
        self.total = steps * sum(len(program.row) for program in programs) or 1
        self.report, self.done, self.next = report, 0, 0

    def tick(self) -> None:
        """Count an action."""
        self.done += 1
        if self.done >= self.next:
            self.next += self.total // 100 + 1
            self.report(min(self.done / self.total, 1.0))


class World:
    """Everything the ranks of a job share; `env`, `fabric` and `meter` are those of all jobs."""

    def __init__(self, env: simpy.Environment, fabric: Fabric, plan: Plan, meter: Meter) -> None:
        self.env, self.fabric, self.members, self.meter = env, fabric, plan.members, meter
        self.spans: list[Span] = []
        self.gates: dict[Group, Gate] = {}
        self.mail: dict[Group, Mail] = {}
        self.at: dict[int, Instruction] = {}
        self.merged: dict[frozenset[Activity], Activity] = {}

    def together(self, group: Group | None, rank: int, activity: Activity, done: Done) -> None:
        """Start an activity when every member of its group has asked for it."""
        if group is None or self.members[group] == 1:
            begun = self.env.now
            self.fabric.start(activity, lambda marks: done(begun, marks))
            return
        if group not in self.gates:
            self.gates[group] = Gate(self, self.members[group])
        self.gates[group].join(rank, activity, done)

    def flushed(self) -> list[Span]:
        """Return the spans of a step that is over, and forget it."""
        spans, self.spans, self.mail = self.spans, [], {}
        return spans

    def box(self, group: Group) -> Mail:
        """Return the mail between the two cells of a pair."""
        if group not in self.mail:
            self.mail[group] = Mail(self.env)
        return self.mail[group]


def fire(event: simpy.Event) -> None:
    """Trigger an event now, inside the event that causes it, without another trip through SimPy's queue.

    Whoever waits goes on at the same time and in the same order as after `event.succeed()`; it halves the events of a run.
    """
    event._ok, event._value = True, None
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)


class Gate:
    """The meeting point of a group: the k-th calls of all members belong together."""

    def __init__(self, world: World, members: int) -> None:
        self.world, self.members = world, members
        self.calls: dict[int, int] = {}
        self.slots: dict[int, list[tuple[Activity, Done]]] = {}

    def join(self, rank: int, activity: Activity, done: Done) -> None:
        """Ask for the next activity of the group on behalf of a rank."""
        slot = self.calls.get(rank, 0)
        self.calls[rank] = slot + 1
        waiting = self.slots.setdefault(slot, [])
        waiting.append((activity, done))
        if len(waiting) == self.members:
            del self.slots[slot]
            self.release(waiting)

    def release(self, waiting: list[tuple[Activity, Done]]) -> None:
        """Start what all members have asked for."""
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


class Mail:
    """Messages from one rank cell to another, by (stage, microbatch): (posted, arrived) or an event that waits."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.posted: dict[tuple[int, int], float] = {}
        self.arrived: set[tuple[int, int]] = set()
        self.waiting: dict[tuple[int, int], simpy.Event] = {}

    def deliver(self, key: tuple[int, int]) -> None:
        """Hand a message over to whoever waits for it."""
        self.arrived.add(key)
        event = self.waiting.pop(key, None)
        if event is not None:
            fire(event)

    def wait(self, key: tuple[int, int]) -> simpy.Event:
        """Return the event of a message that is not here yet."""
        event = self.waiting[key] = simpy.Event(self.env)
        return event


class Stream:
    """Collectives of one family on one rank, one after the other."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.queue: deque[Callable[[Callable[[], None]], None]] = deque()
        self.busy = False
        self.done = 0
        self.awaited: tuple[int, simpy.Event] | None = None

    def put(self, job: Callable[[Callable[[], None]], None]) -> None:
        """Append a job, and begin it when the stream is idle."""
        self.queue.append(job)
        if not self.busy:
            self.busy = True
            self.next()

    def next(self) -> None:
        """Begin the next job, if there is one."""
        if self.queue:
            self.queue.popleft()(self.over)
        else:
            self.busy = False

    def over(self) -> None:
        """End a job: the next one begins, and whoever waits for this one goes on."""
        self.done += 1
        self.next()
        if self.awaited is not None and self.done >= self.awaited[0]:
            event, self.awaited = self.awaited[1], None
            fire(event)

    def pending(self, count: int | None) -> int:
        """Return how many of the first `count` (or of all) that were put are not over."""
        every = self.done + len(self.queue) + self.busy
        return max(min(count or every, every) - self.done, 0)

    def drained(self, pending: int) -> simpy.Event:
        """Return the event of `pending` more jobs being over."""
        self.awaited = self.done + pending, simpy.Event(self.world.env)
        return self.awaited[1]
