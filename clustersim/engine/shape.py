"""A step as integers: which passes each rank runs, the tasks of each pass, and what each task waits for.

A `Shape` says nothing about seconds. It is made from the programs of the rank cells (`engine/program.py`); the loops
(`engine/loop.py`, `engine/_loop.c`) and SimPy (`engine/simulate.py`) execute it. No graph of the step is stored: what a
task waits for follows from its template, its rank and the microbatch of its pass.

An *event* is one execution of one task. The events of pass p are numbered from `pass_event[p]`, in the order in which its
rank launches them; tasks that only wait have none.

Example: a rank with the passes F0 and B0, whose templates are (receive, compute, send) and (receive, compute), has the tasks
0 to 2. The receive is a wait of the computation. Its events are 0 (compute F0), 1 (send of F0) and 2 (compute B0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Ints, distinct_rows, offsets
from clustersim.engine.fabric import HOST
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    UPDATE,
    GroupCell,
    Layout,
    LayoutHandle,
    LayoutTask,
    OwnTask,
    PassMessage,
    Program,
    Ready,
)
from clustersim.errors import DeadlockError

RUN, JOIN, LAUNCH, BUSY, MARK, DRAIN = range(6)
"""What a task does: compute; only wait; start something on another stream; launch kernels on the host; mark how far the host
is; let the host wait for its GPU."""
MESSAGE, STREAM, HOST_MARK, OWN = range(4)
"""What a wait is for: a message; tasks launched on a stream; the last mark of the host; an earlier task of the same pass."""


@dataclass(frozen=True)
class Shape:
    """The passes, tasks and waits of all rank cells of a job. Tasks and passes stand rank after rank."""

    # per task
    op: Ints
    """What the task does: RUN, JOIN, LAUNCH, BUSY, MARK or DRAIN."""
    stream: Ints
    """Number of the stream, by its place in `streams`."""
    group: Ints
    """Group that starts the task together; -1 where the rank starts it alone."""
    free: Ints
    """Whether the task begins when what it waits for is over, and not after the previous one of its stream."""
    gives: Ints
    """Message that is complete when the task ends, for microbatch -1; -1 for none."""
    loses: Ints
    """Whether communication on other streams slows the task: it computes, and is not part of the update."""
    event: Ints
    """Place of the event among those of its pass; -1 for tasks without one."""
    stage: Ints
    """Global stage; -1 for what belongs to none."""
    wait: Ints
    """First wait of each task; one entry more than tasks."""
    # per wait
    what: Ints
    which: Ints
    """Message for microbatch -1, stream, or place of the own task in its template."""
    first: Ints
    """Waits for the first `first` tasks of the stream in the step; 0: for all so far."""
    but: Ints
    """Number of the last tasks of the stream that are not waited for."""
    wait_stage: Ints
    """Global stage that a message is for; -1 for other waits."""
    # per pass
    rank_pass: Ints
    """First pass of each rank, and the number of passes."""
    pass_task: Ints
    """First task of each pass …"""
    pass_end: Ints
    """… and the one after its last."""
    microbatch: Ints
    """-1 outside the passes of microbatches."""
    pass_event: Ints
    """First event of each pass, and the number of events."""
    pass_wait: Ints
    """First wait of each pass among all that the step executes, and their number."""
    # per rank and stream, per event, per meeting
    launched: Ints
    """First launch of each rank and stream (rank-major), and the number of launches."""
    event_meeting: Ints
    """Meeting of each event: the ranks of a group start a task together; -1 for none. Empty if there are no meetings."""
    meeting_size: Ints
    """Rank cells of each meeting …"""
    meeting_slot: Ints
    """… and its slot: the tasks that start together."""
    messages: int
    """Number of messages, microbatches included."""
    slots: tuple[tuple[int, ...], ...]
    """Tasks that start together, one tuple for each combination; slot len(op) + i of `meeting_slot`."""
    streams: tuple[str, ...]
    rank_task: Ints
    """First task of each rank, and the number of tasks."""
    programs: Sequence[Program]
    """What it is made of, by rank cell."""

    @property
    def ranks(self) -> int:
        """Number of rank cells."""
        return len(self.rank_pass) - 1

    @property
    def events(self) -> int:
        """Number of events of a step."""
        return int(self.pass_event[-1])

    def __len__(self) -> int:
        return self.events

    @cached_property
    def pass_rank(self) -> Ints:
        """Rank cell of each pass."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.rank_pass))

    @cached_property
    def event_pass(self) -> Ints:
        """Pass of each event."""
        return np.repeat(np.arange(len(self.microbatch), dtype=np.int32), np.diff(self.pass_event))

    @cached_property
    def event_task(self) -> Ints:
        """Task of each event."""
        own = np.flatnonzero(self.event >= 0).astype(np.int32)
        before = np.searchsorted(own, self.pass_task)
        place = np.repeat(before - self.pass_event[:-1], np.diff(self.pass_event))
        place += np.arange(self.events)
        return own[place]

    @cached_property
    def event_rank(self) -> Ints:
        """Rank cell of each event."""
        found: Ints = self.pass_rank[self.event_pass]
        return found

    @cached_property
    def event_microbatch(self) -> Ints:
        """Microbatch of each event; -1 outside the passes of microbatches."""
        found: Ints = self.microbatch[self.event_pass]
        return found

    @cached_property
    def task_rank(self) -> Ints:
        """Rank cell of each task."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.rank_task))

    def place(self, task: int) -> tuple[int, int]:
        """Return the rank of a task, and its place among the tasks of the rank's layout."""
        rank = int(np.searchsorted(self.rank_task, task, side="right")) - 1
        return rank, task - int(self.rank_task[rank])

    def slot(self, event: int) -> int:
        """Return the slot of an event."""
        meeting = int(self.event_meeting[event]) if len(self.event_meeting) else -1
        return int(self.event_task[event] if meeting < 0 else self.meeting_slot[meeting])

    def stuck(self, task: int, microbatch: int) -> DeadlockError:
        """Return the error of a step that cannot end because a task cannot begin."""
        rank, place = self.place(task)
        program = self.programs[rank]
        part, key = next(key for key, places in program.layout.templates.items() if place in places)
        what = part
        if isinstance(key, tuple):
            letter, chunk, *rest = key
            what = f"{part} {(letter, program.stage(chunk), *rest)}"
        return DeadlockError(f"deadlock: rank cell {rank} cannot begin {what} of microbatch {microbatch}", task)


