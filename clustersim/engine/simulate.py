"""SimPy executes the shapes of jobs that share a fabric, step after step: the reference of the event loop.

Each rank cell is a process that executes the tasks of its passes; each launched task is a process that waits for its conditions.
Nothing is computed ahead of time and nothing is left out: plain before fast. `loop.py` gives the same times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL

from clustersim.arrays import Floats
from clustersim.engine.fabric import Fabric
from clustersim.engine.loop import HOST_STREAM
from clustersim.engine.record import Record
from clustersim.engine.shape import DRAIN, JOIN, LAUNCH, MESSAGE, OWN, RUN
from clustersim.engine.slowing import Done, SlowedFabric
from clustersim.engine.times import LoopJob
from clustersim.errors import SimulationError
from clustersim.garbage import uncollected

SimpyProcess = Generator[simpy.Event, Any, None]


def simulate(
    capacity: Floats,
    jobs: Sequence[LoopJob],
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...]:
    """Return the complete steps of jobs that share a cluster.

    capacity: bytes/s of each link that can be a bottleneck. Every job starts at its time in `starts` (seconds; default: 0) and
    repeats its step until each job has completed `steps` steps that began when all had started. A step begins when all ranks of
    the job have ended the previous one. progress receives the share of completed tasks, at most a hundred times. Raises
    SimulationError at a deadlock.
    """
    env, total, done = Environment(), steps * sum(job.shape.events for job in jobs), 0
    fabric, stop = Fabric(env, capacity.tolist()), env.event()
    starts = starts or [0.0] * len(jobs)
    since, left = max(starts), [steps] * len(jobs)

    def tick() -> None:
        """Count a task that is done."""
        nonlocal done
        done += 1
        if done % (total // 100 + 1) == 0:
            progress(min(done / total, 1.0))

    def enough(number: int, begin: float) -> bool:
        """Count a step of a job, and stop when no job has steps left to do; return whether that is so."""
        left[number] -= begin >= since
        over = max(left) <= 0
        if over and not stop.triggered:  # others may end at the same moment
            stop.succeed()
        return over

    repeated = [_RepeatedJob(env, fabric, job, tick, partial(enough, number)) for number, job in enumerate(jobs)]
    for job, start in zip(repeated, starts, strict=True):
        env.process(job.repeat(start))
    with uncollected():
        try:
            env.run(until=stop)  # not until the queue is empty: timers of rates that have changed are still in it
        except RuntimeError:
            raise next(
                (job.stuck() for job in repeated if job.left), SimulationError(f"deadlock at {env.now} s")
            ) from None
    return tuple([replace(step, events=env.events, solves=fabric.solves) for step in job.found] for job in repeated)


class Environment(simpy.Environment):
    """SimPy's environment, which also counts events."""

    events = 0

    def schedule(self, event: simpy.Event, priority: Any = NORMAL, delay: float = 0.0) -> None:
        """Schedule and count an event."""
        self.events += 1
        super().schedule(event, priority, delay)


