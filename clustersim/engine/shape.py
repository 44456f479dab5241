"""A step as integers: the passes of each rank, the tasks of each pass, and the conditions of each task.

A `Shape` says nothing about seconds. It is made from a plan (`engine/compile.py`); the loops
(`engine/_loop.c`, `engine/loop.py`) and SimPy (`engine/simulate.py`) execute it. No graph of the step is stored: what a
task waits for follows from its template, its rank and the microbatch of its pass.

An *event* is one execution of one task. The events of pass p are numbered from `pass_event[p]`, in the order in which its
rank launches them; tasks that only wait have none.

Example: a rank with the passes F0 and B0, whose templates are (receive, compute, send) and (receive, compute), has the tasks
0 to 2. The receive is a wait of the computation. Its events are 0 (compute F0), 1 (send of F0) and 2 (compute B0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask, distinct, distinct_rows, entries, lengths, offsets, ranges
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    UPDATE,
    Handle,
    Layout,
    OwnTask,
    PassMessage,
    Task,
)
from clustersim.errors import DeadlockError

RUN, JOIN, LAUNCH, BUSY, DRAIN = range(5)
"""Operation of a task: RUN computes; JOIN only waits; LAUNCH launches on another stream; BUSY launches kernels on the host, or
marks its progress; DRAIN is a wait of the host for its GPU."""
MESSAGE, STREAM, OWN = range(3)
"""Kind of a wait: for a message (MESSAGE), tasks launched on a stream (STREAM), or an earlier task of the same pass (OWN)."""


class Meetings(NamedTuple):
    """Meetings: common starts of a task by the ranks of a group, one for each call of each group.

    A slot is a combination of tasks that start together.
    """

    event: Ints
    """Meeting of each event, -1 for none (events,). Empty without meetings."""
    size: Ints
    """Number of rank cells of each meeting (meetings,)."""
    slot: Ints
    """Slot of each meeting: the number of tasks plus an index into `slots` (meetings,)."""
    slots: tuple[tuple[int, ...], ...]
    """Tasks of each slot."""


@dataclass(frozen=True)
class Shape:
    """Passes, tasks and waits of all rank cells of a job. Tasks and passes are ordered rank after rank."""

    # per task
    op: Ints
    """Operation of each task: RUN, JOIN, LAUNCH, BUSY or DRAIN."""
    stream: Ints
    """Stream, as an index into `streams`."""
    group: Ints
    """Group that starts the task together; -1 if the rank starts it alone."""
    free: Ints
    """Whether the task starts when its waits are over, and not after the previous task of its stream."""
    gives: Ints
    """Number of the message that is complete when the task ends, for microbatch -1; -1 without one."""
    loses: Ints
    """Whether communication on other streams slows the task, because it computes and is not part of the update."""
    event: Ints
    """Index of the event among those of its pass; -1 for tasks without one."""
    stage: Ints
    """Global stage; -1 without a stage."""
    wait: Ints
    """First wait of each task, followed by the number of waits (tasks + 1,)."""
    # per wait
    what: Ints
    """Kind of the wait: MESSAGE, STREAM or OWN."""
    which: Ints
    """Number of the message for microbatch -1, stream, or index of the earlier task in the template, by kind."""
    first: Ints
    """Number of the step's first tasks on the stream that are waited for; 0: all so far."""
    but: Ints
    """Number of the last tasks on the stream so far that are not waited for."""
    wait_stage: Ints
    """Global stage of a message; -1 for other waits."""
    # per pass
    rank_pass: Ints
    """First pass of each rank, followed by the number of passes."""
    pass_task: Ints
    """First task of each pass."""
    pass_end: Ints
    """Last task of each pass, plus 1."""
    microbatch: Ints
    """Microbatch of each pass; -1 outside the passes of microbatches."""
    pass_event: Ints
    """First event of each pass, followed by the number of events."""
    pass_wait: Ints
    """First wait of each pass, with waits counted once per execution, followed by the number of executed waits."""
    # per rank and stream, per group
    launched: Ints
    """First launch of rank r and stream s among those of a step, at r · streams + s, followed by the number of launches."""
    group_size: Ints
    """Number of rank cells of each group."""
    messages: int
    """Number of messages, microbatches included."""
    streams: tuple[str, ...]
    rank_task: Ints
    """First task of each rank, followed by the number of tasks."""
    lines: Sequence[Task]
    """Tasks of the layouts, one layout after the other."""
    line: Ints
    """Index of each task in `lines`."""
    plan: Plan
    """Plan that the shape was made from."""

    @property
    def ranks(self) -> int:
        """Number of rank cells."""
        return len(self.rank_pass) - 1

    @property
    def events(self) -> int:
        """Number of events of a step."""
        return int(self.pass_event[-1])

    @cached_property
    def pass_rank(self) -> Ints:
        """Rank cell of each pass."""
        return np.arange(self.ranks, dtype=np.int32).repeat(lengths(self.rank_pass))

    @cached_property
    def event_pass(self) -> Ints:
        """Pass of each event."""
        return np.arange(len(self.microbatch), dtype=np.int32).repeat(lengths(self.pass_event))

    @cached_property
    def event_task(self) -> Ints:
        """Task of each event."""
        own = np.flatnonzero(self.event >= 0).astype(np.int32)
        before = np.searchsorted(own, self.pass_task)
        place = (before - self.pass_event[:-1]).repeat(lengths(self.pass_event))
        place += np.arange(self.events)
        found: Ints = own[place]
        return found

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
        return np.arange(self.ranks, dtype=np.int32).repeat(lengths(self.rank_task))

    @cached_property
    def wait_rank(self) -> Ints:
        """Rank cell of each wait."""
        waits = lengths(self.wait[self.rank_task])
        return np.arange(self.ranks, dtype=np.int32).repeat(waits)

    @cached_property
    def executed_wait(self) -> Ints:
        """Wait of each executed wait, numbered as in `pass_wait`."""
        return ranges(self.wait[self.pass_task], self.wait[self.pass_end])

    @cached_property
    def meetings(self) -> Meetings:
        """Meetings of the step. Raises DeadlockError if the ranks of a group do not all reach the same tasks."""
        task = self.event_task
        event = np.flatnonzero(self.group[task] >= 0)
        group, rank = self.group[task[event]].astype(np.int64), self.event_rank[event]
        order = np.lexsort((event, rank, group))
        event, group, rank = event[order], group[order], rank[order]
        first, run = _runs(group, rank)
        call = np.arange(len(event)) - first[run]
        order = np.lexsort((rank, call, group))
        event, group, call = event[order], group[order], call[order]
        first, run = _runs(group, call)
        size = np.bincount(run)
        short = np.flatnonzero(size != self.group_size[group[first]])
        if len(short):
            one = event[first[short[0]]]
            raise self.stuck(int(task[one]), int(self.event_microbatch[one]))
        slot, slots = np.empty(len(first), np.int64), list[tuple[int, ...]]()
        for count in distinct(size).tolist():
            some = np.flatnonzero(size == count)
            rows = task[event[first[some][:, None] + np.arange(count)]].astype(np.int64)
            unique, of = distinct_rows(rows)
            slot[some] = len(self.op) + len(slots) + of
            slots += [tuple(row) for row in rows[unique].tolist()]
        meeting = np.full(self.events if len(event) else 0, -1, np.int32)
        meeting[event] = run
        return Meetings(meeting, size.astype(np.int32), slot.astype(np.int32), tuple(slots))

    @property
    def computing(self) -> Mask:
        """Whether each task is on a compute stream."""
        found: Mask = self.stream == 0
        return found

    @cached_property
    def updating(self) -> Mask:
        """Whether each task belongs to the parameter update."""
        found: Mask = np.array([task.kind in UPDATE for task in self.lines], bool)[self.line]
        return found

    @property
    def beside(self) -> Mask:
        """Whether each task is on a communication stream."""
        found: Mask = (self.op == LAUNCH) & (self.stream > 1)
        return found

    def task(self, number: int) -> Task:
        """Return the task with a number (as in `line`), as in its layout."""
        return self.lines[int(self.line[number])]

    def place(self, task: int) -> tuple[int, int]:
        """Return the rank of a task, and its index in the rank's layout."""
        rank = int(np.searchsorted(self.rank_task, task, side="right")) - 1
        return rank, task - int(self.rank_task[rank])

    def slot(self, event: int) -> int:
        """Return the slot of an event."""
        meeting = int(self.meetings.event[event]) if len(self.meetings.event) else -1
        return int(self.event_task[event] if meeting < 0 else self.meetings.slot[meeting])

    def stuck(self, task: int, microbatch: int) -> DeadlockError:
        """Return the error of a step that cannot end because a task of a microbatch cannot begin."""
        rank, place = self.place(task)
        program = self.plan.programs[self.plan.role[rank]]
        part, key = next(key for key, places in program.layout.templates.items() if place in places)
        what = part
        if isinstance(key, tuple):
            letter, chunk, *rest = key
            what = f"{part} {(letter, program.stage(chunk), *rest)}"
        return DeadlockError(f"deadlock: rank cell {rank} cannot begin {what} of microbatch {microbatch}", task)