def shape(programs: Sequence[Program], members: Mapping[GroupCell, int]) -> Shape:
    """Return the shape of one step. members: number of rank cells of each group.

    Raises DeadlockError when the ranks of a group do not all come to the same tasks.
    """
    return _ShapeWriter(members).written(programs)


class _LayoutColumns(NamedTuple):
    """The columns of a layout: what all of its ranks have, and the places at which each has its own groups and messages."""

    tasks: NDArray[np.int32]
    """Rows op, stream, free, loses, event, chunk; a column a task."""
    waits: NDArray[np.int32]
    """Rows what, which, first, but, chunk; a column a wait."""
    wait: Ints
    """First wait of each task."""
    begins: Ints
    """First task of each template …"""
    ends: Ints
    """… and the one after its last."""
    groups: Mapping[str, Ints]
    """Tasks that ranks of a family start together."""
    gives: Sequence[tuple[int, PassMessage]]
    """Tasks that send a message."""
    receives: Sequence[tuple[int, PassMessage]]
    """Waits for one."""


class _ShapeWriter:
    """Collects the columns of a Shape."""

    def __init__(self, members: Mapping[GroupCell, int]) -> None:
        self.members = members
        self.streams: dict[str, int] = {COMPUTE: 0, HOST: 1}
        self.groups: dict[GroupCell, int] = {}
        self.sent: dict[tuple[str, int, int, int], int] = {}
        """Number of each message, by family, group cell, stage and number in its pass."""
        self.microbatches = 1
        """Messages of each pair and stage: one per microbatch, and one outside the passes of microbatches."""

    def written(self, programs: Sequence[Program]) -> Shape:
        orders = self.orders(programs)
        self.microbatches = 2 + max(int(which.max()) for _, which in orders)
        ranks: dict[int, list[int]] = {}
        for rank, program in enumerate(programs):
            ranks.setdefault(id(program.layout), []).append(rank)
        columns = {of: self.columns(programs[own[0]].layout) for of, own in ranks.items()}
        each = [columns[id(program.layout)] for program in programs]
        rank_task = offsets(np.array([len(one.wait) for one in each], np.int64))
        rank_wait = offsets(np.array([one.waits.shape[1] for one in each], np.int64))
        tasks, waits = np.empty((6, rank_task[-1]), np.int32), np.empty((5, rank_wait[-1]), np.int32)
        group, gives = np.full((2, rank_task[-1]), -1, np.int32)
        wait = np.empty(rank_task[-1] + 1, np.int32)
        wait[-1] = rank_wait[-1]
        for of, own in ranks.items():
            one = columns[of]
            task = rank_task[own][:, None] + np.arange(len(one.wait))
            begun = rank_wait[own][:, None]
            tasks[:, task], waits[:, begun + np.arange(one.waits.shape[1])] = one.tasks[:, None], one.waits[:, None]
            wait[task] = begun + one.wait
            some = [programs[rank] for rank in own]
            for family, places in one.groups.items():
                group[task[:, places]] = np.array([self.group(family, program) for program in some])[:, None]
            for place, message in one.gives:
                gives[task[:, place]] = self.messages(message, "send", some)
            for place, message in one.receives:
                waits[1, begun[:, 0] + place] = self.messages(message, "receive", some)
        stages = [np.array([*program.own, -1], np.int32) for program in programs]  # chunk -1 is the last entry
        own_stage, first = np.concatenate([np.empty(0, np.int32), *stages]), offsets(np.array([*map(len, stages)]))

        def stage(chunk: Ints, rank: Ints) -> Ints:
            found: Ints = own_stage[np.where(chunk < 0, first[rank + 1] - 1, first[rank] + chunk)]
            return found

        rank_of_task = np.repeat(np.arange(len(programs)), np.diff(rank_task))
        rank_of_wait = np.repeat(np.arange(len(programs)), np.diff(rank_wait))
        op, stream, free, loses, event, chunk = tasks
        starts = [begin + one.begins[number] for begin, one, (number, _) in zip(rank_task, each, orders, strict=False)]
        ends = [begin + one.ends[number] for begin, one, (number, _) in zip(rank_task, each, orders, strict=False)]
        pass_task, pass_end = (np.concatenate(one).astype(np.int32) for one in (starts, ends))
        has = offsets((event >= 0).astype(np.int64))
        begun, ended = (np.bincount(one, minlength=len(op) + 1) for one in (pass_task, pass_end))
        used = np.cumsum(begun - ended)[:-1]  # how often each task is executed
        launches = np.isin(op, (LAUNCH, BUSY, DRAIN))
        count = np.bincount(
            rank_of_task[launches] * len(self.streams) + stream[launches],
            used[launches],
            len(programs) * len(self.streams),
        )
        none = np.zeros(0, np.int32)
        draft = Shape(
            op=op,
            stream=stream,
            group=group,
            free=free,
            gives=gives,
            loses=loses,
            event=event,
            stage=stage(chunk, rank_of_task),
            wait=wait,
            what=waits[0],
            which=waits[1],
            first=waits[2],
            but=waits[3],
            wait_stage=stage(waits[4], rank_of_wait),
            rank_pass=offsets(np.array([len(which) for _, which in orders], np.int64)),
            pass_task=pass_task,
            pass_end=pass_end,
            microbatch=np.concatenate([which for _, which in orders]).astype(np.int32),
            pass_event=offsets(has[pass_end] - has[pass_task]),
            pass_wait=offsets((wait[pass_end] - wait[pass_task]).astype(np.int64)),
            launched=offsets(count.astype(np.int64)),
            event_meeting=none,
            meeting_size=none,
            meeting_slot=none,
            messages=len(self.sent) * self.microbatches,
            slots=(),
            streams=tuple(self.streams),
            rank_task=rank_task,
            programs=programs,
        )
        group_size = np.array([self.members[one] for one in self.groups], np.int32)
        return _with_meetings(draft, group_size) if len(group_size) else draft

    @staticmethod
    def orders(programs: Sequence[Program]) -> list[tuple[Ints, Ints]]:
        """Return the template of each pass of each rank, and its microbatch; replicas share their rows."""
        known: dict[object, tuple[Ints, Ints]] = {}
        found = []
        for program in programs:
            key = id(program.row), id(program.layout), program.own, *program.once
            if key not in known:
                known[key] = _order(program)
            found.append(known[key])
        return found

    def columns(self, layout: Layout) -> _LayoutColumns:
        """Return the columns that all ranks of a layout share."""
        tasks, waits, wait = list[tuple[int, ...]](), list[tuple[int, ...]](), list[int]()
        groups: dict[str, list[int]] = {}
        gives, receives = list[tuple[int, PassMessage]](), list[tuple[int, PassMessage]]()
        for places in layout.templates.values():
            event = 0
            for place in places:
                task = layout.tasks[place]
                op = _op(task)
                own = event if op not in (JOIN, DRAIN) else -1
                event += own >= 0
                loses = op == RUN and task.kind not in UPDATE
                number = self.streams.setdefault(task.stream, len(self.streams))
                tasks.append((op, number, task.free, loses, own, task.chunk))
                if task.family is not None:
                    groups.setdefault(task.family, []).append(place)
                if task.gives is not None:
                    gives.append((place, task.gives))
                wait.append(len(waits))
                for handle in task.waits:
                    if isinstance(handle, PassMessage):
                        receives.append((len(waits), handle))
                    waits.append(self.awaited(handle))
        return _LayoutColumns(
            np.array(tasks, np.int32).reshape(-1, 6).T,
            np.array(waits, np.int32).reshape(-1, 5).T,
            np.array(wait, np.int64),
            np.array([places.start for places in layout.templates.values()], np.int64),
            np.array([places.stop for places in layout.templates.values()], np.int64),
            {family: np.array(places) for family, places in groups.items()},
            gives,
            receives,
        )

    def group(self, family: str, program: Program) -> int:
        """Return the number of a rank's group; -1 where the rank cell is alone in it."""
        group = family, program.cells[family]
        return self.groups.setdefault(group, len(self.groups)) if self.members[group] > 1 else -1

    def messages(self, one: PassMessage, side: str, programs: Sequence[Program]) -> list[int]:
        """Return the number of a message for microbatch -1, for each of several ranks of a layout."""
        family, chunk, ahead, number = one
        place, sent, each = f"{family}/{side}", self.sent, self.microbatches
        every = [(family, own.cells[place], own.own[chunk] + ahead, number) for own in programs]
        return [sent.setdefault(message, len(sent)) * each for message in every]

    def awaited(self, handle: LayoutHandle) -> tuple[int, int, int, int, int]:
        """Return a wait as a column: what, which (of messages, each rank has its own), first, but, chunk."""
        if isinstance(handle, PassMessage):
            return MESSAGE, -1, 0, 0, handle.chunk
        if isinstance(handle, Ready):
            return HOST_MARK, 0, 0, 0, -1
        if isinstance(handle, OwnTask):
            return OWN, handle.place, 0, 0, -1
        return STREAM, self.streams.setdefault(handle.stream, len(self.streams)), handle.first or 0, handle.but, -1


