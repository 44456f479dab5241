"""What a pass leaves in the graph of a step, written once for all microbatches and all ranks whose templates have one form.

Nodes are given by references: to a node of the pass itself, or to one that another pass writes and that depends on the
microbatch and the rank. `instances.py` finds the nodes that references of all passes stand for, at once. Tasks, slots and
messages are counted from the first of the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clustersim.engine.fabric import HOST
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    GroupCell,
    Launched,
    Message,
    Ready,
    Task,
    Template,
)

JOIN = -1
"""The slot of a node that takes no time."""
LOCAL, NOW, LAST, BEFORE, NTH, SENT, MEETING = range(7)
"""What a reference is to: a node of the pass; the end of the compute stream, or of another, before the pass; the task of a stream
that so many others follow before the pass; the n-th one in the step; a message of this microbatch; a task that ranks start
together, counted from the first of the pass."""
BEGIN = -1
"""In place of a reference: the begin of the task itself."""


class PatternNode(NamedTuple):
    """A node: references to its predecessors, its slot, its task, and how many nodes of that came before."""

    a: int
    b: int
    slot: int
    task: int
    before: int


class PatternOccurrence(NamedTuple):
    """References to the node of a task and to that at whose end it was asked for, and the task."""

    node: int
    asked: int
    task: int


class PatternWait(NamedTuple):
    """A row of `graph.Waits` with references."""

    kind: int
    asked: int
    awaited: int
    message: int
    """Which one is waited for, -1 of other waits."""


class Arrival(NamedTuple):
    """A rank at a task that it starts with others."""

    group: int
    """Which of the rank's groups that is."""
    call: int
    """How many such tasks of the group came before it in the pass."""
    arrived: int
    """A reference to the node at whose end the rank is there."""
    task: int
    node: int
    """The place of the task's node in the pass of the first rank of the group, which writes it; -1 in others."""
    nodes: int
    """How many of the task there are in the pass."""


class Sending(NamedTuple):
    """A message, and references to its node and to that at whose end it was asked for."""

    message: int
    node: int
    asked: int