class _Names:
    """Numbers of streams, rows of `Plan.groups`, families of messages, and messages as layouts name them."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {COMPUTE: 0, HOST: 1}
        self.groups: dict[str, int] = {}
        self.families: dict[str, int] = {}
        self.messages: dict[tuple[int, ...], int] = {}
        """{(row of `Plan.groups`, family, chunk, stages ahead, number in its pass): number of the message}"""

    def message(self, message: PassMessage, side: str) -> int:
        """Return the number of a message that a rank sends or receives. side: `send` or `receive`."""
        place = self.groups.setdefault(f"{message.family}/{side}", len(self.groups))
        row = place, self.families.setdefault(message.family, len(self.families)), *message[1:]
        return self.messages.setdefault(row, len(self.messages))

    def layout(self, layout: Layout) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return rows of the columns that all ranks of a layout share.

        Columns of tasks: op, stream, free, loses, event, chunk, first wait, row of `groups` that starts it together, message
        given. Columns of waits: what, which, first, but, chunk, message.
        """
        tasks, waits = list[tuple[int, ...]](), list[tuple[int, ...]]()
        streams, groups = self.streams, self.groups
        for places in layout.templates.values():
            event = 0
            for task in layout.tasks[places.start : places.stop]:
                op = _op(task)
                own = event if op not in (JOIN, DRAIN) else -1
                event += own >= 0
                loses = op == RUN and task.kind not in UPDATE
                # marks are on a stream of their own: the launches after them do not wait for their ends
                number = streams.setdefault(READY if task.kind == READY else task.stream, len(streams))
                group = -1 if task.family is None else groups.setdefault(task.family, len(groups))
                gives = -1 if task.gives is None else self.message(task.gives, "send")
                tasks.append((op, number, task.free, loses, own, task.chunk, len(waits), group, gives))
                waits += map(self.awaited, task.waits)
        return tasks, waits

    def awaited(self, handle: Handle) -> tuple[int, ...]:
        """Return a wait as a row: what, which (of messages, each rank has its own), first, but, chunk, message."""
        if isinstance(handle, PassMessage):
            return MESSAGE, -1, 0, 0, handle.chunk, self.message(handle, "receive")
        if isinstance(handle, OwnTask):
            return OWN, handle.position, 0, 0, -1, -1
        stream = self.streams.setdefault(handle.stream, len(self.streams))
        return STREAM, stream, handle.first or 0, handle.but, -1, -1