def _op(task: LayoutTask) -> int:
    if task.free:
        return LAUNCH
    if task.stream == COMPUTE:
        return RUN if task.kind else JOIN
    if task.stream == HOST:
        return {READY: MARK, SYNCHRONISE: DRAIN}.get(task.kind, BUSY)
    return LAUNCH


def _order(program: Program) -> tuple[Ints, Ints]:
    """Return the template of each pass of a rank, by its place in its layout, and its microbatch."""
    number = {key: place for place, key in enumerate(program.layout.templates)}
    if program.layout.pairing:
        passes = list(program.passes())
        found, microbatch = [number[key] for key, _ in passes], [one for _, one in passes]
        return np.array(found), np.array(microbatch)
    chunk = {stage: place for place, stage in enumerate(program.own)}
    steps = {
        (stage, one[0]): number.get(("steps", (one[0], place)), -1)
        for stage, place in chunk.items()
        for _, one in number
        if one
    }
    stages, letters, microbatches = zip(*program.row, strict=True) if program.row else ((), (), ())
    row = [0, *map(steps.__getitem__, zip(stages, letters, strict=True)), len(number) - 1]
    for action, one in program.once.items():
        row[1 + program.row.index(action)] = number["special", one]
    return np.array(row), np.array([-1, *microbatches, -1])


