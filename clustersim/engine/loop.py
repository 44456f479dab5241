"""The event loop: executes the shapes of jobs on links that they share, with the columns of their times.

A rank goes through the tasks of its passes in the order in which it launches them. What it computes, it waits for; what it
launches on another stream waits there for the task before it. A task whose end nothing can change ends ahead of time, without
an event. A task that holds links sleeps until it would end alone; when another task begins with which it could overfill a link,
both wake: each is found in the half segment that it has reached and continues event by event, its bytes at max-min fair rates,
until its links fit again. Communication that takes SMs or memory bandwidth of its rank makes the computation that overlaps with
it longer (`engine/slowing.py` has the equations).

This is the loop in plain Python. `_loop.c` is the same loop, function by function, for machines with a compiler: a change of
one is a change of both, and the tests hold them to each other and to SimPy (`engine/simulate.py`).

Example: rank 0 computes F0 from 0 to 2 s and sends it; rank 1 waits for that message. Rank 0 executes its passes up to the
first wait that it cannot fulfil; the message holds a link, so it becomes an event at 2 s. When it ends, at 3 s, rank 1 goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from clustersim.arrays import Floats, offsets
from clustersim.engine.flows import FITS
from clustersim.engine.record import Record
from clustersim.engine.shape import BUSY, JOIN, LAUNCH, MESSAGE, RUN, STREAM
from clustersim.engine.slowing import LEAST, MOST
from clustersim.engine.times import LoopJob
from clustersim.errors import SimulationError

BEGIN, OVER, END, LANDED, MOVE, LAND, FIRST, LAST = range(8)
"""What a task waits for: to begin; asleep, to be over; awake, for the end of a half segment and of what is in it; for a step to
begin, and to end."""
LATER = 1 << 56
"""More than the number of events: in the queue, at one time, tasks that end come first, then those that begin, then `solve`."""
NEARLY = 1e-9
"""Relative error that a difference of sums may have."""
SAME = 1e-12
"""Relative change of a rate that is due to rounding."""
NEARLY_FULL = 0.98
HOST_STREAM = 1


class _Link:
    """A link while a simulation runs."""

    __slots__ = ("changed", "crossing", "free", "full", "held", "left", "limit", "reserved", "seen", "total", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.reserved = self.used = self.free = self.total = 0.0
        self.left = self.seen = 0
        self.full = self.changed = False
        self.held: dict[_Running, None] = {}
        self.crossing: dict[_Running, float] = {}


class _Rank:
    """Shares of a rank taken by communication: current shares, and their integrals (engine/slowing.py)."""

    __slots__ = ("late", "lost", "lost_bound", "memory", "since", "sms", "taken", "taken_bound")

    def __init__(self) -> None:
        self.sms = self.memory = self.taken = self.taken_bound = self.lost = self.lost_bound = self.since = 0.0
        self.late: dict[_Loss, None] = {}

    def advance(self, now: float) -> None:
        """Advance to time `now` (s): the integrals, and the seconds left of the losses that are being made up for."""
        past = now - self.since
        if past == 0.0:
            return
        self.since = now
        self.lost += self.taken * past
        self.lost_bound += self.taken_bound * past
        for loss in self.late:
            loss.left -= loss.speed() * past


class _Loss:
    """A task computing on a rank: fractions of its time in kernels that memory bandwidth bounds (`memory`) or not (`other`)."""

    __slots__ = ("before", "before_bound", "end", "left", "memory", "other", "rank", "task")

    def __init__(self, task: _Running, rank: _Rank, other: float, memory: float) -> None:
        self.task, self.rank, self.other, self.memory = task, rank, other, memory
        self.before = self.before_bound = self.left = self.end = 0.0

    def speed(self) -> float:
        """Return the seconds of lost computation that the rank makes up for in one second (0 to 1)."""
        return 1.0 - self.other * self.rank.taken - self.memory * self.rank.taken_bound


class _Running:
    """A task whose end is not known when it starts, in progress or about to start."""

    __slots__ = (
        *(
            "awake",
            "begun",
            "bound",
            "call",
            "ends",
            "index",
            "job",
            "kind",
            "lands",
            "late",
            "leader",
            "left",
            "links",
        ),
        *("losses", "moving", "on_time", "place", "rate", "seen", "since", "started", "takes", "tried", "version"),
    )

    def __init__(self, job: _Job, leader: int, kind: int) -> None:
        self.job, self.leader, self.kind = job, leader, kind
        self.version = self.index = self.seen = self.place = 0
        self.call, self.awake, self.on_time, self.late = BEGIN, False, True, False
        self.started = self.begun = self.rate = self.tried = self.left = self.since = self.lands = self.bound = 0.0
        self.moving = -1
        self.ends: list[float] = []
        self.links: list[int] = job.links(kind) if kind >= 0 else []
        self.takes: list[tuple[_Rank, float, float]] = []
        self.losses: list[_Loss] = []


class _Job:
    """The columns of a job as lists, and the state of its step."""

    def __init__(self, number: int, job: LoopJob) -> None:
        shape, held, losses = job.shape, job.held, job.losses
        self.number, self.shape, self.tasks = number, shape, job.tasks
        self.op, self.stream, self.free = _ints(shape.op), _ints(shape.stream), _ints(shape.free)
        self.gives, self.event, self.wait = _ints(shape.gives), _ints(shape.event), _ints(shape.wait)
        self.what, self.which = _ints(shape.what), _ints(shape.which)
        self.first, self.but = _ints(shape.first), _ints(shape.but)
        self.rank_pass, self.pass_task, self.pass_end = map(_ints, (shape.rank_pass, shape.pass_task, shape.pass_end))
        self.microbatch, self.pass_event, self.pass_wait = map(
            _ints, (shape.microbatch, shape.pass_event, shape.pass_wait)
        )
        self.launch_start, self.meeting = _ints(shape.launched), _ints(shape.event_meeting)
        self.meeting_size, self.meeting_slot = _ints(shape.meeting_size), _ints(shape.meeting_slot)
        self.kind, self.idle, self.load_weight = _ints(held.kind), _floats(job.idle), _floats(held.load_weight)
        self.link_start, self.link, self.share = _ints(held.link_start), _ints(held.link), _floats(held.share)
        self.segment_start, self.flow = _ints(held.segment_start), _ints(held.flow)
        self.segment: list[list[float]] = job.segment.tolist()
        self.flows: list[list[float]] = held.flows.tolist()
        self.load_start, self.load_link = _ints(held.load_start), _ints(held.load_link)
        self.slowing, self.task_rank = bool(losses), _ints(shape.task_rank)
        self.sms, self.memory = _floats(losses.sms), _floats(losses.memory)
        self.compute, self.bound = _floats(losses.compute), _floats(losses.bound)
        self.taking, self.losing = _ints(losses.taking), _ints(losses.losing)
        self.streams, self.ranks, self.events = len(shape.streams), shape.ranks, shape.events
        self.begin, self.over, self.under_way, self.first_event = 0.0, 0.0, 0, 0
        self.step = _Running(self, -1, -1)
        self.reset()

    def reset(self) -> None:
        """Reset the state of the step, so that the job can begin another one."""
        events, ranks = self.events, self.ranks
        self.start, self.end = [-1.0] * events, [-1.0] * events
        self.asked, self.cause, self.pass_of = [0.0] * events, [-1] * events, [-1] * events
        self.leader, self.mate = list(range(events)), [-1] * events
        self.previous, self.after, self.task = [-1] * events, [-1] * events, [-1] * events
        self.waiter, self.next_waiter = [-1] * events, [-1] * (events + ranks)
        self.wait_event, self.wait_asked = [-1] * self.pass_wait[-1], [0.0] * self.pass_wait[-1]
        self.message_event = [-1] * self.shape.messages
        self.message_waiter = [-1] * self.shape.messages
        self.launched_events = [-1] * self.launch_start[-1]
        self.count = [0] * (ranks * self.streams)
        self.arrived, self.meeting_time = [0] * len(self.meeting_size), [-1.0] * len(self.meeting_size)
        self.meeting_cause, self.meeting_first = [-1] * len(self.meeting_size), [-1] * len(self.meeting_size)
        self.meeting_leader = [-1] * len(self.meeting_size)
        self.cursor, self.current = self.rank_pass[:-1].copy(), [self.pass_task[p] for p in self.rank_pass[:-1]]
        self.waiting = [-1] * events + [self.wait[task] for task in self.current]
        """Index of the wait that each waiter has reached (events, then ranks)."""
        self.now, self.now_event = [self.begin] * ranks, [-1] * ranks
        self.entered = [-1] * ranks
        """Event that ended last on each rank when its current pass began."""
        self.left, self.pending = ranks, 0
        """Ranks that have passes left, and launched tasks that are not over."""
        self.segment_ends: dict[int, list[float]] = {}
        self.longer: dict[int, float] = {}
        self.rank_state: dict[int, _Rank] = {}
        self.ready: list[int] = []

    def links(self, kind: int) -> list[int]:
        """Return the links that a task of kind `kind` crosses."""
        return self.link[self.link_start[kind] : self.link_start[kind + 1]]

    def rank_of(self, event: int) -> _Rank:
        """Return the shares that communication takes of the rank of an event."""
        return self.rank_state.setdefault(self.task_rank[self.task[event]], _Rank())

    def stuck(self) -> SimulationError:
        """Return the error for a step in which a rank or a launched task waits for ever."""
        for rank in range(self.ranks):
            if self.cursor[rank] < self.rank_pass[rank + 1]:
                return self.shape.stuck(self.current[rank], self.microbatch[self.cursor[rank]])
        event = next(event for event in range(self.events) if self.task[event] >= 0 and self.end[event] < 0.0)
        return self.shape.stuck(self.task[event], self.microbatch[self.pass_of[event]])

    def time(self, event: int) -> float:
        """Return the time (s) when an event ends, negative if not known yet; for event -1, the time when the step began."""
        return self.begin if event < 0 else self.end[event]


def _ints(column: Any) -> list[int]:
    found: list[int] = column.tolist()
    return found


def _floats(column: Floats) -> list[float]:
    found: list[float] = column.tolist()
    return found


class Loop:
    """Executes the steps of jobs that share links."""

    def __init__(self, capacity: Floats, jobs: Sequence[LoopJob]) -> None:
        """capacity: bytes/s of each link."""
        self.links = [_Link(limit) for limit in capacity.tolist()]
        self.jobs = [_Job(number, job) for number, job in enumerate(jobs)]
        self.queue: list[tuple[float, int, int, _Running]] = []
        self.number = self.events = self.solves = self.stamp = 0
        self.moved: list[_Running] = []
        self.changed: list[_Link] = []
        self.dirty, self.now = False, 0.0
        for job, first in zip(self.jobs, offsets(np.array([job.events for job in self.jobs])), strict=False):
            job.first_event = int(first)

    def again(self, number: int, begin: float) -> None:
        """Begin a step of job `number` at time `begin` (s)."""
        job = self.jobs[number]
        job.begin, job.step.call = begin, FIRST
        job.reset()
        self.push(job.step, begin)

    def play(self) -> int:
        """Process events until some job ends a step; return the number of this job."""
        now = self.now  # rates of that time may still have to be solved
        while True:
            if self.dirty and (not self.queue or self.queue[0][0] > now):
                # rates are solved once for all that changes at one time
                self.events += 1
                self.solve(now)
                continue
            now, _, version, task = heappop(self.queue)
            if version != task.version:
                continue
            if task.call == BEGIN:
                self.begin(task, now)
            elif task.call == OVER:
                self.finish(task, now)
            elif task.call == FIRST:
                task.job.ready.extend(range(-task.job.ranks, 0))
                self.go_on(task.job)
            elif task.call == LAST:
                self.now = now
                return task.job.number
            else:
                self.wake_up(task, now)

    def ends_now(self, now: float) -> bool:
        """Return whether a further job ends a step at time `now` (s) or before."""
        return any(one.call == LAST and at <= now and version == one.version for at, _, version, one in self.queue)

    # ranks and streams

    def go_on(self, job: _Job) -> None:
        """Continue all ready ranks and launched tasks of a job; schedule the end of its step once all ends are known."""
        ready = job.ready
        while ready:
            one = ready.pop()
            if one < 0:
                self.advance(job, -1 - one)
            else:
                self.launch(job, one)
        if not job.under_way:
            if job.left or job.pending:
                raise job.stuck()
            job.over = max(job.begin, max(job.end, default=job.begin))
            job.step.call = LAST
            self.push(job.step, job.over)

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
        self, job: _Job, waiter: int, rank: int, p: int, task: int, now: list[float], cause: list[int], own: int
    ) -> bool:
        """Wait for each event a task depends on; return False, to retry later, if the end of one is not known.

        waiter: as in `register`: the rank that reaches the task, or the event of a free task. now, cause: time that this waiter
        has reached (s) and the event that ended then, at place `own` of these lists.
        """
        offset = job.pass_wait[p] - job.wait[job.pass_task[p]]
        for wait in range(job.waiting[waiter], job.wait[task + 1]):
            job.waiting[waiter] = wait
            if job.what[wait] == MESSAGE:
                message = job.which[wait] + 1 + job.microbatch[p]
                event = job.message_event[message]
                if event < 0:
                    job.next_waiter[waiter], job.message_waiter[message] = job.message_waiter[message], waiter
                    return False
            elif job.what[wait] == STREAM:
                event, some = self.so_far(job, rank, wait)
                if not some:
                    continue  # the rank has launched nothing there
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

    def so_far(self, job: _Job, rank: int, wait: int) -> tuple[int, bool]:
        """Return the event of the last task on a stream that a wait refers to, and whether there is such a task."""
        number = rank * job.streams + job.which[wait]
        count = job.count[number]
        if count <= job.but[wait]:
            return -1, False
        which = min(job.first[wait], count) if job.first[wait] else count - job.but[wait]
        return job.launched_events[job.launch_start[number] + which - 1], True

    def ran(self, job: _Job, rank: int, p: int, task: int) -> bool:
        """Execute a task that the rank itself computes; return False, to retry later, if its end is not known yet."""
        event = job.pass_event[p] + job.event[task]
        if job.task[event] < 0:  # not begun
            job.task[event], job.asked[event] = task, job.now[rank]
            if job.meeting and job.meeting[event] >= 0:
                self.arrive(job, event, job.now[rank], job.now_event[rank])
            else:
                self.start(job, event, task, job.now[rank], job.now_event[rank])
        end = job.end[event]
        if end < 0.0:
            self.register(job, event, job.events + rank)
            return False
        job.now[rank], job.now_event[rank] = end, event
        return True

    def launched(self, job: _Job, rank: int, p: int, task: int) -> None:
        """Launch a task on another stream; the rank goes on without waiting for the task."""
        event, number = job.pass_event[p] + job.event[task], rank * job.streams + job.stream[task]
        count = job.count[number]
        job.task[event], job.asked[event], job.cause[event] = task, job.now[rank], job.now_event[rank]
        job.pass_of[event], job.waiting[event] = p, job.wait[task]
        if count and not job.free[task]:
            job.previous[event] = job.launched_events[job.launch_start[number] + count - 1]
        for wait in range(job.wait[task], job.wait[task + 1]):
            if job.what[wait] == STREAM:
                after, some = self.so_far(job, rank, wait)
                job.after[event] = after if some else -1
        job.launched_events[job.launch_start[number] + count] = event
        job.count[number] = count + 1
        if job.gives[task] >= 0:
            message = job.gives[task] + 1 + job.microbatch[p]
            job.message_event[message] = event
            self.wake_waiters(job, job.message_waiter[message])
            job.message_waiter[message] = -1
        job.pending += 1
        self.launch(job, event)

    def launch(self, job: _Job, event: int) -> None:
        """Start a launched task if every event it waits for has ended; otherwise retry when the first unfinished one ends."""
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
        if job.meeting and job.meeting[event] >= 0:
            self.arrive(job, event, time, cause)
        else:
            self.start(job, event, task, time, cause)

    def host(self, job: _Job, rank: int, p: int, task: int, op: int) -> None:
        """Execute a task of the host: launch kernels or mark its progress (BUSY), or wait for its GPU (DRAIN).

        The stream of the host begins with the pass of its first task and does not wait for other streams, except in DRAIN.
        """
        first, event = rank * job.streams, job.now_event[rank]
        number = first + job.stream[task]
        if op == BUSY:
            count = job.count[first + HOST_STREAM]
            last = job.launch_start[first + HOST_STREAM] + count - 1
            before = job.launched_events[last] if count else job.entered[rank]
            event = job.pass_event[p] + job.event[task]
            time = job.time(before)
            job.task[event], job.asked[event], job.cause[event] = task, time, before
            job.start[event], job.end[event] = time, time + job.idle[job.kind[task]]
        job.launched_events[job.launch_start[number] + job.count[number]] = event
        job.count[number] += 1

    def arrive(self, job: _Job, event: int, time: float, cause: int) -> None:
        """Note that a rank has reached a task that several ranks start together; the last rank to arrive starts the task."""
        meeting = job.meeting[event]
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
        """Start a task, i.e. all events of leader `leader`, at time `time` (s)."""
        kind, changes = job.kind[slot], False
        event = leader
        while event >= 0:
            job.start[event], job.cause[event] = time, cause
            task = job.task[event]
            changes |= job.slowing and bool(job.taking[task] or job.losing[task])
            event = job.mate[event]
        if not changes and job.link_start[kind] == job.link_start[kind + 1]:
            self.over(job, leader, time + job.idle[kind])
            return
        job.under_way += 1
        running = _Running(job, leader, kind)
        heappush(self.queue, (time, 2 * LATER + job.first_event + leader, 0, running))

    def over(self, job: _Job, leader: int, end: float) -> None:
        """End all events of a leader at time `end` (s) and make every rank and task ready that waits for them."""
        event = leader
        while event >= 0:
            job.end[event] = end
            job.pending -= job.op[job.task[event]] == LAUNCH
            self.wake_waiters(job, job.waiter[event])
            job.waiter[event] = -1
            event = job.mate[event]

    def wake_waiters(self, job: _Job, waiter: int) -> None:
        """Make a waiter ready, and all waiters after it in its linked list."""
        while waiter >= 0:
            job.ready.append(waiter if waiter < job.events else job.events - 1 - waiter)
            waiter = job.next_waiter[waiter]

    def register(self, job: _Job, event: int, waiter: int) -> None:
        """Make a waiter ready when an event ends: a launched task by its event, or a rank as number of events + rank."""
        job.next_waiter[waiter], job.waiter[event] = job.waiter[event], waiter

    # tasks whose ends depend on others

    def push(self, task: _Running, time: float) -> None:
        """Schedule the next event of a task, whose kind is `call`, at time `time` (s); an earlier schedule becomes invalid."""
        self.number += 1
        task.version += 1
        # what ends frees its links before what begins at that time takes them: else both would seem to share them
        later = 0 if task.call == OVER else LATER
        heappush(self.queue, (time, later + self.number, task.version, task))

    def begin(self, task: _Running, now: float) -> None:
        """Begin a task: asleep until its end if its links fit, else awake together with the tasks that it could slow."""
        job = task.job
        task.started = task.begun = now
        if job.slowing:
            self.overlap(task, now)
        tight = False
        for place, number in enumerate(task.links, job.link_start[task.kind]):
            link = self.links[number]
            link.held[task] = None
            link.reserved += job.share[place]
            tight |= link.reserved > FITS
        if not tight:
            task.call = OVER
            self.push(task, now + job.idle[task.kind])
            return
        for other in self.asleep(task):
            self.wake(other, now)

    def asleep(self, task: _Running) -> list[_Running]:
        """Return the sleeping tasks on those links of a task that could be overfilled, and mark them awake."""
        found = []
        for number in task.links:
            link = self.links[number]
            if link.reserved > FITS:
                for other in link.held:
                    if not other.awake:
                        other.awake = True
                        found.append(other)
        return sorted(found, key=lambda one: (one.job.number, one.leader))

    def finish(self, task: _Running, now: float) -> None:
        """End a sleeping task, after it has made up for lost computation, and continue all that waited for the task."""
        job = task.job
        if task.late:
            self.no_longer_late(task, now)
        else:
            if task.index:
                self.reach(task, math.inf)
                if len(task.ends) < 2 * self.segments(task):
                    task.ends.append(now)
            for place, number in enumerate(task.links, job.link_start[task.kind]):
                link = self.links[number]
                del link.held[task]
                # from zero again, as in `land`: a link that seems tight by rounding wakes all that use it
                link.reserved = link.reserved - job.share[place] if link.held else 0.0
            self.take(task, -1.0, now)
            if self.loses(task, now):
                return
        if task.ends:
            job.segment_ends[task.leader] = task.ends
        job.under_way -= 1
        self.over(job, task.leader, now)
        self.go_on(job)

    def segments(self, task: _Running) -> int:
        """Return the number of segments of a task."""
        return task.job.segment_start[task.kind + 1] - task.job.segment_start[task.kind]

    def alone(self, task: _Running, index: int, begun: float) -> float:
        """Return the time (s) when half segment `index`, begun at time `begun`, ends if no other task slows it."""
        job, place = task.job, task.job.segment_start[task.kind] + index // 2
        compute, launched, _, _, computed, over = job.segment[place]
        if task.on_time:
            return task.started + (over if index % 2 else computed)
        if index % 2 == 0:
            return max(begun + compute, task.started + launched)
        flow = job.flow[place]
        return begun + self.beside(task, index, job.flows[flow][3]) if flow >= 0 else begun

    def beside(self, task: _Running, index: int, moving: float) -> float:
        """Return the seconds of a flow that moves for `moving` seconds, with the computation that overlaps with the flow."""
        _, _, beside, share, _, _ = task.job.segment[task.job.segment_start[task.kind] + index // 2]
        return max(moving, beside + share * moving) if beside else moving

    def reach(self, task: _Running, time: float) -> None:
        """Advance a sleeping task to the half segment that it has reached at time `time` (s), at most the last one."""
        # in the last one it waits for its end anyway, however sums are rounded
        while task.index < 2 * self.segments(task) - 1:
            end = self.alone(task, task.index, task.begun)
            if end > time:
                return
            task.ends.append(end)
            task.index += 1
            task.begun = end

    def wake(self, task: _Running, now: float) -> None:
        """Wake a sleeping task: from time `now` (s), it continues event by event."""
        task.version += 1  # whatever it waits for
        self.reach(task, now)
        if task.index:
            before = task.job.segment[task.job.segment_start[task.kind] + (task.index - 1) // 2]
            task.on_time = task.begun == task.started + (before[4] if task.index % 2 else before[5])
        self.enter(task, now)

    def enter(self, task: _Running, now: float) -> None:
        """Continue a task in its current half segment, which began at time `now` (s) or before."""
        while True:
            if task.index % 2:
                self.transfer(task, now)
                return
            time = self.alone(task, task.index, task.begun)
            if time > now:
                task.call = END
                self.push(task, time)
                return
            if not self.goes_on(task, now):
                return

    def flow_of(self, task: _Running) -> int:
        """Return the flow of the segment that a task is in; -1 for none."""
        return task.job.flow[task.job.segment_start[task.kind] + task.index // 2]

    def overlapped(self, task: _Running) -> bool:
        """Return whether computation overlaps with the flow of the segment that a task is in."""
        return task.job.segment[task.job.segment_start[task.kind] + task.index // 2][2] > 0.0

    def transfer(self, task: _Running, now: float) -> None:
        """Continue a task in the half segment of a flow: its latency, its bytes, or the computation that overlaps with it."""
        flow, begun = self.flow_of(task), task.begun
        if flow < 0 or now >= begun + task.job.flows[flow][3]:
            # nothing moves any more: what is computed beside it takes longer
            task.call = END
            self.push(task, max(self.alone(task, task.index, begun), now))
            return
        latency, size, _, idle = task.job.flows[flow]
        if not size:
            task.call = LANDED
            exact = task.on_time and not self.overlapped(task)
            self.push(task, max(self.alone(task, task.index, begun), now) if exact else begun + idle)
        elif now >= begun + latency:
            self.move(task, now)
        else:
            task.call = MOVE
            self.push(task, begun + latency)

    def goes_on(self, task: _Running, now: float) -> bool:
        """End a half segment; return whether the task stays awake for the next one. Otherwise it sleeps until its end."""
        task.ends.append(now)
        task.index += 1
        task.begun = now
        halves = 2 * self.segments(task)
        if task.index < halves and any(self.links[number].reserved > FITS for number in task.links):
            return True
        end = now
        for index in range(max(task.index, halves - 1) if task.on_time else task.index, halves):
            end = self.alone(task, index, end)
        task.awake, task.call = False, OVER
        self.push(task, end)
        return False

    def loads(self, task: _Running, flow: int) -> list[tuple[_Link, float]]:
        """Return the links of a flow, each with the bytes that cross the link per byte of the flow."""
        job = task.job
        return [
            (self.links[task.links[job.load_link[load]]], job.load_weight[load])
            for load in range(job.load_start[flow], job.load_start[flow + 1])
        ]

    def move(self, task: _Running, now: float) -> None:
        """Begin to move the bytes of a flow, whose latency is over."""
        flow = self.flow_of(task)
        latency, size, bound, idle = task.job.flows[flow]
        lands = task.begun + idle
        if task.on_time and not self.overlapped(task):
            lands = self.alone(task, task.index, task.begun)
        loads = self.loads(task, flow)
        if not loads:
            task.call = LANDED
            self.push(task, max(lands, now))
            return
        task.moving, task.rate, task.tried, task.lands, task.bound = flow, 0.0, 0.0, lands, bound
        task.left, task.since = size, task.begun + latency
        for link, weight in loads:
            link.crossing[task] = weight
        # its rate is found with those of all that change at this time
        self.moved.append(task)
        self.dirty = True

    def land(self, task: _Running) -> None:
        """Remove a flow that has ended from its links."""
        for link, weight in self.loads(task, task.moving):
            del link.crossing[task]
            if link.full and not link.changed:
                link.changed = True
                self.changed.append(link)
            # an idle link begins from zero again: else the rounding of all sums would stay
            link.used = link.used - weight * task.tried if link.crossing else 0.0
        task.moving = -1
        if task.lands == math.inf:  # it was below its bound for a while
            task.on_time = False
        self.dirty = True

    def wake_up(self, task: _Running, now: float) -> None:
        """Process the event, of kind `call`, that an awake task waited for."""
        self.events += 1
        if task.call == MOVE:
            self.move(task, now)
            return
        if task.call == LAND:
            self.land(task)
        if task.call != END and self.overlapped(task):
            if task.on_time:
                time = self.alone(task, task.index, task.begun)
            else:
                time = task.begun + self.beside(task, task.index, now - task.begun)
            task.call = END
            self.push(task, max(time, now))
        elif self.goes_on(task, now):
            self.enter(task, now)

    # max-min fair rates

    def solve(self, now: float) -> None:
        """Update the rates of flows on the full links that changes reach, and on links that the new rates would overfill.

        Of thousands of links a hundred are full, and a solution that keeps within a limit stays when that limit is added.
        """
        self.solves += 1
        while True:
            tasks, wide = self.joined()
            rates = self.fair(tasks, wide)
            if not self.overfilled(tasks, rates):
                break
        self.changed, self.moved, self.dirty = [], [], False
        for task in tasks:
            self.settle(task, now)
        for link in wide:
            link.changed = False
            link.full = link.used > NEARLY_FULL * link.limit

    def joined(self) -> tuple[list[_Running], list[_Link]]:
        """Return the flows connected to changed flows or links by chains of full links, and the links in these chains."""
        self.stamp += 1
        stamp, tasks, wide = self.stamp, list[_Running](), list[_Link]()
        for link in self.changed:
            if link.seen != stamp:
                link.seen = stamp
                wide.append(link)
        for task in self.moved:
            task.seen = stamp
            tasks.append(task)
        done = gone = 0
        while done < len(wide) or gone < len(tasks):
            while done < len(wide):
                for task in wide[done].crossing:
                    if task.seen != stamp:
                        task.seen = stamp
                        tasks.append(task)
                done += 1
            if gone == len(tasks):
                break
            for link, _ in self.loads(tasks[gone], tasks[gone].moving):
                if link.full and link.seen != stamp:
                    link.seen = stamp
                    wide.append(link)
            gone += 1
        return tasks, wide

    def fair(self, tasks: list[_Running], wide: list[_Link]) -> list[float]:
        """Return the max-min fair rates of flows on links that no other flows cross.

        All rates rise together; a flow stops at its bound or when one of its links is full (Bertsekas & Gallager, Data
        Networks, 6.5.2).
        """
        if not wide:
            return [task.bound for task in tasks]
        for link in wide:
            link.free, link.left, link.total = link.limit, len(link.crossing), math.fsum(link.crossing.values())
        rates = [-1.0] * len(tasks)
        for place, task in enumerate(tasks):
            task.place = place
        stops = [(task.bound, -1 - place) for place, task in enumerate(tasks)]
        stops += [(link.free / link.total, place) for place, link in enumerate(wide) if link.left]
        heapify(stops)
        rising = len(tasks)
        while rising:
            level, place = heappop(stops)
            for stopped in self.stopping(level, place, wide, rates, stops):
                rates[stopped] = level
                rising -= 1
                for link, weight in self.loads(tasks[stopped], tasks[stopped].moving):
                    if link.full:
                        link.free = max(link.free - weight * level, 0.0)
                        link.total -= weight
                        link.left -= 1
        return rates

    def stopping(
        self, level: float, place: int, wide: list[_Link], rates: list[float], stops: list[tuple[float, int]]
    ) -> list[int]:
        """Return the places of the flows that stop rising at a rate: one flow (negative place) or all rising ones on a link."""
        if place < 0:
            return [-1 - place] if rates[-1 - place] < 0.0 else []
        link = wide[place]
        if not link.left:
            return []
        if link.free > level * link.total * (1 + NEARLY):  # some have stopped since it was found
            heappush(stops, (link.free / link.total * (1 - NEARLY / 2), place))
            return []
        some = [(task.place, weight) for task, weight in link.crossing.items() if rates[task.place] < 0.0]
        rising = math.fsum(weight for _, weight in some)
        if link.free / rising > level:
            heappush(stops, (link.free / rising, place))
            return []
        return [number for number, _ in some]

    def overfilled(self, tasks: list[_Running], rates: list[float]) -> bool:
        """Try rates (bytes/s); return whether they overfill links not yet marked full, and mark these as full and changed."""
        over = False
        before = [task.tried for task in tasks]
        for task, rate in zip(tasks, rates, strict=True):
            more = rate - task.tried
            task.tried = rate
            if more:
                for link, weight in self.loads(task, task.moving):
                    link.used += weight * more
                    over |= link.used > link.limit * (1 + SAME) and not link.full
        if not over:
            return False
        found = False
        for task, old in zip(tasks, before, strict=True):
            if task.tried != old:
                for link, _ in self.loads(task, task.moving):
                    if link.used > link.limit * (1 + SAME) and not link.full:
                        link.full = found = True
                        self.changed.append(link)
        return found

    def settle(self, task: _Running, now: float) -> None:
        """Give a flow its new rate from time `now` (s) on, unless the change is within rounding."""
        rate, time = task.tried, task.lands
        # a rate that differs by rounding alone would move the end by some digits, and cost an event
        if abs(rate - task.rate) <= SAME * task.rate:
            return
        if rate < task.bound or time == math.inf:
            # what nothing has slowed so far has moved at its bound, awake or asleep
            task.left -= (task.rate if time == math.inf else task.bound) * (now - task.since)
            task.since, task.lands = now, math.inf
            time = now + max(task.left, 0.0) / rate
        task.rate, task.call = rate, LAND
        self.push(task, max(time, now))

    # losses to communication that overlaps

    def overlap(self, task: _Running, now: float) -> None:
        """Begin a task's use of SMs and memory bandwidth; note the losses so far of the ranks on which it computes."""
        job, event = task.job, task.leader
        idle = job.idle[task.kind]
        while event >= 0:
            number, own = job.task[event], job.rank_of(event)
            kind = job.kind[number]
            if job.taking[number]:
                task.takes.append((own, job.sms[kind], job.memory[kind]))
            if job.losing[number] and idle:
                part = min(job.compute[kind] / idle, 1.0)
                memory = min(job.bound[kind] / idle, part)
                task.losses.append(_Loss(task, own, part - memory, memory))
            event = job.mate[event]
        self.take(task, 1.0, now)
        for loss in task.losses:
            loss.rank.advance(now)
            loss.before, loss.before_bound = loss.rank.lost, loss.rank.lost_bound

    def take(self, task: _Running, sign: float, now: float) -> None:
        """Add (sign 1) or remove (-1) a task's shares of its ranks; reschedule tasks that make up for losses there."""
        for rank, sms, memory in task.takes:
            rank.advance(now)
            rank.sms += sign * sms
            rank.memory += sign * memory
            # kernels that memory bounds lose the larger of both shares; of neither can all be taken
            asked = max(rank.sms, rank.memory)
            rank.taken = min(rank.sms, MOST) if rank.sms > LEAST else 0.0
            rank.taken_bound = min(asked, MOST) if asked > LEAST else 0.0
            for loss in rank.late:
                if loss.end > now:  # else it is over on this rank, and waits for others
                    loss.end = now + max(loss.left, 0.0) / loss.speed()
                    self.wait_late(loss.task)

    def wait_late(self, task: _Running) -> None:
        """Schedule the end of a task for the time when its losses are made up for on all of its ranks."""
        self.push(task, max(loss.end for loss in task.losses))

    def loses(self, task: _Running, now: float) -> bool:
        """Return whether a task, at its end, has lost computation to communication; if so, begin to make up for the loss."""
        late = False
        for loss in task.losses:
            rank = loss.rank
            rank.advance(now)
            loss.left = loss.other * (rank.lost - loss.before) + loss.memory * (rank.lost_bound - loss.before_bound)
            loss.end = now
            late |= loss.left > 0.0
        if not late:
            return False
        for loss in task.losses:
            if loss.left > 0.0:
                loss.end = now + max(loss.left, 0.0) / loss.speed()
            # also where nothing was lost on this rank: the task ends with the slowest of its ranks
            loss.rank.late[loss] = None
        task.late, task.since, task.call = True, now, OVER
        self.wait_late(task)
        return True

    def no_longer_late(self, task: _Running, now: float) -> None:
        """Note by how much a task became longer, now that it has made up for its losses, and remove it from its ranks."""
        event = task.leader
        while event >= 0:
            task.job.longer[event] = now - task.since
            event = task.job.mate[event]
        for loss in task.losses:
            loss.rank.advance(now)
            del loss.rank.late[loss]

    def step(self, number: int) -> Record:
        """Return the times of the step that job `number` has just ended."""
        job = self.jobs[number]
        slowed = None
        if job.slowing:
            slowed = np.zeros(job.events)
            slowed[list(job.longer)] = list(job.longer.values())
        return Record(
            job.tasks,
            "loop",
            job.begin,
            job.over,
            np.array(job.start),
            np.array(job.end),
            np.array(job.asked),
            np.array(job.cause, np.int32),
            np.array(job.leader, np.int32),
            np.array(job.wait_event, np.int32),
            np.array(job.wait_asked),
            job.segment_ends,
            slowed,
            self.events,
            self.solves,
        )
