"""SimPy executes the steps of jobs that share a fabric: the reference of the event loop.

Each rank cell is a process that executes the tasks of its passes; a launched task starts when all that it waits for has ended.
SimPy keeps the time: its events are the ends of computations, of latencies and of transfers. No rank is ahead of that time:
plain before fast. `_loop.c` gives the same times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import simpy

from clustersim.arrays import Floats
from clustersim.engine.fabric import Environment, Fabric, ProcessGenerator, Signal, follow
from clustersim.engine.loop import HOST_STREAM
from clustersim.engine.record import Record
from clustersim.engine.shape import DRAIN, JOIN, LAUNCH, MESSAGE, OWN, RUN
from clustersim.engine.state import StepState
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
    """Execute steps of jobs that share a cluster. Return the records of each job's complete steps, in order.

    capacity: bytes/s of each link that can be a bottleneck. Every job starts at its time in `starts` (seconds; default: 0) and
    repeats its step until each job has completed `steps` steps that began after all jobs had started. A step begins when all
    ranks of the job have ended the previous one. progress: called with the share of completed tasks (0 to 1), at most a hundred
    times. Raises SimulationError at a deadlock.
    """
    env, total, done = Environment(), steps * sum(job.shape.events for job in jobs), 0
    fabric, stop = Fabric(env, capacity), env.event()
    starts = starts or [0.0] * len(jobs)
    since, left = max(starts), [steps] * len(jobs)

    def tick() -> None:
        """Count an event that has ended, and report progress."""
        nonlocal done
        done += 1
        if done % (total // 100 + 1) == 0:
            progress(min(done / total, 1.0))

    def enough(number: int, begin: float) -> bool:
        """Count a complete step of job `number`, which began at `begin`. Return whether no job has steps left, and then stop."""
        left[number] -= begin >= since
        all_complete = max(left) <= 0
        if all_complete and not stop.triggered:  # several jobs may end a step at the same time
            stop.succeed()
        return all_complete

    repeated = [_RepeatedJob(env, fabric, job, tick, partial(enough, number)) for number, job in enumerate(jobs)]
    for job, start in zip(repeated, starts, strict=True):
        env.process(job.repeat(start))
    with uncollected():
        try:
            env.run(until=stop)  # the queue never gets empty before: old timers of changed rates stay in it
        except RuntimeError:
            deadlocks = (error for job in repeated for error in job.deadlocks())
            raise next(deadlocks, SimulationError(f"deadlock at {env.now} s")) from None
    return tuple([replace(step, events=env.events, solves=fabric.solves) for step in job.records] for job in repeated)


class _RepeatedJob(StepState):
    """A job that repeats its step on a fabric, and the record of each step so far."""

    def __init__(
        self, env: Environment, fabric: Fabric, job: LoopJob, tick: Callable[[], None], enough: Callable[[float], bool]
    ) -> None:
        """tick: called at the end of each event. enough: called at the end of each step with its begin; true ends the job."""
        super().__init__(fabric, job)
        self.env, self.tick, self.enough = env, tick, enough
        self.records: list[Record] = []
        self.at: list[tuple[int, int]] = []
        """(current task, microbatch) of each rank; -1 for both after its last pass."""

    def repeat(self, start: float) -> SimpyProcess:
        """Execute step after step from `start` seconds on, as a SimPy process, and append the record of each to `self.records`.

        It ends when `self.enough` returns true at the end of a step.
        """
        yield self.env.timeout(start)
        while True:
            begin, ranks = self.env.now, self.shape.ranks
            self.reset(begin, unknown=begin)
            self.pending = ranks + self.shape.events
            self.ended = bytearray(self.shape.events)
            self.over: dict[int, Signal] = defaultdict(Signal)
            """{event for which a rank or launched task waits: signal of its end}"""
            self.sent: dict[int, Signal] = defaultdict(Signal)
            """{message for which a rank waits: signal that its sending event is launched}"""
            self.meetings: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
            """{meeting, as in the shape: (time, event, cause) of each rank that has reached its task}"""
            self.at = [(0, 0)] * ranks
            self.step_end = self.env.event()
            for rank in range(ranks):
                follow(self.rank(rank))
            yield self.step_end
            self.records.append(self.record("simpy", max([begin, *self.end]), 0))
            if self.enough(begin):
                return

    def deadlocks(self) -> Iterator[SimulationError]:
        """Yield the error of each rank that has not ended its step; microbatch and task are those that it has reached."""
        for task, microbatch in self.at:
            if task >= 0:
                yield self.shape.stuck(task, microbatch)

    def rank(self, rank: int) -> ProcessGenerator:
        """Execute the passes of a rank, as a process."""
        env = self.env
        now = -1  # event that ended last on the compute stream
        for p in range(self.rank_pass[rank], self.rank_pass[rank + 1]):
            microbatch, entered = self.microbatch[p], now
            for task in range(self.pass_task[p], self.pass_end[p]):
                self.at[rank] = task, microbatch
                op, event = self.op[task], self.pass_event[p] + self.event[task]
                if op in (RUN, JOIN):
                    now = yield from self.waited(rank, p, task, now)
                    if op == RUN:
                        self.task[event], self.asked[event] = task, env.now
                        self.arrive(event, now)
                        if not self.ended[event]:
                            yield self.over[event]
                        now = event
                elif op == LAUNCH:
                    self.launch(rank, p, task, event, now)
                else:
                    self.host(rank, task, event, now, entered)
        self.at[rank] = -1, -1
        self.count_down()

    def waited(self, rank: int, p: int, task: int, cause: int) -> Generator[simpy.Event | Signal, Any, int]:
        """Process all waits of a task of pass `p`. Return the event that ended last, or `cause` if all had ended before."""
        first = self.pass_task[p]
        for wait in range(self.wait[task], self.wait[task + 1]):
            begin, what, which = self.env.now, self.what[wait], self.which[wait]
            event: int | None
            if what == MESSAGE:
                message = which + 1 + self.microbatch[p]
                if self.sender[message] < 0:
                    yield self.sent[message]
                event = self.sender[message]
            elif what == OWN:
                event = self.pass_event[p] + self.event[first + which]
            else:
                event = self.so_far(rank, wait)
            if event is None:
                continue  # the rank has launched nothing on the stream
            if event >= 0 and not self.ended[event]:
                yield self.over[event]
            if self.stream[task] == 0:
                place = self.pass_wait[p] - self.wait[first] + wait
                self.wait_event[place], self.wait_asked[place] = event, begin
            if self.env.now > begin:
                cause = event
        return cause

    def launch(self, rank: int, p: int, task: int, event: int, now: int) -> None:
        """Launch a task of pass `p` on another stream. now: event that ended last on the compute stream."""
        self.task[event], self.asked[event] = task, self.env.now
        if self.gives[task] >= 0:
            message = self.gives[task] + 1 + self.microbatch[p]
            self.sender[message] = event
            if message in self.sent:
                self.sent.pop(message).give()
        if self.free[task]:
            follow(self.start_free(rank, p, task, event))
            return
        stream = self.launched[rank, self.stream[task]]
        before = stream[-1:]
        for wait in range(self.wait[task], self.wait[task + 1]):
            awaited = self.so_far(rank, wait)
            before += [] if awaited is None else [awaited]
        stream.append(event)
        self.after([earlier for earlier in before if earlier >= 0], event, self.env.now, now)

    def start_free(self, rank: int, p: int, task: int, event: int) -> ProcessGenerator:
        """Start a free task of pass `p` when all its waits have ended, as a process."""
        cause = yield from self.waited(rank, p, task, -1)
        self.asked[event] = self.env.now
        self.arrive(event, cause)

    def after(self, before: Sequence[int], event: int, since: float, cause: int, _: object = None) -> None:
        """Start an event after all events of `before` and time `since` (s). cause: event whose end allows it at `since`."""
        for earlier in before:
            if not self.ended[earlier]:
                self.over[earlier].callbacks.append(partial(self.after, before, event, since, cause))
                return
            if self.end[earlier] > since:
                since, cause = self.end[earlier], earlier
        self.arrive(event, cause)

    def host(self, rank: int, task: int, event: int, now: int, entered: int) -> None:
        """Execute a host task: launch kernels or mark progress (BUSY), or wait for the GPU (DRAIN).

        now: event that ended last on the compute stream. entered: event that had ended last there when the pass began.
        """
        stream = self.launched[rank, HOST_STREAM]
        if self.op[task] == DRAIN:
            stream.append(now)
            return
        before = stream[-1] if stream else entered
        # the host's stream does not wait for other streams, so it may be late for the GPU or far ahead of it
        time = self.begin if before < 0 else self.end[before]
        self.task[event], self.asked[event], self.start[event], self.cause[event] = task, time, time, before
        end = self.end[event] = time + self.activities[self.kind[task]].timing.idle
        if end > self.env.now:
            self.fabric.call_at(end, partial(self.finish, event))
        else:
            self.finish(event)
        self.launched[rank, self.stream[task]].append(event)

    def arrive(self, event: int, cause: int) -> None:
        """Record that a rank has reached the task of an event; the last of the ranks that start it together starts it.

        cause: event whose end allowed the rank to reach it.
        """
        meeting = self.meeting[event] if len(self.meeting) else -1
        if meeting < 0:
            self.begin_task([event], self.task[event], cause)
            return
        arrivals = self.meetings[meeting]
        arrivals.append((self.env.now, event, cause))
        if len(arrivals) == self.meeting_size[meeting]:
            del self.meetings[meeting]
            latest = min((-time, arrived, arrival_cause) for time, arrived, arrival_cause in arrivals)
            self.begin_task([arrived for _, arrived, _ in arrivals], self.meeting_slot[meeting], latest[2])

    def begin_task(self, events: list[int], slot: int, cause: int) -> None:
        """Start the activity of events that start together. slot: their slot. cause: event whose end allowed the start."""
        now = self.env.now
        for event in events:
            self.start[event], self.cause[event], self.leader[event] = now, cause, events[0]
        self.run(events, self.kind[slot], partial(self.done, events))

    def done(self, events: list[int]) -> None:
        """End events that started together, now."""
        now = self.env.now
        for event in events:
            self.end[event] = now
            self.finish(event)

    def finish(self, event: int) -> None:
        """Mark an event as ended, and resume the ranks and tasks that wait for it."""
        self.ended[event] = True
        self.tick()
        if event in self.over:
            self.over.pop(event).give()
        self.count_down()

    def count_down(self) -> None:
        """Count an event or a rank that has ended; the last one ends the step."""
        self.pending -= 1
        if not self.pending:
            self.step_end.succeed()