def _with_meetings(draft: Shape, group_size: Ints) -> Shape:
    """Return a shape with its meetings: which tasks start together at each call of each group. Raises DeadlockError."""
    task = draft.event_task
    event = np.flatnonzero(draft.group[task] >= 0)
    group, rank = draft.group[task[event]].astype(np.int64), draft.event_rank[event]
    order = np.lexsort((event, rank, group))
    event, group, rank = event[order], group[order], rank[order]
    new = np.append(True, (np.diff(group) != 0) | (np.diff(rank) != 0))
    start = np.flatnonzero(new)
    call = np.arange(len(event)) - np.repeat(start, np.diff(np.append(start, len(event))))
    order = np.lexsort((rank, call, group))
    event, group, call = event[order], group[order], call[order]
    first = np.flatnonzero(np.append(True, (np.diff(group) != 0) | (np.diff(call) != 0)))
    size = np.diff(np.append(first, len(event)))
    short = np.flatnonzero(size != group_size[group[first]])
    if len(short):
        one = event[first[short[0]]]
        raise draft.stuck(int(task[one]), int(draft.event_microbatch[one]))
    slot, slots = np.empty(len(first), np.int64), list[tuple[int, ...]]()
    for count in np.unique(size).tolist():
        some = np.flatnonzero(size == count)
        rows = task[event[first[some][:, None] + np.arange(count)]].astype(np.int64)
        unique, of = distinct_rows(rows)
        slot[some] = len(draft.op) + len(slots) + of
        slots += [tuple(row) for row in rows[unique].tolist()]
    meeting = np.full(draft.events, -1, np.int32)
    meeting[event] = np.repeat(np.arange(len(first)), size)
    return replace(
        draft,
        event_meeting=meeting,
        meeting_size=size.astype(np.int32),
        meeting_slot=slot.astype(np.int32),
        slots=tuple(slots),
    )
