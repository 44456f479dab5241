"""When every task of a step ends if nothing shares a link or a GPU: a longest path over the programs alone, without a Shape.

Each rank is walked task by task. A task begins after the tasks that it waits for, the tasks of its group begin together, and
`graphlib` puts all of them in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.program import COMPUTE, READY, SYNCHRONISE, GroupCell, OwnTask, PassMessage, Task, Wait

Node = Hashable


class Message(NamedTuple):
    """Handle of a message for `stage` between the two rank cells of a pair; one per microbatch."""

    group: GroupCell
    stage: int
    number: int = 0
    """Index among several messages of a pass between the two."""


Handle = Message | Wait | OwnTask


class PlainTask(NamedTuple):
    """One task of a pass of one rank; other fields are as in engine.program.Task."""

    stream: str
    kind: str
    group: GroupCell | None
    """Group whose rank cells start the task together; None: this rank alone."""
    waits: tuple[Handle, ...]
    gives: Message | None
    activity: Activity
    """Activity of the task; for tasks started together, this rank's part."""
    free: bool = False


Passes = Iterable[tuple[Sequence[PlainTask], int]]
"""The tasks of every pass of a rank, and its microbatch."""


class StuckError(Exception):
    """The step cannot end."""


class Event(NamedTuple):
    """One execution of a task: pass `number` of its rank, and place of the task in the template."""

    rank: int
    number: int
    place: int


def idle(tasks: Sequence[PlainTask]) -> float:
    """Return the seconds that tasks which start together take on an idle fabric."""
    now = 0.0
    for column in zip(*(task.activity.segments for task in tasks), strict=True):
        now = max(now + max(one.compute for one in column), *(one.launched for one in column))
        flow, share, beside = column[0].flow, column[0].share, max(one.overlapped for one in column)
        if flow is not None:
            moving = flow.latency + (flow.size / flow.bound if flow.size else 0.0)
            now += max(moving, beside + share * moving) if beside else moving
    return now


class _Walk:
    """Walks the programs of all ranks and notes what each event comes after."""

    def __init__(self, members: Mapping[GroupCell, int]) -> None:
        self.members = members
        self.after: dict[Node, list[Node]] = {}
        self.tasks: dict[Node, list[PlainTask]] = defaultdict(list)
        """The tasks that start together at each node."""
        self.node: dict[Event, Node] = {}
        self.calls: dict[tuple[int, GroupCell], int] = defaultdict(int)

    def begin(self, event: Event, task: PlainTask, after: Sequence[Node]) -> Node:
        """Add an event, or its part of what its group starts together, and return its node."""
        node: Node = event
        if task.group is not None and self.members[task.group] > 1:
            number = self.calls[event.rank, task.group]
            self.calls[event.rank, task.group] = number + 1
            node = task.group, number
        self.node[event] = node
        self.tasks[node].append(task)
        self.after.setdefault(node, []).extend(after)
        return node

    def rank(self, rank: int, passes: Passes) -> None:
        """Walk the passes of a rank."""
        here: list[Node] = []  # what the rank has waited for so far
        streams: dict[str, list[Node]] = defaultdict(list)
        for number, (template, microbatch) in enumerate(passes):
            own, entered = list[Node](), here
            for place, task in enumerate(template):
                event, waited = Event(rank, number, place), list[Node]()
                for handle in task.waits:
                    if isinstance(handle, Message):
                        waited.append((handle, microbatch))
                    elif isinstance(handle, Wait):
                        count = len(streams[handle.stream])
                        last = min(handle.first, count) if handle.first else count
                        waited += streams[handle.stream][: last if handle.first else last - handle.but]
                    else:
                        waited.append(own[handle.position])
                done = streams[task.stream]
                if task.free:
                    node = self.begin(event, task, waited)
                elif task.stream == COMPUTE:
                    here = [*here, *waited]
                    node = self.begin(event, task, here) if task.kind else ("wait", event)
                    here = [node] if task.kind else here
                    self.after.setdefault(node, here)
                elif task.stream == HOST and task.kind == SYNCHRONISE:
                    node = "host", event
                    self.after[node] = list(here)
                    done.append(node)
                elif task.stream == HOST:
                    node = self.begin(event, task, done[-1:] or entered)
                    streams |= {READY: [node]} if task.kind == READY else {HOST: [*done, node]}
                else:
                    node = self.begin(event, task, [*here, *done[-1:], *waited])
                    done.append(node)
                own.append(node)
                if task.gives is not None:
                    self.after[task.gives, microbatch] = [node]


def longest_path(ranks: Sequence[Passes], members: Mapping[GroupCell, int]) -> dict[Event, float]:
    """Return the end of each event in seconds. members: number of rank cells of each group. Raises StuckError at a deadlock."""
    walk = _Walk(members)
    for rank, passes in enumerate(ranks):
        walk.rank(rank, passes)
    if any(
        isinstance(node, tuple) and node[0] in members and len(walk.tasks[node]) != members[node[0]]
        for node in walk.tasks
    ):
        raise StuckError
    ends: dict[Node, float] = {}
    try:
        for node in TopologicalSorter(walk.after).static_order():
            if node not in walk.after:  # a message that nobody sends
                raise StuckError
            begin = max((ends[one] for one in walk.after[node]), default=0.0)
            ends[node] = begin + (idle(walk.tasks[node]) if node in walk.tasks else 0.0)
    except CycleError:
        raise StuckError from None
    return {event: ends[node] for event, node in walk.node.items()}


def passes(plan: Plan, cell: int) -> Iterator[tuple[list[PlainTask], int]]:
    """Yield the tasks of every pass of a rank cell, and its microbatch (-1 outside the actions)."""
    program, begin = plan.programs[plan.role[cell]], plan.begins[cell]

    def message(one: PassMessage, side: str) -> Message:
        return Message(
            (one.family, plan.group(cell, one.family, side)), program.stages[one.chunk] + one.ahead, one.number
        )

    def plain(task: Task, place: int) -> PlainTask:
        group = None if task.family is None else (task.family, plan.group(cell, task.family))
        waits = tuple(message(one, "receive") if isinstance(one, PassMessage) else one for one in task.waits)
        gives, activity = task.gives and message(task.gives, "send"), plan.activities[plan.does[begin + place]]
        return PlainTask(task.stream, task.kind, group, waits, gives, activity, task.free)

    for key, microbatch in program.passes():
        own = program.layout.templates[key]
        yield [plain(program.layout.tasks[place], place) for place in own], microbatch


def members(plan: Plan) -> dict[GroupCell, int]:
    """Return the number of rank cells of each group of a plan."""
    return {(family, cell): int((own == cell).sum()) for family, own in plan.groups.items() for cell in own.tolist()}
