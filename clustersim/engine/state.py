"""State of a job's step while an engine in Python executes it: what the plain loop and SimPy have in common."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from clustersim.arrays import Ints
from clustersim.engine.fabric import Done, Fabric
from clustersim.engine.record import Record
from clustersim.engine.slowing import SlowedFabric
from clustersim.engine.times import LoopJob


def _view(column: Ints) -> Sequence[int]:
    """Return a column of a shape as a sequence whose single values are read faster than those of an array, without a copy."""
    return cast(Sequence[int], column.data)


class StepState:
    """Columns of a job that are read one value at a time, and the times of its step, by event unless stated otherwise."""

    def __init__(self, fabric: Fabric, job: LoopJob) -> None:
        """fabric: the links that the job shares."""
        self.fabric, self.shape, self.tasks, self.losses = fabric, job.shape, job.tasks, job.losses
        self.activities, shape = job.tasks.different, job.shape
        # lists are read fastest; columns of passes and events are long, and are not copied
        self.op, self.stream, self.free = shape.op.tolist(), shape.stream.tolist(), shape.free.tolist()
        self.gives, self.event, self.wait = shape.gives.tolist(), shape.event.tolist(), shape.wait.tolist()
        self.what, self.which = shape.what.tolist(), shape.which.tolist()
        self.first, self.but = shape.first.tolist(), shape.but.tolist()
        self.kind, self.task_rank = job.held.kind.tolist(), shape.task_rank.tolist()
        self.rank_pass, self.pass_task, self.pass_end = map(_view, (shape.rank_pass, shape.pass_task, shape.pass_end))
        self.microbatch, self.meeting = _view(shape.microbatch), _view(shape.meetings.event)
        self.pass_event, self.pass_wait = _view(shape.pass_event), _view(shape.pass_wait)
        self.meeting_size, self.meeting_slot = _view(shape.meetings.size), _view(shape.meetings.slot)

    def reset(self, begin: float, unknown: float) -> None:
        """Forget the last step: the next begins at `begin` (s). unknown: start and end of each event until it has run."""
        events, waits = self.shape.events, int(self.shape.pass_wait[-1])
        self.begin = begin
        self.start, self.end = array("d", [unknown]) * events, array("d", [unknown]) * events
        self.asked, self.cause = array("d", [begin]) * events, array("i", [-1]) * events
        self.task, self.leader = array("i", [-1]) * events, array("i", range(events))
        self.wait_event, self.wait_asked = array("i", [-1]) * waits, array("d", [0.0]) * waits
        self.sender = array("i", [-1]) * self.shape.messages
        """Event that sends each message, once that is launched; else -1."""
        self.launched: dict[tuple[int, int], list[int]] = defaultdict(list)
        """{(rank, stream): events launched so far}"""
        self.segment_ends: dict[int, list[float]] = {}
        """{first of the events that run together: ends of the half segments}, for those that shared a link."""
        self.slowed = SlowedFabric(self.fabric.env, self.losses) if self.losses else None

    def so_far(self, rank: int, wait: int) -> int | None:
        """Return the last event that a wait for a stream is for, None if there is none."""
        but: int = self.but[wait]
        first: int = self.first[wait]
        done = self.launched[rank, self.which[wait]]
        if len(done) <= but:
            return None
        return done[min(first, len(done)) - 1] if first else done[len(done) - 1 - but]

    def run(self, events: Sequence[int], kind: int, done: Callable[[], None]) -> None:
        """Start an activity that events share, on links or where communication makes it longer, and call `done` at its end."""

        def over(segment_ends: list[float] | None) -> None:
            if segment_ends is not None:
                self.segment_ends[events[0]] = segment_ends
            done()

        end: Done = over
        if self.slowed is not None:
            own = [self.task[event] for event in events]
            ranks = [self.task_rank[task] for task in own]
            idle = self.activities[kind].idle
            end = self.slowed.begin(events[0], zip(own, ranks, strict=True), self.kind, idle, over)
        self.fabric.start(self.activities[kind], end)

    def record(self, engine: str, end: float, events: int) -> Record:
        """Return the step, which has ended at time `end` (s). events: number of events that the engine has processed."""
        leader, slowed = np.array(self.leader, np.int32), None
        if self.slowed is not None:
            slowed = np.zeros(self.shape.events)
            slowed[list(self.slowed.more)] = list(self.slowed.more.values())
            slowed = slowed[leader]
        times = np.array(self.start), np.array(self.end), np.array(self.asked)
        waits = np.array(self.wait_event, np.int32), np.array(self.wait_asked)
        columns = *times, np.array(self.cause, np.int32), leader, *waits
        own = self.segment_ends, slowed, events, self.fabric.solves
        return Record(self.tasks, engine, self.begin, end, *columns, *own)
