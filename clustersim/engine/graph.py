"""A step as one graph: every task of every rank, instanced from its template, with what must be over before it.

Nodes stand in an order in which each comes after its predecessors, of which it has two at most (`a` and `b`; node 0 is the
begin of the step). A node that has a slot does what the tasks of that slot do; the others take no time and only join: there
waits that follow each other, or several ranks that start something together.

The graph does not depend on how long anything takes, so that one graph serves all jobs of one structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.engine.fabric import Activity, Segment
from clustersim.engine.program import COMPUTE, GroupCell, Message, Program, Task, TemplateKey
from clustersim.errors import SimulationError

JOIN = -1
"""The slot of a node that takes no time."""


class Occurrences(NamedTuple):
    """What ranks do at nodes, one row a rank and node; a node of several ranks has several rows."""

    rank: Ints
    node: Ints
    asked: Ints
    """The node whose end is when the rank asked for it."""
    task: Ints
    """Which of `StepGraph.tasks` it is for the rank."""
    microbatch: Ints
    """That of the pass, -1 outside."""


class Waits(NamedTuple):
    """What the compute streams of ranks wait for, one row a wait, of each rank in its order."""

    rank: Ints
    kind: tuple[str, ...]
    stage: Ints
    """The global stage that a message is for, -1 of other waits."""
    microbatch: Ints
    """That of the pass, -1 outside."""
    asked: Ints
    """The node at whose end the rank begins to wait."""
    awaited: Ints
    """The node at whose end it goes on."""
    sent: Ints
    """Of a message, the node at whose end its sender asked for it; else 0."""


@dataclass(frozen=True)
class StepGraph:
    """All nodes of a step, and what ranks do and wait for at them."""

    a: list[int]
    b: list[int]
    slot: list[int]
    slots: tuple[tuple[int, ...], ...]
    """The tasks of each slot, one of each rank that takes part, by their place in `tasks`."""
    tasks: tuple[tuple[int, TemplateKey, int], ...]
    """Where each task is: rank, template, place in it."""
    occurrences: Occurrences
    waits: Waits
    labels: tuple[tuple[int, int, int], ...]
    """What tells a node from others: the task that it was written for, the microbatch, and a number."""
    ranks: int

    @cached_property
    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """The columns `a`, `b` and `slot` as arrays."""
        return np.array(self.a), np.array(self.b), np.array(self.slot)

    @cached_property
    def by_node(self) -> tuple[Ints, Ints]:
        """The rows of `occurrences` in the order of their nodes, and where those of each node begin there."""
        order = np.argsort(self.occurrences.node, kind="stable")
        return order, np.searchsorted(self.occurrences.node[order], np.arange(len(self.slot) + 1))

    def after(self) -> list[list[int]]:
        """Return the successors of each node, twice where it is both of its predecessors."""
        result: list[list[int]] = [[] for _ in self.slot]
        for before in (self.a, self.b):
            for node, one in enumerate(before):
                if node:
                    result[one].append(node)
        return result

    def found(self, programs: Sequence[Program]) -> list[Task]:
        """Return the tasks of this graph in programs of its structure."""
        templates = [dict(program.templates()) for program in programs]
        return [templates[rank][where][place] for rank, where, place in self.tasks]

    def activities(self, tasks: Sequence[Task]) -> list[Activity]:
        """Return what is done in each slot."""
        merged: dict[frozenset[Activity], Activity] = {}
        return [together([tasks[task].activity for task in slot], merged) for slot in self.slots]


def together(activities: Sequence[Activity], known: dict[frozenset[Activity], Activity]) -> Activity:
    """Return what ranks in lock-step do together: each segment takes as long as its slowest computation."""
    distinct = dict.fromkeys(activities)
    if len(distinct) == 1:
        return activities[0]
    key = frozenset(distinct)
    if key not in known:
        columns = zip(*(a.segments for a in distinct), strict=True)
        known[key] = Activity(Segment(max(s.compute for s in column), column[0].flow) for column in columns)
    return known[key]


def structure(programs: Sequence[Program]) -> tuple[object, ...]:
    """Return what tells the graph of programs from that of others with the same rows."""
    return tuple(
        tuple((where, tuple(task[:-1] for task in template)) for where, template in program.templates())
        for program in programs
    )


def build(programs: Sequence[Program], members: Mapping[GroupCell, int]) -> StepGraph:
    """Return the graph of one step. members: how many rank cells each group has.

    Raises SimulationError at a deadlock, which names a rank and what it cannot begin.
    """
    writer = _Instancer(members)
    for rank, program in enumerate(programs):
        writer.rank(rank, program)
    return writer.graph(len(programs))


_Sent = tuple[Message, int]
"""A message of one microbatch."""


class _Meeting(NamedTuple):
    """The k-th task that the rank cells of a group start together."""

    node: int
    group: GroupCell
    arrivals: list[int]
    """The node at whose end each of them is there."""
    tasks: list[int]


class _Instancer:
    """Instances templates rank by rank; what another rank has not written yet is filled in at the end."""

    def __init__(self, members: Mapping[GroupCell, int]) -> None:
        self.members = members
        self.a, self.b, self.slot = [0], [0], [JOIN]
        self.labels: list[tuple[int, int]] = [(-1, -1)]
        self.label = self.labels[0]
        self.tasks: dict[tuple[int, TemplateKey, int], int] = {}
        self.slots: dict[tuple[int, ...], int] = {}
        self.occurrences: list[tuple[int, int, int, int, int]] = []
        self.waits: list[tuple[int, str, int, int, int, int | _Sent]] = []
        self.meetings: dict[tuple[GroupCell, int], _Meeting] = {}
        self.sent: dict[_Sent, tuple[int, int]] = {}  # the node, and that at whose end it was asked for
        self.unsent: list[tuple[int, _Sent]] = []

    def node(self, a: int, b: int | _Sent, slot: int = JOIN) -> int:
        """Write a node and return its number; none is needed to join one with itself."""
        if slot == JOIN and a == b:
            return a
        self.a.append(a)
        self.b.append(b if isinstance(b, int) else 0)
        self.slot.append(slot)
        self.labels.append(self.label)
        if not isinstance(b, int):
            self.unsent.append((len(self.a) - 1, b))
        return len(self.a) - 1

    def rank(self, rank: int, program: Program) -> None:
        """Write all tasks of a rank."""
        now = 0  # the node at whose end the compute stream is
        streams: dict[str, list[int]] = {}
        calls: dict[GroupCell, int] = {}
        for where, template, microbatch in program.passes():
            for place, task in enumerate(template):
                number = self.tasks.setdefault((rank, where, place), len(self.tasks))
                self.label = number, microbatch
                if task.stream == COMPUTE:
                    before, other = self.waiting(rank, now, task, microbatch, streams)
                    if not task.kind:
                        now = self.node(before, other)
                        continue
                    now, asked = self.started(task, number, before, other, calls)
                    self.occurrences.append((rank, now, asked, number, microbatch))
                    continue
                own = streams.setdefault(task.stream, [])
                node, _ = self.started(task, number, now, own[-1] if own else now, calls)
                self.occurrences.append((rank, node, now, number, microbatch))
                own.append(node)
                if task.gives is not None:
                    self.sent[task.gives, microbatch] = node, now

    def waiting(
        self, rank: int, now: int, task: Task, microbatch: int, streams: Mapping[str, list[int]]
    ) -> tuple[int, int | _Sent]:
        """Return what must be over before a task of the compute stream; several waits follow each other."""
        other: int | _Sent = now
        for handle in task.waits:
            awaited: int | _Sent
            if isinstance(handle, Message):
                awaited, stage = (handle, microbatch), handle.stage
            elif handle.stream in streams:
                own = streams[handle.stream]
                awaited, stage = own[min(handle.first or len(own), len(own)) - 1], -1
            else:
                continue  # this rank has launched nothing there
            now = other = self.node(now, other)
            self.waits.append((rank, handle.kind, stage, microbatch, now, awaited))
            other = awaited
        return now, other

    def started(self, task: Task, number: int, a: int, b: int | _Sent, calls: dict[GroupCell, int]) -> tuple[int, int]:
        """Write a task, and return its node and the one at whose end it was asked for (-1: its own begin)."""
        if task.group is None or self.members[task.group] == 1:
            return self.node(a, b, self.slots.setdefault((number,), len(self.slots))), -1
        arrival = self.node(a, b)
        call = calls[task.group] = calls.get(task.group, 0) + 1
        key = task.group, call
        if key not in self.meetings:
            self.meetings[key] = _Meeting(self.node(0, 0, 0), task.group, [], [])
        meeting = self.meetings[key]
        meeting.arrivals.append(arrival)
        meeting.tasks.append(number)
        return meeting.node, arrival

    def graph(self, ranks: int) -> StepGraph:
        """Return what was written, in an order in which every node comes after those before it."""
        for meeting in self.meetings.values():
            if len(meeting.arrivals) < self.members[meeting.group]:
                raise self.stuck({meeting.node})
            self.label = self.labels[meeting.node]
            first, *others, last = meeting.arrivals
            for arrival in others:
                first = self.node(first, arrival)
            self.a[meeting.node], self.b[meeting.node] = first, last
            self.slot[meeting.node] = self.slots.setdefault(tuple(meeting.tasks), len(self.slots))
        for node, message in self.unsent:
            if message not in self.sent:
                raise self.stuck({node})
            self.b[node] = self.sent[message][0]
        order = _ordered(self.a, self.b)
        if len(order) < len(self.a):
            raise self.stuck(set(range(len(self.a))) - set(order.tolist()))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        a, b = (place[np.array(row)[order]] for row in (self.a, self.b))
        return StepGraph(
            a.tolist(),
            b.tolist(),
            np.array(self.slot)[order].tolist(),
            tuple(self.slots),
            tuple(self.tasks),
            self.all_occurrences(place),
            self.all_waits(place),
            self.all_labels(order),
            ranks,
        )

    def all_occurrences(self, place: Ints) -> Occurrences:
        rank, node, asked, task, microbatch = np.array(self.occurrences, np.int64).reshape(-1, 5).T
        return Occurrences(rank, place[node], np.where(asked < 0, -1, place[asked]), task, microbatch)

    def all_waits(self, place: Ints) -> Waits:
        rows = [
            (rank, stage, which, asked, awaited if isinstance(awaited, int) else self.sent[awaited][0],
             0 if isinstance(awaited, int) else self.sent[awaited][1])
            for rank, _, stage, which, asked, awaited in self.waits
        ]  # fmt: skip
        rank, stage, microbatch, asked, awaited, sent = np.array(rows, np.int64).reshape(-1, 6).T
        kinds = tuple(wait[1] for wait in self.waits)
        return Waits(rank, kinds, stage, microbatch, place[asked], place[awaited], place[sent])

    def all_labels(self, order: Ints) -> tuple[tuple[int, int, int], ...]:
        count: dict[tuple[int, int], int] = {}
        labels = []
        for label in self.labels:
            count[label] = number = count.get(label, -1) + 1
            labels.append((*label, number))
        return tuple(labels[node] for node in order.tolist())

    def stuck(self, nodes: set[int]) -> SimulationError:
        """Return the error of a step that cannot end, as some nodes cannot begin."""
        tasks = list(self.tasks)
        number, microbatch = next(self.labels[node] for node in sorted(nodes))
        rank, (part, key), _ = tasks[number]
        what = f"{part} {key}" if key is not None else part
        return SimulationError(f"deadlock: rank cell {rank} cannot begin {what} of microbatch {microbatch}")


def _ordered(a: Sequence[int], b: Sequence[int]) -> Ints:
    """Return nodes so that each comes after its predecessors, without those on a circle or behind one."""
    count = len(a)
    before = np.concatenate([np.array(a), np.array(b)])
    by_source = np.argsort(before, kind="stable")
    start = np.searchsorted(before[by_source], np.arange(count + 1)).tolist()
    after = (by_source % count).tolist()
    missing = [2] * count
    missing[0] = 0
    order = [0]
    for node in order:  # grows while it is read
        for following in after[start[node] : start[node + 1]]:
            missing[following] -= 1
            if not missing[following]:
                order.append(following)
    return np.array(order, np.int64)