def shape(plan: Plan) -> Shape:
    """Return the shape of one step of a plan."""
    names, programs, role = _Names(), plan.programs, plan.role
    layouts = list(dict.fromkeys([one.layout for one in programs]))
    columns = [names.layout(one) for one in layouts]
    place = {layout: number for number, layout in enumerate(layouts)}
    of_role = np.array([place[one.layout] for one in programs], np.int64)
    layout, ranks = of_role[role], np.arange(len(role))
    # the columns of each rank are those of its layout
    first_task, first_wait = (offsets(np.array([len(one[side]) for one in columns], np.int64)) for side in (0, 1))
    rank_task, rank_wait = (offsets(lengths(first)[layout]) for first in (first_task, first_wait))
    line = entries(first_task, layout)
    rank_of_task, rank_of_wait = (ranks.repeat(lengths(first)) for first in (rank_task, rank_wait))
    tasks = np.array([row for own, _ in columns for row in own], np.int32).reshape(-1, 9)[line].T
    waits = np.array([row for _, own in columns for row in own], np.int32).reshape(-1, 6)[entries(first_wait, layout)].T
    op, stream, free, loses, event, chunk, wait, group, gives = tasks
    wait = np.append(wait + rank_wait[rank_of_task], rank_wait[-1])
    what, which, first, but, wait_chunk, receives = waits
    # what each rank has of its own: stages, messages and groups
    stages = [[*program.stages, -1] for program in programs]  # chunk -1 is the last entry
    own_stage, first_stage = np.array([*chain(*stages)], np.int32), offsets(np.array([*map(len, stages)], np.int64))

    def stage(chunk: Ints, rank: Ints) -> Ints:
        """Return the global stage of each rank's chunk; -1 for chunk -1."""
        own = role[rank]
        found: Ints = own_stage[np.where(chunk < 0, first_stage[own + 1] - 1, first_stage[own] + chunk)]
        return found

    cells = np.array([plan.groups[name] for name in names.groups], np.int64).reshape(-1, len(ranks))
    orders = [program.order() for program in programs]
    microbatch = np.concatenate([one for _, one in orders])
    each = 2 + int(microbatch.max())
    """Messages of each pair and stage: one per microbatch, and one outside the passes of microbatches."""
    sending, receiving = np.flatnonzero(gives >= 0), np.flatnonzero(receives >= 0)
    row, family, of_chunk, ahead, number = (
        np.array([*names.messages], np.int64).reshape(-1, 5)[np.concatenate([gives[sending], receives[receiving]])].T
    )
    rank = np.concatenate([rank_of_task[sending], rank_of_wait[receiving]])
    messages = np.stack([family, cells[row, rank], stage(of_chunk, rank) + ahead, number], axis=1, dtype=np.int64)
    distinct_messages, message = distinct_rows(messages)
    gives[sending] = each * message[: len(sending)]
    which[receiving] = each * message[len(sending) :]
    together, group_size = _groups(cells)
    # passes
    role_pass = offsets(np.array([len(template) for template, _ in orders], np.int64))
    passes, rank_pass = entries(role_pass, role), offsets(lengths(role_pass)[role])
    templates = [places for one in layouts for places in one.templates.values()]
    bounds = np.array([(places.start, places.stop) for places in templates], np.int64)
    first_template = offsets(np.array([len(one.templates) for one in layouts], np.int64))[of_role]
    template = np.concatenate([one for one, _ in orders]) + first_template.repeat(lengths(role_pass))
    starts, stops = bounds[template].T
    first_of_rank = rank_task[:-1].repeat(lengths(rank_pass))
    pass_task, pass_end = (one[passes] + first_of_rank for one in (starts, stops))
    has = offsets(event >= 0)
    begun, ended = (np.bincount(one, minlength=len(op) + 1) for one in (pass_task, pass_end))
    used = np.cumsum(begun - ended)[:-1]  # how often each task is executed
    launches = np.isin(op, (LAUNCH, BUSY, DRAIN))
    count = np.bincount(
        rank_of_task[launches] * len(names.streams) + stream[launches], used[launches], len(ranks) * len(names.streams)
    )
    return Shape(
        op=op,
        stream=stream,
        group=together[group, rank_of_task],
        free=free,
        gives=gives,
        loses=loses,
        event=event,
        stage=stage(chunk, rank_of_task),
        wait=wait,
        what=what,
        which=which,
        first=first,
        but=but,
        wait_stage=stage(wait_chunk, rank_of_wait),
        rank_pass=rank_pass,
        pass_task=pass_task.astype(np.int32),
        pass_end=pass_end.astype(np.int32),
        microbatch=microbatch[passes].astype(np.int32),
        pass_event=offsets(has[pass_end] - has[pass_task]),
        pass_wait=offsets((wait[pass_end] - wait[pass_task]).astype(np.int64)),
        launched=offsets(count.astype(np.int64)),
        group_size=group_size,
        messages=len(distinct_messages) * each,
        streams=tuple(names.streams),
        rank_task=rank_task,
        lines=[task for one in layouts for task in one.tasks],
        line=line,
        plan=plan,
    )


