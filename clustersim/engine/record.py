"""Result of executing a step: start and end of every event, from either engine, and the spans derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, entries, offsets, ranges
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import COMPUTE, READY, Handle, OwnTask, Span, Wait
from clustersim.engine.shape import Shape
from clustersim.engine.times import Tasks

_ROUNDING = 1e-12  # of the step: a shorter wait is the difference of two sums


class Waits(NamedTuple):
    """Waits of compute streams, one row per wait, rank after rank in the order of their passes."""

    rank: Ints
    kind: Ints
    """Index into `kinds`."""
    stage: Ints
    """Global stage that a message is for; -1 for other waits."""
    microbatch: Ints
    """-1 outside the passes of microbatches."""
    asked: Floats
    """Time when the rank begins to wait."""
    over: Floats
    """Time when the rank continues."""
    sent: Floats
    """Time when the sender of a message reached it; for other waits the start of the step."""
    event: Ints
    """Event that the wait is for."""
    kinds: tuple[str, ...]
    """Names of the kinds of waits."""


@dataclass(frozen=True)
class Record:
    """One step of a job with its tasks: seconds of the simulation, by event unless stated otherwise."""

    tasks: Tasks
    player: str
    """Name of the engine, `loop` or `simpy`."""
    begin: float
    end: float
    starts: Floats
    ends: Floats
    asked: Floats
    """Time when the rank reached the task."""
    cause: Ints
    """Event whose end allowed the task to start; -1: the start of the step."""
    leader: Ints
    """Representative event of all that start together."""
    wait_event: Ints
    """Event that each wait was for; -1 for none."""
    wait_asked: Floats
    """Time when each wait began."""
    segment_ends: Mapping[int, list[float]]
    """Ends of the half segments of tasks that shared a link, by their leader's event; others ran as if alone."""
    slowed: Floats | None
    """Seconds by which overlapping communication made each task longer; None if it slowed none."""
    events: int
    """Number of events that the whole simulation processed."""
    solves: int
    """Number of max-min problems that the whole simulation solved."""

    @property
    def shape(self) -> Shape:
        """Passes, tasks and waits of the step."""
        return self.tasks.shape

    @property
    def plan(self) -> Plan:
        """Plan of the step."""
        return self.tasks.plan

    @cached_property
    def spans(self) -> list[Span]:
        """Activities and waits of every rank cell, sorted by their end, without waits of zero length."""
        spans = [*self.done(np.arange(self.shape.events)), *self._waited()]
        spans.sort(key=lambda span: span.end)
        return spans

    @cached_property
    def waits(self) -> Waits:
        """Waits for messages, streams and the host, including zero-length ones."""
        shape = self.shape
        kinds, kind = self.tasks.once("waits", lambda: _kinds_of_waits(shape))
        stage = shape.wait_stage
        passes = np.arange(len(shape.microbatch))
        begin, end = shape.wait[shape.pass_task], shape.wait[shape.pass_end]
        which = ranges(begin, end)
        shown = np.array([bool(name) for name in kinds], bool)
        rows = np.flatnonzero((self.wait_event >= 0) & shown[kind[which]])
        of_pass = np.repeat(passes, end - begin)[rows]
        which, event = which[rows], self.wait_event[rows]
        sent = np.where(stage[which] >= 0, self.asked[event], self.begin)
        return Waits(
            shape.pass_rank[of_pass],
            kind[which],
            stage[which],
            np.where(stage[which] >= 0, shape.microbatch[of_pass], -1),
            self.wait_asked[rows],
            self.ends[event],
            sent,
            event,
            kinds,
        )

    @cached_property
    def waited(self) -> Ints:
        """Rows of `waits` that are longer than rounding."""
        return np.flatnonzero(self.waits.over - self.waits.asked > _ROUNDING * self.end)

    def done(self, events: Ints) -> list[Span]:
        """Return the spans of events."""
        shape = self.shape
        columns = (
            shape.event_rank,
            self.leader,
            shape.event_task,
            shape.event_microbatch,
            self.asked,
            self.starts,
            self.ends,
        )
        rows = zip(*(column[events].tolist() for column in columns), strict=True)
        return [self._span(*row) for row in rows]

    def _span(
        self, rank: int, leader: int, number: int, microbatch: int, asked: float, start: float, end: float
    ) -> Span:
        """Return the record of one task of a rank; times in seconds."""
        tasks = self.tasks
        task, stage = self.shape.task(number), int(self.shape.stage[number])
        which = microbatch if task.stream == COMPUTE or task.gives else -1
        activity, ends = tasks.activity(number), self.segment_ends.get(leader)
        own = task.stream, task.kind, stage, which, asked, start, end
        return Span(rank, *own, activity, ends, tasks.carried(number))

    def _waited(self) -> list[Span]:
        """Return the records of all waits longer than zero."""
        waits, long = self.waits, self.waited
        start = np.where(waits.stage >= 0, np.maximum(waits.asked, waits.sent), waits.asked)
        rows = (waits.rank, waits.stage, waits.microbatch, waits.asked, np.minimum(start, waits.over), waits.over)
        columns = zip(waits.kind[long].tolist(), *(row[long].tolist() for row in rows), strict=True)
        return [
            Span(rank, "wait", waits.kinds[kind], stage, microbatch, asked, begun, over, None, None)
            for kind, rank, stage, microbatch, asked, begun, over in columns
        ]


def _kind(handle: Handle) -> str:
    """Return the name of spans that wait for a handle; empty if they are not shown."""
    if isinstance(handle, Wait):
        return "send" if handle.stream.startswith("p2p") else HOST if handle.stream == READY else handle.stream
    return handle.kind if isinstance(handle, OwnTask) else "receive"


def _kinds_of_waits(shape: Shape) -> tuple[tuple[str, ...], Ints]:
    """Return the names of waits, and the name of each handle that tasks wait for, in order."""
    kinds: dict[str, int] = {}
    of_line = [[kinds.setdefault(_kind(handle), len(kinds)) for handle in task.waits] for task in shape.lines]
    first, flat = offsets(np.array([*map(len, of_line)], np.int64)), [kind for own in of_line for kind in own]
    return tuple(kinds), np.array(flat, np.int32)[entries(first, shape.line)]
