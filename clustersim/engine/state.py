"""State of a job's step while an engine in Python executes it, shared by the plain loop and SimPy."""

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
    """Return a column of a shape, without a copy, as a sequence with faster access to single values than an array."""
    return cast(Sequence[int], column.data)


class StepState:
    """Columns of a job that are read one value at a time, named as in Shape, and the times of its step, named as in Record.

    `asked` and `wait_asked` are its `requested` and `wait_begin`.
    """

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
        """Reset the times for a step that begins at `begin` seconds. unknown: start and end of each event until it has run."""
        events, waits = self.shape.events, int(self.shape.pass_wait[-1])
        self.begin = begin
        self.start, self.end = array("d", [unknown]) * events, array("d", [unknown]) * events
        self.asked, self.cause = array("d", [begin]) * events, array("i", [-1]) * events
        self.task, self.leader = array("i", [-1]) * events, array("i", range(events))
        self.wait_event, self.wait_asked = array("i", [-1]) * waits, array("d", [0.0]) * waits
        self.sender = array("i", [-1]) * self.shape.messages
        """Event that sends each message; -1 until that event is launched."""
        self.launched: dict[tuple[int, int], list[int]] = defaultdict(list)
        """{(rank, stream): events launched so far}"""
        self.segment_ends: dict[int, list[float]] = {}
        """{first of the events that start together: ends of its half segments}, for events that contended for a link."""
        self.slowed = SlowedFabric(self.fabric.env, self.losses) if self.losses else None

    def so_far(self, rank: int, wait: int) -> int | None:
        """Return the last event for which a wait of kind STREAM waits now; None if it waits for none.

        wait: index of the wait, which waits for the stream's launches so far, but for the last `but`, or for its `first` ones.
        """
        but: int = self.but[wait]
        first: int = self.first[wait]
        launched = self.launched[rank, self.which[wait]]
        if len(launched) <= but:
            return None
        return launched[min(first, len(launched)) - 1] if first else launched[len(launched) - 1 - but]

    def run(self, events: Sequence[int], kind: int, done: Callable[[], None]) -> None:
        """Start the activity of events that start together, and call `done` at its end, which other activities may delay.

        kind: index of the activity in `activities`.
        """

        def over(segment_ends: list[float] | None) -> None:
            """Store the ends of segments that contended for links, and call `done`."""
            if segment_ends is not None:
                self.segment_ends[events[0]] = segment_ends
            done()

        end: Done = over
        if self.slowed is not None:
            tasks = [self.task[event] for event in events]
            ranks = [self.task_rank[task] for task in tasks]
            idle = self.activities[kind].timing.idle
            end = self.slowed.begin(events[0], zip(tasks, ranks, strict=True), self.kind, idle, over)
        self.fabric.start(self.activities[kind], end)

    def record(self, engine: str, end: float, events: int) -> Record:
        """Return the record of the step, which ended at `end` seconds. events: number of events that the engine has processed."""
        leader, slowed = np.array(self.leader, np.int32), None
        if self.slowed is not None:
            slowed = np.zeros(self.shape.events)
            slowed[list(self.slowed.longer)] = list(self.slowed.longer.values())
            slowed = slowed[leader]
        times = np.array(self.start), np.array(self.end), np.array(self.asked)
        waits = np.array(self.wait_event, np.int32), np.array(self.wait_asked)
        columns = *times, np.array(self.cause, np.int32), leader, *waits
        totals = self.segment_ends, slowed, events, self.fabric.solves
        return Record(self.tasks, engine, self.begin, end, *columns, *totals)