def _groups(cells: Ints) -> tuple[Ints, Ints]:
    """Return the number of each rank's group (families + 1, ranks), -1 where its cell is alone in it, and the size of groups.

    cells (families, ranks): the group cell of each rank, -1 for none. All rank cells of a group cell are in each of its groups.
    """
    numbers, sizes, first = np.full((len(cells) + 1, cells.shape[1]), -1), [np.zeros(0, np.int64)], 0
    for number, own in enumerate(cells):  # no group is the last row
        size = np.bincount(own + 1)[1:]
        several = np.append(size, 0)[own] > 1
        numbers[number, several] = own[several] + first
        sizes.append(size)
        first += len(size)
    return numbers, np.concatenate(sizes)


def _op(task: Task) -> int:
    """Return the loop's operation (engine/loop.py) that executes a task."""
    if task.free:
        return LAUNCH
    if task.stream == COMPUTE:
        return RUN if task.kind else JOIN
    if task.stream == HOST:
        return DRAIN if task.kind == SYNCHRONISE else BUSY
    return LAUNCH


def _runs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each run of rows in which two columns stay the same, and the run of each row."""
    new = np.ones(len(first), bool)
    np.logical_or(first[1:] != first[:-1], second[1:] != second[:-1], out=new[1:])
    return new.nonzero()[0], new.cumsum() - 1
