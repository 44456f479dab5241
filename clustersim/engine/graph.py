"""A step as one graph: every task of every rank, instanced from its template, with what must be over before it.

Nodes stand level by level: each comes after its predecessors, of which it has two at most (`a` and `b`; node 0 is the begin of
the step), and those of one level need none of each other. A node that has a slot does what the tasks of that slot do; the others
take no time and only join: there waits that follow each other, or several ranks that start something together.

The graph does not depend on how long anything takes, so that one graph serves all jobs of one structure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, narrow, offsets
from clustersim.engine.fabric import Activity, Segment
from clustersim.engine.program import Program, Task, TemplateKey


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
    place: Ints
    """How many passes of the rank came before."""


class Waits(NamedTuple):
    """What the compute streams of ranks wait for, one row a wait, of each rank in its order."""

    rank: Ints
    kind: Ints
    """Which of `kinds`."""
    stage: Ints
    """The global stage that a message is for, -1 of other waits."""
    microbatch: Ints
    """That of the pass, -1 outside."""
    place: Ints
    """How many passes of the rank came before."""
    asked: Ints
    """The node at whose end the rank begins to wait."""
    awaited: Ints
    """The node at whose end it goes on."""
    sent: Ints
    """Of a message, the node at whose end its sender asked for it; else 0."""
    kinds: tuple[str, ...]
    """What waits are called."""


class Labels(NamedTuple):
    """What tells a node from all others, by node."""

    task: Ints
    """Which of `StepGraph.tasks` it was written for; -1 of the begin of the step."""
    microbatch: Ints
    """That of the pass, -1 outside."""
    place: Ints
    """How many passes of the rank came before; -1 of the begin of the step."""
    before: Ints
    """How many nodes were written for it before."""


@dataclass(frozen=True)
class StepGraph:
    """All nodes of a step, and what ranks do and wait for at them."""

    arrays: tuple[Ints, Ints, Ints]
    """The columns `a`, `b` and `slot` of all nodes."""
    slots: tuple[tuple[int, ...], ...]
    """The tasks of each slot, one of each rank that takes part, by their place in `tasks`."""
    tasks: tuple[tuple[int, TemplateKey, int], ...]
    """Where each task is: rank, template, place in it."""
    occurrences: Occurrences
    waits: Waits
    labels: Labels
    """By node."""
    ranks: int

    def __len__(self) -> int:
        return len(self.arrays[0])

    @property
    def a(self) -> memoryview[int]:
        """The first predecessor of each node, for who goes from node to node."""
        return self.arrays[0].data

    @property
    def b(self) -> memoryview[int]:
        """The second one."""
        return self.arrays[1].data

    @property
    def slot(self) -> memoryview[int]:
        """The slot of each node, JOIN where it has none."""
        return self.arrays[2].data

    def starts(self, ends: Floats) -> Floats:
        """Return when nodes begin, given when they end."""
        a, b, _ = self.arrays
        found: Floats = np.maximum(ends[a], ends[b])
        return found

    @cached_property
    def levels(self) -> list[int]:
        """The first node of each level, and the number of nodes; the latest predecessors of nodes stand as the nodes do."""
        a, b, _ = self.arrays
        last, found = np.maximum(a, b).data, [0, min(1, len(a))]
        while found[-1] < len(a):
            found.append(bisect_left(last, found[-1]))
        return found

    @property
    def node_rank(self) -> Ints:
        """By node, the rank that it was written for."""
        return np.array([rank for rank, _, _ in self.tasks], np.int32)[self.labels.task]

    @cached_property
    def by_node(self) -> tuple[Ints, Ints]:
        """The rows of `occurrences` in the order of their nodes, and where those of each node begin there."""
        order = np.argsort(self.occurrences.node, kind="stable")
        return narrow(order), narrow(offsets(np.bincount(self.occurrences.node, minlength=len(self))))

    @cached_property
    def successors(self) -> tuple[Ints, Ints]:
        """The successors of each node, one node after the other, twice where it is both of their predecessors; and where those
        of each begin."""
        return successors(*self.arrays[:2])

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """The same by node."""
        following, start = (tuple(column.tolist()) for column in self.successors)
        return [following[begin:end] for begin, end in pairwise(start)]

    def found(self, programs: Sequence[Program]) -> list[Task]:
        """Return the tasks of this graph in programs of its structure."""
        templates = [dict(program.templates()) for program in programs]
        return [templates[rank][where][place] for rank, where, place in self.tasks]

    def activities(self, tasks: Sequence[Task]) -> list[Activity]:
        """Return what is done in each slot."""
        merged: dict[frozenset[Activity], Activity] = {}
        return [
            tasks[slot[0]].activity if len(slot) == 1 else together([tasks[task].activity for task in slot], merged)
            for slot in self.slots
        ]


def successors(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Return the successors of nodes, of which these are the predecessors: as StepGraph.successors."""
    count = len(a)
    before = np.concatenate([a, b])
    before[[0, count]] = count  # the begin of the step is its own predecessor
    order = np.argsort(before, kind="stable")
    start = offsets(np.bincount(before, minlength=count)[:count])
    return narrow(order % count), narrow(start)


def together(activities: Sequence[Activity], known: dict[frozenset[Activity], Activity]) -> Activity:
    """Return what ranks in lock-step do together: each segment takes as long as its slowest computation."""
    distinct = dict.fromkeys(activities)
    if len(distinct) == 1:
        return activities[0]
    key = frozenset(distinct)
    if key not in known:
        columns = zip(*(a.segments for a in distinct), strict=True)
        known[key] = Activity(
            Segment(
                max(s.compute for s in column),
                column[0].flow,
                max(s.launched for s in column),
                max(s.beside for s in column),
                column[0].share,
            )
            for column in columns
        )
    return known[key]


def structure(programs: Sequence[Program]) -> tuple[object, ...]:
    """Return what tells the graph of programs from that of others with the same rows."""
    return tuple(
        tuple((where, tuple(task[:-1] for task in template)) for where, template in program.templates())
        for program in programs
    )
