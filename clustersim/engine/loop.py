"""The event loop in plain Python, which executes the shapes of jobs where that in C (`_loop.c`) is not built.

A rank executes the tasks of its passes in the order in which it launches them. It waits for the end of its computations; a task
that it launches on another stream waits there for the task before it. The end of a task that nothing can delay is computed at
once, without an event of the simulation. A task that uses links, or that makes computation on its rank longer, becomes such an
event, which runs on the links of SimPy's fabric (`fabric.py`, `slowing.py`).

`_loop.c` has the same functions: a change of one is a change of both. The tests compare them with each other and with SimPy
(`engine/simulate.py`).

Example: rank 0 computes F0 from 0 to 2 s and sends it; rank 1 waits for that message. Rank 0 executes its passes up to the
first wait that it cannot fulfil; the message uses a link, so it becomes an event at 2 s. When it ends, at 3 s, rank 1 goes on.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import MutableSequence, Sequence
from functools import partial

from clustersim.arrays import Floats, lengths
from clustersim.engine.fabric import Environment, Fabric
from clustersim.engine.record import Record
from clustersim.engine.shape import BUSY, JOIN, LAUNCH, MESSAGE, RUN, STREAM
from clustersim.engine.state import StepState
from clustersim.engine.times import LoopJob
from clustersim.errors import SimulationError

HOST_STREAM = 1
"""Index of the host's stream in `Shape.streams`."""


class _Job(StepState):
    """The columns of a job, and the state of its step."""

    def __init__(self, number: int, fabric: Fabric, job: LoopJob) -> None:
        super().__init__(fabric, job)
        self.number, self.idle, self.ranks, self.events = number, job.idle.tolist(), job.shape.ranks, job.shape.events
        self.uses_links = (lengths(job.held.link_start) > 0).tolist()
        """Whether each kind of task uses links."""
        losses = job.losses
        self.slows = (losses.taking | losses.losing).tolist() if losses else [False] * len(self.op)
        """Whether each task makes computation on its rank longer, or may become longer itself."""
        self.over, self.under_way = 0.0, 0

    def reset_step(self, begin: float) -> None:
        """Reset the state of the step, so that the job can begin another one at time `begin` (s)."""
        events, ranks, meetings = self.events, self.ranks, len(self.meeting_size)
        self.reset(begin, unknown=-1.0)
        # mate: next of the events that start together, -1 after the last one. previous, after: events that a launched task waits
        # for. waiter, next_waiter: linked list of the waiters of each event, as in `Loop.register`
        self.pass_of, self.mate = array("i", [-1]) * events, array("i", [-1]) * events
        self.previous, self.after = array("i", [-1]) * events, array("i", [-1]) * events
        self.waiter, self.next_waiter = array("i", [-1]) * events, array("i", [-1]) * (events + ranks)
        self.message_waiter = array("i", [-1]) * self.shape.messages
        self.arrived, self.meeting_time = [0] * meetings, [-1.0] * meetings
        self.meeting_cause, self.meeting_first, self.meeting_leader = ([-1] * meetings for _ in range(3))
        self.cursor = list(self.rank_pass[:-1])
        self.current = [self.pass_task[p] for p in self.cursor]
        self.waiting = array("i", [-1]) * events + array("i", [self.wait[task] for task in self.current])
        """Index of the wait that each waiter has reached; waiters are numbered as in `Loop.register`."""
        self.now, self.now_event = [begin] * ranks, [-1] * ranks
        self.entered = [-1] * ranks
        """Event that ended last on each rank when its current pass began."""
        self.left, self.pending = ranks, 0
        """Number of ranks with passes left, and of launched tasks that have not ended."""
        self.ready: list[int] = []
        """Launched tasks (by event) and ranks (as -1 - rank) that can be continued."""

    def stuck(self) -> SimulationError:
        """Return the error of a step that can never end, naming the first rank or launched task that cannot go on."""
        for rank in range(self.ranks):
            if self.cursor[rank] < self.rank_pass[rank + 1]:
                return self.shape.stuck(self.current[rank], self.microbatch[self.cursor[rank]])
        event = next(event for event in range(self.events) if self.task[event] >= 0 and self.end[event] < 0.0)
        return self.shape.stuck(self.task[event], self.microbatch[self.pass_of[event]])

    def time(self, event: int) -> float:
        """Return the time (s) when an event ends, negative if not known yet; for event -1, the time when the step began."""
        return self.begin if event < 0 else self.end[event]


