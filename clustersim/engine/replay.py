"""Replay of traces: tasks of ranks with their dependencies, as a pass of free tasks.


A rank's computations run one after the other, in the order in which it has them. So do the collectives of each of its groups
and its messages to each peer, as NCCL's do; everything else begins when what it needs is over. Ranks of which nothing can tell
apart what they do, and where, are one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.plan import NCCL
from clustersim.engine.compile import Activities, Plan
from clustersim.engine.fabric import HOST, Activity, Segment
from clustersim.engine.network import Network, Tenant, demand, folded, networks
from clustersim.engine.player import Engine, Player
from clustersim.engine.program import COMPUTE, GroupCell, Handle, Layout, OwnTask, PassMessage, Program, Task
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.engine.traffic import Family
from clustersim.errors import DeadlockError, SimulationError
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

ReplayKind = Literal["compute", "host", "collective", "send", "receive", "wait"]


class ReplayTask(NamedTuple):
    """One task of a rank in a trace."""

    kind: ReplayKind
    """Kind of task; `wait` only waits."""
    name: str
    before: tuple[int, ...]
    """Indices of its dependencies among the tasks of its rank, all lower."""
    seconds: float = 0.0
    """Seconds of a computation or host task."""
    call: Collective | None = None
    """The collective; or the message, both in its send and its receive."""
    group: int = -1
    """Index of the group in `call.group`."""
    number: int = -1
    """Number of earlier collectives or messages of the group."""


class Replay(NamedTuple):
    """Result of replaying tasks of ranks on a cluster."""

    plan: Plan
    """Plan, whose programs have one pass with all tasks."""
    record: Record


def replay(
    topology: Topology,
    tasks: Sequence[Sequence[ReplayTask]],
    families: Mapping[str, Ints],
    engine: Engine = "auto",
    fold: bool = True,
    communicators: Mapping[str, Ints] = MappingProxyType({}),
) -> Replay:
    """Replay the tasks of all ranks, rank i on GPU i.

    families: ranks of all groups by name (groups, n), with no rank in two groups of a family; families of messages, from the
    first rank to the second, begin with p2p. communicators: for families of messages, ranks of their communicators (groups, m),
    if other than the two ranks. Raises SimulationError at a deadlock.
    """
    gpus = np.arange(len(tasks))
    upwards = fanouts(np.unique(topology.numbering.node_of(gpus)), topology)
    used: dict[str, dict[Collective, None]] = {name: {} for name in families}
    for row in tasks:
        for call in (one.call for one in row if one.call is not None):
            used[call.group][call] = None
    uses = [
        (
            Family(
                name,
                ranks,
                levels(topology.numbering.node_of(ranks), upwards),
                NCCL,
                communicators=communicators.get(name),
            ),
            tuple(used[name]),
        )
        for name, ranks in families.items()
        if used[name]
    ]
    asked = demand(topology, [Tenant(uses, gpus, _seeds(topology, tasks))])
    every = np.ones(len(asked.links), bool)
    [network] = networks(asked, folded(asked, every, fold), every)
    cells = network.cells.ranks
    plan = _PlanWriter(network).plan([tasks[rank] for rank in cells.first.tolist()])
    bound = Tasks(plan)
    try:
        return Replay(plan, Player(engine).execute(bound))
    except DeadlockError as error:
        cell, place = bound.shape.place(error.task)
        rank = int(cells.first[cell])
        raise SimulationError(f"deadlock: task {place} of rank {rank} waits for what waits for it") from None


def _seeds(topology: Topology, tasks: Sequence[Sequence[ReplayTask]]) -> Ints:
    """Return a number per rank: ranks with equal numbers have equal tasks, possibly in other groups, on nodes of one type."""
    kinds = topology.kind_of(np.arange(len(tasks))).tolist() if topology.pools else [0] * len(tasks)
    known: dict[object, int] = {}
    same = (tuple(one._replace(name="", group=-1) for one in row) for row in tasks)
    return np.array([known.setdefault(one, len(known)) for one in zip(kinds, same, strict=True)], np.int64)


class _PlanWriter:
    """Writes the plan of rank cells: one pass each."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.activities = Activities((), network)
        self.seconds: dict[float, int] = {}

    def plan(self, rows: Sequence[Sequence[ReplayTask]]) -> Plan:
        """Return the plan of rank cells; at its end a rank waits for the tasks that none of them waits for."""
        cells, programs, does = self.network.cells.ranks, list[Program](), list[int]()
        groups = defaultdict[str, Ints](lambda: np.full(len(rows), -1))
        members = Counter[GroupCell]()
        for cell, tasks in enumerate(rows):
            needed = {place for one in tasks for place in one.before}
            left = tuple(place for place in range(len(tasks)) if place not in needed)
            every = (*tasks, ReplayTask("compute", "end", left))
            programs.append(Program(Layout(tuple(self.tasks(every))), (), (0,)))
            does += map(self.activity, every)
            for one in every:
                if one.call is not None:
                    side = f"/{one.kind}" if one.kind in ("send", "receive") else ""
                    groups[one.call.group + side][cell] = self.group(one)[1]
            members.update({self.group(one) for one in tasks if one.kind == "collective"})
        role, found = np.arange(len(rows)), self.activities.activities
        return Plan(programs, role, groups, members, found, np.array(does), self.network, cells.first, cells.size)

    def tasks(self, tasks: Sequence[ReplayTask]) -> Iterator[Task]:
        """Yield the layout tasks of trace tasks."""
        last: dict[object, int] = {}
        """The last computation, and the last collective or message of each group."""
        for place, one in enumerate(tasks):
            stream, key = self.order(one)
            waits: list[Handle] = [OwnTask(last[key])] if key is not None and key in last else []
            if one.kind == "receive":
                waits.append(self.message(one))
                stream = HOST
            for before in dict.fromkeys(one.before):
                if one.kind == "compute" and tasks[before].kind == "receive":
                    waits.append(self.message(tasks[before]))  # so that the record has when it was sent
                waits.append(self.awaited(tasks, before))
            if key is not None:
                last[key] = place
            group = one.call.group if one.kind == "collective" and one.call else None
            gives = self.message(one) if one.kind == "send" else None
            kind = one.call.op if one.kind == "collective" and one.call else one.name or one.kind
            if one.kind in ("send", "receive"):
                kind = one.kind
            yield Task(stream, kind, -1, group, tuple(waits), gives, free=True)

    def order(self, one: ReplayTask) -> tuple[str, object]:
        """Return the stream of a task and the key of its order; None for tasks that only wait for dependencies."""
        if one.kind == "compute":
            return COMPUTE, COMPUTE
        if one.kind in ("collective", "send"):
            group = self.group(one)
            return group[0], group
        return HOST, None

    def awaited(self, tasks: Sequence[ReplayTask], place: int) -> OwnTask:
        """Return the wait for an earlier task; the family is empty if it is not shown as a wait."""
        one = tasks[place]
        named = {"host": HOST, "send": "send"}
        family = self.group(one)[0] if one.kind == "collective" else named.get(one.kind, "")
        return OwnTask(place, family)

    @staticmethod
    def message(one: ReplayTask) -> PassMessage:
        """Return the message that a task sends or receives."""
        assert one.call is not None
        return PassMessage(one.call.group, 0, 0, one.number)

    def group(self, one: ReplayTask) -> GroupCell:
        """Return the group cell of a collective or message."""
        assert one.call is not None
        return one.call.group, int(self.network.cells.groups[one.call.group].of[one.group])

    def activity(self, one: ReplayTask) -> int:
        """Return the number of the activity of a task."""
        if one.call is None:
            if one.seconds not in self.seconds:
                self.seconds[one.seconds] = self.activities.add(Activity.of([Segment(one.seconds, None)]))
            return self.seconds[one.seconds]
        return 0 if one.kind == "receive" else self.activities.transfers(one.call, [self.group(one)[1]])[0]