class Numbers:
    """The numbers of things that all patterns know, in order of appearance."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        """Of waits."""


class Pattern:
    """A pass by one template."""

    def __init__(
        self,
        launched: Mapping[str, int],
        groups: Mapping[GroupCell, tuple[int, bool]],
        messages: Mapping[Message, int],
        numbers: Numbers,
    ) -> None:
        """Begin a pass before which the rank has launched so many tasks on streams, as far as that matters.

        groups: those that the rank shares with others: which of them it is, and whether the rank is the first in it.
        messages: the numbers of those of the template.
        """
        self.launched, self.groups, self.messages, self.numbers = launched, groups, messages, numbers
        self.references: dict[tuple[int, int, int], int] = {}
        self.nodes: list[PatternNode] = []
        self.occurrences: list[PatternOccurrence] = []
        self.waits: list[PatternWait] = []
        self.arrivals: list[Arrival] = []
        self.sent: list[Sending] = []
        self.own: dict[str, list[int]] = {}
        """What the pass itself launches, by stream."""
        self.begun: dict[int, int] = {}
        """By task that the pass launches, the end of the compute stream then."""
        self.calls: dict[int, int] = {}
        self.alone: list[int] = []
        """The tasks that the rank starts alone: each has a slot."""
        self.task, self.count, self.ready = -1, 0, -1
        self.now = self.reference(NOW)

    def write(self, template: Template) -> Pattern:
        """Write all tasks of a template, and return the pass."""
        for place, task in enumerate(template):
            self.task, self.count = place, 0
            if task.stream == COMPUTE:
                self.compute(task)
            elif task.stream == HOST:
                self.host(task)
            else:
                self.launch(task)
        return self

    def reference(self, what: int, one: int = 0, other: int = 0) -> int:
        """Return the place of a reference among those of the pass; equal ones have one."""
        return self.references.setdefault((what, one, other), len(self.references))

    def node(self, a: int, b: int, slot: int = JOIN) -> int:
        """Write a node and return it; none is needed to join one with itself."""
        if slot == JOIN and a == b:
            return a
        self.nodes.append(PatternNode(a, b, slot, self.task, self.count))
        self.count += 1
        return self.reference(LOCAL, len(self.nodes) - 1)

    def compute(self, task: Task) -> None:
        """Write a task of the compute stream."""
        before, other = self.waiting(task)
        if not task.kind:
            self.now = self.node(before, other)
            return
        self.now, asked = self.started(task, before, other)
        self.occurrences.append(PatternOccurrence(self.now, asked, self.task))

    def launch(self, task: Task) -> None:
        """Write a task of another stream, which the compute stream launches."""
        own = self.own.setdefault(task.stream, [])
        last = self.so_far(Launched(task.stream))
        before = self.now if last is None else last
        for handle in task.waits:
            if isinstance(handle, Launched) and (found := self.so_far(handle)) is not None:
                before = self.node(before, found)
        node, _ = self.started(task, self.now, before)
        self.occurrences.append(PatternOccurrence(node, self.now, self.task))
        own.append(node)
        self.begun[node] = self.now
        if task.gives is not None:
            self.sent.append(Sending(self.messages[task.gives], node, self.now))

    def host(self, task: Task) -> None:
        """Write what the host does, or mark how far it is: its stream goes on whatever the others do."""
        if task.kind == SYNCHRONISE:
            self.own.setdefault(HOST, []).append(self.now)
            return
        found = self.so_far(Launched(HOST))
        last = self.reference(NOW) if found is None else found
        node = self.node(last, last, self.slot())
        self.occurrences.append(PatternOccurrence(node, last, self.task))
        if task.kind == READY:
            self.ready = node
            return
        self.own.setdefault(HOST, []).append(node)

    def waiting(self, task: Task) -> tuple[int, int]:
        """Return what must be over before a task of the compute stream; several waits follow each other."""
        other, kinds = self.now, self.numbers.kinds
        for handle in task.waits:
            message = -1
            if isinstance(handle, Message):
                message = self.messages[handle]
                awaited = self.reference(SENT, message)
            elif isinstance(handle, Ready):
                awaited = self.ready
            elif (found := self.so_far(handle)) is not None:
                awaited = found
            else:
                continue  # this rank has launched nothing there
            self.now = other = self.node(self.now, other)
            kind = kinds.setdefault(handle.kind, len(kinds))
            self.waits.append(PatternWait(kind, self.now, awaited, message))
            other = awaited
            if self.begun.get(awaited) == self.now:  # so it is over later than that, and no node joins them
                self.now = awaited
        return self.now, other

    def so_far(self, handle: Launched) -> int | None:
        """Return the last task that a handle waits for, None where there is none."""
        own, before = self.own.get(handle.stream, []), self.launched.get(handle.stream, 0)
        if before + len(own) <= handle.but:
            return None
        earlier = handle.but - len(own)
        if earlier > 0:
            return self.reference(BEFORE, self.stream(handle.stream), earlier)
        own = own[: len(own) - handle.but]
        if not handle.first:
            return own[-1] if own else self.reference(LAST, self.stream(handle.stream))
        which = min(handle.first, before + len(own))
        return own[which - before - 1] if which > before else self.reference(NTH, self.stream(handle.stream), which)

    def started(self, task: Task, a: int, b: int) -> tuple[int, int]:
        """Write a task, and return its node and the one at whose end it was asked for."""
        if task.group is None or task.group not in self.groups:
            return self.node(a, b, self.slot()), BEGIN
        arrived = self.node(a, b)
        group, writes = self.groups[task.group]
        call = self.calls[group] = self.calls.get(group, -1) + 1
        node, local = self.reference(MEETING, group, call), -1
        if writes:
            node, local = self.node(0, 0, 0), len(self.nodes) - 1
        self.arrivals.append(Arrival(group, call, arrived, self.task, local, self.count))
        return node, arrived

    def slot(self) -> int:
        """Return the slot of a task that the rank starts alone."""
        self.alone.append(self.task)
        return len(self.alone) - 1

    def stream(self, name: str) -> int:
        """Return the number of a stream."""
        return self.numbers.streams.setdefault(name, len(self.numbers.streams))