class Loop:
    """Executes steps of jobs that share links: `begin_step`, `run_step` until it returns the job, then `step`."""

    def __init__(self, capacity: Floats, jobs: Sequence[LoopJob]) -> None:
        """capacity: bytes/s of each link that can be a bottleneck."""
        self.env = Environment()
        self.fabric = Fabric(self.env, capacity)
        self.jobs = [_Job(number, self.fabric, job) for number, job in enumerate(jobs)]
        self.ending: dict[int, float] = {}
        """{number of a job whose events all have known ends: time (s) when its step ends}"""
        self.ended = deque[int]()
        """Numbers of the jobs that have just ended a step."""
        self.deadlock: SimulationError | None = None
        """Error of a step that can never end."""

    def begin_step(self, number: int, begin: float) -> None:
        """Begin a step of job `number` at time `begin` (s)."""
        job = self.jobs[number]
        job.reset_step(begin)
        job.ready.extend(range(-job.ranks, 0))
        self.fabric.call_at(begin, partial(self.go_on, job))

    def last(self, job: _Job) -> None:
        """End the step of a job now."""
        del self.ending[job.number]
        self.ended.append(job.number)

    def run_step(self) -> int:
        """Process events until some job ends a step; return the number of this job. Raises DeadlockError if none can go on."""
        while not self.ended:
            self.env.step()
            if self.deadlock is not None:
                raise self.deadlock
        return self.ended.popleft()

    def ends_now(self, now: float) -> bool:
        """Return whether a further job ends a step at time `now` (s) or before."""
        return bool(self.ended) or any(time <= now for time in self.ending.values())

    def step(self, number: int) -> Record:
        """Return the record of the step that job `number` has just ended."""
        job = self.jobs[number]
        return job.record("loop", job.over, self.env.events)

    # ranks and streams

    def go_on(self, job: _Job) -> None:
        """Continue all ready ranks and launched tasks of a job; schedule the end of its step once all ends are known.

        If a step can never end, set `deadlock`.
        """
        ready = job.ready
        while ready:
            waiter = ready.pop()
            if waiter < 0:
                self.advance(job, -1 - waiter)
            else:
                self.launch(job, waiter)
        if not job.under_way:
            if job.left or job.pending:
                self.deadlock = job.stuck()  # raised outside: SimPy copies what a process raises
                return
            job.over = max(job.begin, max(job.end, default=job.begin))
            self.ending[job.number] = job.over
            self.fabric.call_at(job.over, partial(self.last, job))

    def advance(self, job: _Job, rank: int) -> None:
        """Execute the tasks of a rank until the first one whose end is not known yet."""
        last = job.rank_pass[rank + 1]
        while (p := job.cursor[rank]) < last:
            task, end = job.current[rank], job.pass_end[p]
            while task < end:
                op = job.op[task]
                if op <= JOIN:
                    if not self.waited(job, job.events + rank, rank, p, task, job.now, job.now_event, rank):
                        job.current[rank] = task
                        return
                    if op == RUN and not self.ran(job, rank, p, task):
                        job.current[rank] = task
                        return
                elif op == LAUNCH:
                    self.launched(job, rank, p, task)
                else:
                    self.host(job, rank, p, task, op)
                task += 1
                job.waiting[job.events + rank] = job.wait[task]
            p += 1
            job.cursor[rank] = p
            if p < last:
                job.current[rank] = job.pass_task[p]
                job.waiting[job.events + rank] = job.wait[job.current[rank]]
                job.entered[rank] = job.now_event[rank]
        job.left -= 1

    def waited(
        self,
        job: _Job,
        waiter: int,
        rank: int,
        p: int,
        task: int,
        now: MutableSequence[float],
        cause: MutableSequence[int],
        own: int,
    ) -> bool:
        """Wait for each event that a task of pass `p` depends on. Return False, to retry later, if the end of one is not known.

        waiter: the rank that reaches the task, or the event of a free task, numbered as in `register`. now[own], cause[own]: time
        (s) that this waiter has reached, and the event that ended then; both are updated.
        """
        offset = job.pass_wait[p] - job.wait[job.pass_task[p]]
        for wait in range(job.waiting[waiter], job.wait[task + 1]):
            job.waiting[waiter] = wait
            if job.what[wait] == MESSAGE:
                message = job.which[wait] + 1 + job.microbatch[p]
                event = job.sender[message]
                if event < 0:
                    job.next_waiter[waiter], job.message_waiter[message] = job.message_waiter[message], waiter
                    return False
            elif job.what[wait] == STREAM:
                launched = job.so_far(rank, wait)
                if launched is None:
                    continue  # the rank has launched nothing there
                event = launched
            else:
                event = job.pass_event[p] + job.event[job.pass_task[p] + job.which[wait]]
            end = job.time(event)
            if end < 0.0:
                self.register(job, event, waiter)
                return False
            if job.stream[task] == 0:
                job.wait_event[offset + wait], job.wait_asked[offset + wait] = event, now[own]
            if end > now[own]:
                now[own], cause[own] = end, event
        job.waiting[waiter] = job.wait[task + 1]
        return True

    def ran(self, job: _Job, rank: int, p: int, task: int) -> bool:
        """Execute the computation `task` of pass `p` of a rank; return False, to retry later, if its end is not known yet."""
        event = job.pass_event[p] + job.event[task]
        if job.task[event] < 0:  # not begun
            job.task[event], job.asked[event] = task, job.now[rank]
            self.arrive(job, event, job.now[rank], job.now_event[rank])
        end = job.end[event]
        if end < 0.0:
            self.register(job, event, job.events + rank)
            return False
        job.now[rank], job.now_event[rank] = end, event
        return True

    def launched(self, job: _Job, rank: int, p: int, task: int) -> None:
        """Launch a task of pass `p` on another stream; the rank continues without waiting for it."""
        event, stream = job.pass_event[p] + job.event[task], job.launched[rank, job.stream[task]]
        job.task[event], job.asked[event], job.cause[event] = task, job.now[rank], job.now_event[rank]
        job.pass_of[event], job.waiting[event] = p, job.wait[task]
        if stream and not job.free[task]:
            job.previous[event] = stream[-1]
        for wait in range(job.wait[task], job.wait[task + 1]):
            if job.what[wait] == STREAM:
                after = job.so_far(rank, wait)
                job.after[event] = -1 if after is None else after
        stream.append(event)
        if job.gives[task] >= 0:
            message = job.gives[task] + 1 + job.microbatch[p]
            job.sender[message] = event
            self.wake_waiters(job, job.message_waiter[message])
            job.message_waiter[message] = -1
        job.pending += 1
        self.launch(job, event)

    def launch(self, job: _Job, event: int) -> None:
        """Start a launched task if all events that it waits for have known ends; else retry when the first other one ends."""
        task, time, cause = job.task[event], job.asked[event], job.cause[event]
        for before in (job.previous[event], job.after[event]):
            if before >= 0:
                end = job.end[before]
                if end < 0.0:
                    self.register(job, before, event)
                    return
                if end > time:
                    time, cause = end, before
        if job.free[task]:
            rank, p = job.task_rank[task], job.pass_of[event]
            if not self.waited(job, event, rank, p, task, job.asked, job.cause, event):
                return
            time, cause = job.asked[event], job.cause[event]
        self.arrive(job, event, time, cause)

    def host(self, job: _Job, rank: int, p: int, task: int, op: int) -> None:
        """Execute a task of the host: launch kernels or mark its progress (BUSY), or wait for its GPU (DRAIN).

        The stream of the host begins with the pass of its first task and does not wait for other streams, except in DRAIN.
        """
        event = job.now_event[rank]
        if op == BUSY:
            stream = job.launched[rank, HOST_STREAM]
            before = stream[-1] if stream else job.entered[rank]
            event = job.pass_event[p] + job.event[task]
            time = job.time(before)
            job.task[event], job.asked[event], job.cause[event] = task, time, before
            job.start[event], job.end[event] = time, time + job.idle[job.kind[task]]
        job.launched[rank, job.stream[task]].append(event)

    def arrive(self, job: _Job, event: int, time: float, cause: int) -> None:
        """Start the task of an event that a rank reaches at `time` (s); ranks that start it together wait for the last of them.

        cause: event whose end allowed the rank to reach it.
        """
        meeting = job.meeting[event] if len(job.meeting) else -1
        if meeting < 0:
            self.start(job, event, job.task[event], time, cause)
            return
        leader = job.meeting_leader[meeting]
        if leader < 0:
            job.meeting_leader[meeting] = leader = event
        else:
            job.mate[event], job.mate[leader] = job.mate[leader], event
        job.leader[event] = leader
        latest = job.meeting_time[meeting]
        if time > latest or (time == latest and event < job.meeting_first[meeting]):
            job.meeting_time[meeting], job.meeting_cause[meeting], job.meeting_first[meeting] = time, cause, event
        job.arrived[meeting] += 1
        if job.arrived[meeting] == job.meeting_size[meeting]:
            slot = job.meeting_slot[meeting]
            self.start(job, leader, slot, job.meeting_time[meeting], job.meeting_cause[meeting])

    def start(self, job: _Job, leader: int, slot: int, time: float, cause: int) -> None:
        """Start the events that start together with `leader` at `time` (s). slot: their slot. cause: event that allowed it."""
        kind, event, together, slows = job.kind[slot], leader, list[int](), False
        while event >= 0:
            job.start[event], job.cause[event] = time, cause
            together.append(event)
            slows |= job.slows[job.task[event]]
            event = job.mate[event]
        if not slows and not job.uses_links[kind]:
            self.over(job, leader, time + job.idle[kind])
            return
        job.under_way += 1
        self.fabric.call_at(time, partial(job.run, together, kind, partial(self.finish, job, leader)))

    def finish(self, job: _Job, leader: int) -> None:
        """End a task that ran on links, now, and continue the ranks and tasks that waited for it."""
        job.under_way -= 1
        self.over(job, leader, self.env.now)
        self.go_on(job)

    def over(self, job: _Job, leader: int, end: float) -> None:
        """Set the end (s) of the events that start together with `leader`, and make ranks and tasks ready that wait for them."""
        event = leader
        while event >= 0:
            job.end[event] = end
            job.pending -= job.op[job.task[event]] == LAUNCH
            self.wake_waiters(job, job.waiter[event])
            job.waiter[event] = -1
            event = job.mate[event]

    def wake_waiters(self, job: _Job, waiter: int) -> None:
        """Make a waiter and all after it in its linked list ready. waiter: numbered as in `register`; -1 for none."""
        while waiter >= 0:
            job.ready.append(waiter if waiter < job.events else job.events - 1 - waiter)
            waiter = job.next_waiter[waiter]

    def register(self, job: _Job, event: int, waiter: int) -> None:
        """Make a waiter ready when an event ends: a launched task by its event, or a rank as number of events + rank."""
        job.next_waiter[waiter], job.waiter[event] = job.waiter[event], waiter