class _RepeatedJob:
    """A job that repeats its step."""

    def __init__(
        self, env: Environment, fabric: Fabric, job: LoopJob, tick: Callable[[], None], enough: Callable[[float], bool]
    ) -> None:
        """tick: called at the end of each task. enough: called with the begin of each step that ends; returns whether to stop."""
        self.env, self.fabric, self.tick, self.enough = env, fabric, tick, enough
        self.shape, self.tasks, self.losses = job.shape, job.tasks, job.losses
        self.kind, self.activities = job.held.kind.tolist(), job.tasks.different
        self.found: list[Record] = []
        self.left = 0

    def repeat(self, start: float) -> SimpyProcess:
        """Execute step after step from `start` seconds on."""
        yield self.env.timeout(start)
        while True:
            begin, shape, none = self.env.now, self.shape, [-1] * self.shape.events
            self.begin, self.left = begin, shape.ranks
            self.start, self.end, self.asked = [begin] * shape.events, [begin] * shape.events, [begin] * shape.events
            self.cause, self.leader, self.task = none.copy(), list(range(shape.events)), none.copy()
            self.over: dict[int, simpy.Event] = defaultdict(self.env.event)
            """{event: SimPy event that succeeds when it ends}"""
            self.sent: dict[int, simpy.Event] = defaultdict(self.env.event)
            """{message: SimPy event that succeeds with the number of the sending event when that is launched}"""
            self.wait_event, self.wait_asked = [-1] * int(shape.pass_wait[-1]), [0.0] * int(shape.pass_wait[-1])
            self.launched: dict[tuple[int, int], list[int]] = defaultdict(list)
            self.meetings: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
            """{task that ranks start together: (time, event, cause) of each rank that has reached it}"""
            self.ends: dict[int, list[float]] = {}
            self.slowed = SlowedFabric(self.env, self.losses) if self.losses else None
            self.at = [(0, 0)] * shape.ranks
            """(current task, microbatch) of each rank."""
            yield self.env.all_of([self.env.process(self.rank(rank)) for rank in range(shape.ranks)])
            yield self.env.all_of([self.over[event] for event in range(shape.events) if not self.over[event].triggered])
            self.found.append(self.step())
            if self.enough(begin):
                return

    def step(self) -> Record:
        """Return the step that has ended."""
        end = max([self.begin, *self.end])
        slowed = None
        if self.slowed is not None:
            slowed = np.zeros(self.shape.events)
            slowed[list(self.slowed.more)] = list(self.slowed.more.values())
            slowed = slowed[self.leader]
        return Record(
            self.tasks,
            "simpy",
            self.begin,
            end,
            np.array(self.start),
            np.array(self.end),
            np.array(self.asked),
            np.array(self.cause, np.int32),
            np.array(self.leader, np.int32),
            np.array(self.wait_event, np.int32),
            np.array(self.wait_asked),
            self.ends,
            slowed,
            0,
            0,
        )

    def stuck(self) -> SimulationError:
        """Return the error of a step in which a rank cannot go on."""
        rank = next(r for r, (task, _) in enumerate(self.at) if task >= 0)
        return self.shape.stuck(*self.at[rank])

    def rank(self, rank: int) -> SimpyProcess:
        """Execute the passes of a rank."""
        shape, env = self.shape, self.env
        now = -1  # the event that ended last on the compute stream
        for p in range(shape.rank_pass[rank], shape.rank_pass[rank + 1]):
            begin, microbatch, entered = int(shape.pass_task[p]), int(shape.microbatch[p]), now
            for task in range(begin, shape.pass_end[p]):
                self.at[rank] = task, microbatch
                op, event = shape.op[task], int(shape.pass_event[p] + shape.event[task])
                if op in (RUN, JOIN):
                    for wait in range(shape.wait[task], shape.wait[task + 1]):
                        asked = env.now
                        awaited = yield from self.awaited(rank, p, wait)
                        if awaited is None:
                            continue
                        if awaited >= 0 and not self.over[awaited].processed:
                            yield self.over[awaited]
                        place = shape.pass_wait[p] - shape.wait[begin] + wait
                        self.wait_event[place], self.wait_asked[place] = awaited, asked
                        if env.now > asked:
                            now = awaited
                    if op == RUN:
                        self.task[event], self.asked[event] = task, env.now
                        self.arrive(event, now)
                        yield self.over[event]
                        now = event
                elif op == LAUNCH:
                    self.launch(rank, p, task, event, now)
                else:
                    self.host(rank, task, event, now, entered)
        self.at[rank] = -1, -1
        self.left -= 1

    def awaited(self, rank: int, p: int, wait: int) -> Generator[simpy.Event, Any, int | None]:
        """Return the event that a wait is for; None if the rank has launched nothing on the stream."""
        shape, which = self.shape, int(self.shape.which[wait])
        what = shape.what[wait]
        if what == MESSAGE:
            event: int = yield self.sent[which + 1 + int(shape.microbatch[p])]
            return event
        if what == OWN:
            return int(shape.pass_event[p] + shape.event[shape.pass_task[p] + which])
        return self.so_far(rank, wait)

    def so_far(self, rank: int, wait: int) -> int | None:
        """Return the last event that a wait for a stream is for, None if there is none."""
        which, but, first = (int(column[wait]) for column in (self.shape.which, self.shape.but, self.shape.first))
        done = self.launched[rank, which]
        if len(done) <= but:
            return None
        return done[min(first, len(done)) - 1] if first else done[len(done) - 1 - but]

    def launch(self, rank: int, p: int, task: int, event: int, now: int) -> None:
        """Launch a task on another stream."""
        shape = self.shape
        self.task[event], self.asked[event] = task, self.env.now
        if shape.gives[task] >= 0:
            self.sent[int(shape.gives[task] + 1 + shape.microbatch[p])].succeed(event)
        if shape.free[task]:
            self.env.process(self.free(rank, p, task, event))
            return
        stream = self.launched[rank, int(shape.stream[task])]
        before = stream[-1:]
        for wait in range(shape.wait[task], shape.wait[task + 1]):
            found = self.so_far(rank, wait)
            before += [] if found is None else [found]
        stream.append(event)
        if all(one < 0 or self.over[one].processed for one in before):
            self.arrive(event, now)
        else:
            self.env.process(self.after(before, event, now))

    def free(self, rank: int, p: int, task: int, event: int) -> SimpyProcess:
        """Start a free task when all its waits are over."""
        shape, env, cause = self.shape, self.env, -1
        for wait in range(shape.wait[task], shape.wait[task + 1]):
            asked = env.now
            awaited = yield from self.awaited(rank, p, wait)
            if awaited is None:
                continue
            if not self.over[awaited].processed:
                yield self.over[awaited]
            if shape.stream[task] == 0:
                place = shape.pass_wait[p] - shape.wait[shape.pass_task[p]] + wait
                self.wait_event[place], self.wait_asked[place] = awaited, asked
            if env.now > asked:
                cause = awaited
        self.asked[event] = env.now
        self.arrive(event, cause)

    def after(self, before: Iterable[int], event: int, cause: int) -> SimpyProcess:
        """Start an event when other events have ended."""
        for one in before:
            since = self.env.now
            if one >= 0 and not self.over[one].processed:
                yield self.over[one]
            if self.env.now > since:
                cause = one
        self.arrive(event, cause)

    def host(self, rank: int, task: int, event: int, now: int, entered: int) -> None:
        """Execute a host task: launch kernels, mark progress, or wait for the GPU.

        now: event that ended last on the compute stream. entered: event that had ended last there when the pass began.
        """
        stream = self.launched[rank, HOST_STREAM]
        if self.shape.op[task] == DRAIN:
            stream.append(now)
            return
        before = stream[-1] if stream else entered
        # its stream continues whatever the others do, so that it may be behind the GPU or far ahead of it
        time = self.begin if before < 0 else self.end[before]
        self.task[event], self.asked[event], self.start[event], self.cause[event] = task, time, time, before
        self.end[event] = time + self.activities[self.kind[task]].idle
        self.tick()
        if self.end[event] > self.env.now:
            self.env.process(self.end_at(event))
        else:
            self.over[event].succeed()
        self.launched[rank, int(self.shape.stream[task])].append(event)

    def end_at(self, event: int) -> SimpyProcess:
        """End a host event at its time."""
        yield self.fabric.at(self.end[event])
        self.over[event].succeed()

    def arrive(self, event: int, cause: int) -> None:
        """Record that a rank has reached a task; the last of the ranks that start it together starts it."""
        shape = self.shape
        meeting = int(shape.event_meeting[event]) if len(shape.event_meeting) else -1
        if meeting < 0:
            self.begin_task([event], self.task[event], cause)
            return
        come = self.meetings[meeting]
        come.append((self.env.now, event, cause))
        if len(come) == shape.meeting_size[meeting]:
            latest = min((-time, one, why) for time, one, why in come)
            self.begin_task([one for _, one, _ in come], int(shape.meeting_slot[meeting]), latest[2])

    def begin_task(self, events: list[int], slot: int, cause: int) -> None:
        """Start the common activity of events."""
        kind = self.kind[slot]
        for event in events:
            self.start[event], self.cause[event], self.leader[event] = self.env.now, cause, events[0]
        done: Done = partial(self.done, events)
        if self.slowed is not None:
            own = [self.task[event] for event in events]
            ranks = [int(self.shape.task_rank[task]) for task in own]
            done = self.slowed.begin(
                events[0], zip(own, ranks, strict=True), self.kind, self.activities[kind].idle, done
            )
        self.fabric.start(self.activities[kind], done)

    def done(self, events: list[int], segment_ends: list[float] | None) -> None:
        """End events. segment_ends: ends of the half segments if a link was shared."""
        if segment_ends is not None:
            self.ends[events[0]] = segment_ends
        for event in events:
            self.end[event] = self.env.now
            self.over[event].succeed()
            self.tick()
