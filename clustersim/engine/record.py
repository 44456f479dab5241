"""Result of executing a step: start and end of every event, from either engine, and the spans derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, entries, lengths, offsets
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import COMPUTE, READY, Handle, OwnTask, Span, Wait
from clustersim.engine.shape import Shape
from clustersim.engine.times import Tasks

_ROUNDING = 1e-12  # share of the time: a shorter wait is the rounding error of two sums


class Waits(NamedTuple):
    """Waits of compute streams as columns (waits,), rank cell after rank cell in the order of their passes; times in seconds."""

    rank: Ints
    """Rank cell that waits."""
    kind: Ints
    """Awaited message or stream, as an index into `kinds`."""
    stage: Ints
    """Global stage that a message is for; -1 for other waits."""
    microbatch: Ints
    """Microbatch of a message; -1 for other waits and outside the passes of microbatches."""
    begin: Floats
    """Time when the rank begins to wait."""
    end: Floats
    """End of the event that the wait is for; before `begin` if the rank need not wait."""
    sent: Floats
    """Time when the sender of a message reached it; for other waits the start of the step."""
    event: Ints
    """Event that the wait is for."""
    kinds: tuple[str, ...]
    """Names of waits, such as `receive`, `send` or a stream."""


@dataclass(frozen=True)
class Record:
    """One executed step of a job. Columns are by event, unless stated otherwise; times in seconds of the simulation."""

    tasks: Tasks
    player: str
    """Name of the engine, `loop` or `simpy`."""
    begin: float
    """Start of the step."""
    end: float
    """End of the step's last event."""
    starts: Floats
    """Start of each event."""
    ends: Floats
    """End of each event."""
    requested: Floats
    """Time when the rank reached the task."""
    cause: Ints
    """Event whose end allowed the event to start; -1: the start of the step."""
    leader: Ints
    """Representative of the events that start together; the event itself if its rank starts it alone."""
    wait_event: Ints
    """Event that each executed wait was for, numbered as in `Shape.pass_wait` (waits,); -1 for none."""
    wait_begin: Floats
    """Time when each executed wait began (waits,)."""
    segment_ends: Mapping[int, list[float]]
    """{leader: ends of its half segments} for events that contended for a link; others ended as on an idle fabric."""
    slowed: Floats | None
    """Seconds by which overlapping communication made each event longer; None if nothing can be slowed."""
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
        """Spans of all events, and of waits that are longer than rounding, sorted by end."""
        spans = [*self.spans_of(np.arange(self.shape.events)), *self._waited()]
        spans.sort(key=lambda span: span.end)
        return spans

    @cached_property
    def waits(self) -> Waits:
        """All waits of compute streams for messages, streams and the host, whether the rank had to wait or not."""
        shape, (kinds, kind) = self.shape, self.wait_kinds
        stage, wait = shape.wait_stage, shape.executed_wait
        is_shown = np.array([bool(name) for name in kinds], bool)
        rows = np.flatnonzero((self.wait_event >= 0) & is_shown[kind[wait]])
        row_pass = np.arange(len(shape.microbatch)).repeat(lengths(shape.pass_wait))[rows]
        wait, event = wait[rows], self.wait_event[rows]
        sent = np.where(stage[wait] >= 0, self.requested[event], self.begin)
        return Waits(
            shape.pass_rank[row_pass],
            kind[wait],
            stage[wait],
            np.where(stage[wait] >= 0, shape.microbatch[row_pass], -1),
            self.wait_begin[rows],
            self.ends[event],
            sent,
            event,
            kinds,
        )

    @property
    def wait_kinds(self) -> tuple[tuple[str, ...], Ints]:
        """Distinct names of waits, empty for waits that are not shown, and the index of each wait's name (waits,)."""
        return self.tasks.once("waits", lambda: _wait_kinds(self.shape))

    @cached_property
    def waited(self) -> Ints:
        """Rows of `waits` that are longer than rounding."""
        return np.flatnonzero(self.waits.end - self.waits.begin > _ROUNDING * self.end)

    def spans_of(self, events: Ints) -> list[Span]:
        """Return the span of each event with a number in `events`."""
        shape = self.shape
        columns = (
            shape.event_rank,
            self.leader,
            shape.event_task,
            shape.event_microbatch,
            self.requested,
            self.starts,
            self.ends,
        )
        rows = zip(*(column[events].tolist() for column in columns), strict=True)
        return [self._span(*row) for row in rows]

    def _span(
        self, rank: int, leader: int, number: int, microbatch: int, requested: float, start: float, end: float
    ) -> Span:
        """Return the span of one event of task `number`. leader: its representative event."""
        tasks = self.tasks
        task, stage = self.shape.task(number), int(self.shape.stage[number])
        shown_microbatch = microbatch if task.stream == COMPUTE or task.gives else -1
        activity, ends = tasks.activity(number), self.segment_ends.get(leader)
        columns = task.stream, task.kind, stage, shown_microbatch, requested, start, end
        return Span(rank, *columns, activity, ends, tasks.carried(number))

    def _waited(self) -> list[Span]:
        """Return the spans of all waits that are longer than rounding."""
        waits, rows = self.waits, self.waited
        begun = np.where(waits.stage >= 0, np.maximum(waits.begin, waits.sent), waits.begin)
        columns = (waits.rank, waits.stage, waits.microbatch, waits.begin, np.minimum(begun, waits.end), waits.end)
        values = zip(waits.kind[rows].tolist(), *(row[rows].tolist() for row in columns), strict=True)
        return [
            Span(rank, "wait", waits.kinds[kind], stage, microbatch, requested, start, end, None, None)
            for kind, rank, stage, microbatch, requested, start, end in values
        ]


def _wait_name(handle: Handle) -> str:
    """Return the name of spans that wait for a handle: `send`, `receive`, HOST, or a stream; empty if they are not shown."""
    if isinstance(handle, Wait):
        return "send" if handle.stream.startswith("p2p") else HOST if handle.stream == READY else handle.stream
    return handle.kind if isinstance(handle, OwnTask) else "receive"


def _wait_kinds(shape: Shape) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct names of waits, and the index of each wait's name among them, in the order of `shape.wait` (waits,)."""
    kinds: dict[str, int] = {}
    line_kinds = [[kinds.setdefault(_wait_name(handle), len(kinds)) for handle in task.waits] for task in shape.lines]
    first = offsets(np.array([*map(len, line_kinds)], np.int64))
    return tuple(kinds), np.array([*chain.from_iterable(line_kinds)], np.int32)[entries(first, shape.line)]
