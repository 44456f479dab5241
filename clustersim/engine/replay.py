"""What ranks are said to do, task by task with what must be over before each: one graph, which a cluster plays as it does a step.

A rank's computations run one after the other, in the order in which it has them. So do the collectives of each of its groups
and its messages to each peer, as NCCL's do; everything else begins when what it needs is over. Ranks of which nothing can tell
apart what they do, and where, are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.plan import NCCL
from clustersim.engine.compile import Activities, Plan
from clustersim.engine.contention import LinkUse
from clustersim.engine.fabric import HOST, Activity, Segment
from clustersim.engine.graph import Labels, Occurrences, StepGraph, Waits
from clustersim.engine.instances import WIDE, ordered
from clustersim.engine.network import Network, Tenant, demand, folded, networks
from clustersim.engine.pattern import JOIN
from clustersim.engine.player import Compiled, Engine, Player
from clustersim.engine.program import COMPUTE, GroupCell, Task, TemplateKey
from clustersim.engine.record import Record
from clustersim.engine.tasks import Tasks
from clustersim.engine.traffic import Family
from clustersim.errors import SimulationError
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

ReplayKind = Literal["compute", "host", "collective", "send", "receive", "wait"]


class ReplayTask(NamedTuple):
    """What a rank does once."""

    kind: ReplayKind
    """`wait` does nothing but wait."""
    name: str
    before: tuple[int, ...]
    """Places among the tasks of its rank, all lower, of those that must be over."""
    seconds: float = 0.0
    """Of a computation, and of the host."""
    call: Collective | None = None
    """A collective, or a message both where it is sent and where it is received."""
    group: int = -1
    """Which group of `call.group`."""
    number: int = -1
    """How many collectives or messages of the group came before it."""


class Replay(NamedTuple):
    """Tasks of ranks that were played on a cluster."""

    plan: Plan
    """Without programs: the graph of `record` has all tasks."""
    record: Record


def replay(
    topology: Topology,
    tasks: Sequence[Sequence[ReplayTask]],
    families: Mapping[str, Ints],
    engine: Engine = "auto",
    fold: bool = True,
    communicators: Mapping[str, Ints] = MappingProxyType({}),
) -> Replay:
    """Play the tasks of all ranks, rank i on GPU i.

    families: the ranks of all groups by name (groups, n), no rank in two of a family; those of messages, from the first rank to
    the second, begin with p2p. communicators: of families of messages, the ranks of those in which they go (groups, m), where
    these are not the two ranks. Raises SimulationError at a deadlock.
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
    plan = Plan([], network, {}, cells.first, cells.size, {}, {})
    writer = _GraphWriter(network)
    graph = writer.written([tasks[rank] for rank in cells.first.tolist()])
    own = Tasks(graph, writer.tasks)
    compiled = Compiled(plan, graph, own, None, LinkUse(graph, own.activities, network.capacity))
    record = Player(engine).simulate(compiled, own)
    assert record is not None  # only the static player alone gives up
    return Replay(plan, record)


def _seeds(topology: Topology, tasks: Sequence[Sequence[ReplayTask]]) -> Ints:
    """Return a number a rank: ranks of one number do the same, in groups that may be others, on nodes of one type."""
    kinds = topology.kind_of(np.arange(len(tasks))).tolist() if topology.pools else [0] * len(tasks)
    known: dict[object, int] = {}
    same = (tuple(one._replace(name="", group=-1) for one in row) for row in tasks)
    return np.array([known.setdefault(one, len(known)) for one in zip(kinds, same, strict=True)], np.int64)


class _GraphNode(NamedTuple):
    """A node before all are in order: its predecessors, its slot, its task and how many nodes of that came before."""

    a: int
    b: int
    slot: int
    task: int
    before: int


@dataclass
class _GraphWriter:
    """Writes the nodes of all rank cells."""

    network: Network
    rows: list[_GraphNode] = field(default_factory=lambda: [_GraphNode(0, 0, JOIN, -1, 0)])
    tasks: list[Task] = field(default_factory=list)
    places: list[tuple[int, TemplateKey, int]] = field(default_factory=list)
    slots: list[tuple[int, ...]] = field(default_factory=list)
    occurrences: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Rank cell, node, node at whose end it was asked for (-1: where it begins), task."""
    waits: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Rank cell, what for, node at whose end the wait begins, and at whose end it is over."""
    shared: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """The node of a collective or message, by family, group cell and number."""
    arrivals: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By the node of a collective, the node at whose end each rank cell is there, and its task."""
    sent: dict[int, int] = field(default_factory=dict)
    """By the node of a message, that at whose end its sender asked for it."""
    known: dict[object, Activity] = field(default_factory=dict)

    def written(self, cells: Sequence[Sequence[ReplayTask]]) -> StepGraph:
        """Return the graph of the tasks of each rank cell. Raises SimulationError at a deadlock."""
        for cell, own in enumerate(cells):
            _Rank(self, cell).write(own)
        for node, came in self.arrivals.items():
            task = came[0][1]
            arrived = self.joined((one for one, _ in came), task)
            self.slots.append(tuple(one for _, one in came))
            self.rows[node] = _GraphNode(arrived, arrived, len(self.slots) - 1, task, node)
        return self.graph(len(cells))

    def row(self, a: int, b: int, slot: int, task: int) -> int:
        """Write a node and return it."""
        self.rows.append(_GraphNode(a, b, slot, task, len(self.rows)))
        return len(self.rows) - 1

    def joined(self, nodes: Iterable[int], task: int) -> int:
        """Return a node at whose end some others are over."""
        first, *others = [node for node in dict.fromkeys(nodes) if node] or [0]
        for other in others:
            first = self.row(first, other, JOIN, task)
        return first

    def met(self, one: ReplayTask, task: int) -> int:
        """Return the node of a collective or message, which who sends it, or all who come to it, complete."""
        key = *self.group(one), one.number
        if key not in self.shared:
            self.shared[key] = self.row(0, 0, JOIN, task)
        return self.shared[key]

    def group(self, one: ReplayTask) -> GroupCell:
        """Return where a collective or message runs."""
        assert one.call is not None
        return one.call.group, int(self.network.cells.groups[one.call.group].of[one.group])

    def activity(self, one: ReplayTask) -> Activity:
        """Return what is done; equal activities are one."""
        if one.call is None:
            return self.known.setdefault(one.seconds, Activity([Segment(one.seconds, None)]))
        key = one.call, self.group(one)
        if key not in self.known:
            self.known[key] = Activities((), self.network).transfer(one.call, key[1][1])
        return self.known[key]

    def graph(self, cells: int) -> StepGraph:
        """Return the nodes in an order in which each comes after those before it."""
        columns = np.array(self.rows, np.int64).T
        order = ordered(columns[0], columns[1], wide=cells >= WIDE)
        if len(order) < len(self.rows):
            stuck = np.setdiff1d(np.arange(len(self.rows)), order)
            cell, _, place = self.places[columns[3, stuck[0]]]
            rank = int(self.network.cells.ranks.first[cell])
            raise SimulationError(f"deadlock: task {place} of rank {rank} waits for what waits for it")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        a, b, slot, task, before = columns.take(order, axis=1)
        none = np.full(len(order), -1)
        labels = Labels(task, none, none, before)
        parts = self.done(place), self.waited(place), labels, cells
        return StepGraph((place[a], place[b], slot), tuple(self.slots), tuple(self.places), *parts)

    def done(self, place: Ints) -> Occurrences:
        """Return what rank cells do at which nodes; place: of each node in the order of the graph."""
        cell, node, asked, task = np.array(self.occurrences, np.int64).reshape(-1, 4).T
        zeros = np.zeros_like(cell)
        return Occurrences(cell, place[node], np.where(asked < 0, -1, place[asked]), task, zeros - 1, zeros)

    def waited(self, place: Ints) -> Waits:
        """Return what rank cells wait for, as `done` does."""
        kinds: dict[str, int] = {}
        rows = [
            (
                cell,
                kinds.setdefault(kind, len(kinds)),
                0 if over in self.sent else -1,
                asked,
                over,
                self.sent.get(over, 0),
            )
            for cell, kind, asked, over in self.waits
        ]
        cell, kind, stage, asked, over, sent = np.array(rows, np.int64).reshape(-1, 6).T
        zeros = np.zeros_like(cell)
        return Waits(cell, kind, stage, zeros - 1, zeros, place[asked], place[over], place[sent], tuple(kinds))


class _Rank:
    """Writes the tasks of one rank cell."""

    def __init__(self, writer: _GraphWriter, cell: int) -> None:
        self.writer, self.cell, self.number = writer, cell, -1
        self.ends: list[int] = []
        """The node with which each task is over."""
        self.awaited: list[tuple[str, int]] = []
        """What a computation that needs the task waits for, and its node; of what is no wait, an empty name."""
        self.last: dict[GroupCell, int] = {}
        """The last collective of each group, and message to each peer."""
        self.now = 0
        """The last node of computations."""

    def write(self, tasks: Sequence[ReplayTask]) -> None:
        """Write all tasks, in order; at the end the rank waits for those that none of them waits for."""
        how = {"compute": self.compute, "collective": self.collective, "send": self.send, "receive": self.receive}
        needed = {place for one in tasks for place in one.before}
        left = tuple(place for place in range(len(tasks)) if place not in needed)
        for place, one in enumerate((*tasks, ReplayTask("compute", "end", left))):
            self.number = len(self.writer.tasks)
            self.writer.places.append((self.cell, ("begin", None), place))
            self.writer.tasks.append(self.task(one))
            end, what, awaited = how.get(one.kind, self.alone)(one)
            self.ends.append(end)
            self.awaited.append((what, awaited))

    def task(self, one: ReplayTask) -> Task:
        """Return a task as the engine has it."""
        if one.call is None:
            stream = HOST if one.kind == "host" else COMPUTE
            return Task(stream, one.name or one.kind, -1, None, (), None, self.writer.activity(one))
        group = self.writer.group(one)
        if one.kind == "receive":
            return Task(group[0], one.kind, -1, None, (), None, Activity.NONE)
        together, kind = (group, one.call.op) if one.kind == "collective" else (None, one.kind)
        return Task(group[0], kind, -1, together, (), None, self.writer.activity(one))

    def over(self, one: ReplayTask, *others: int) -> int:
        """Return the node at whose end a task may begin; others: nodes that it needs too."""
        return self.writer.joined([*others, *(self.ends[place] for place in one.before)], self.number)

    def played(self, begin: int, asked: int) -> int:
        """Write the node of a task that this rank does alone, once `begin` is over."""
        slots = self.writer.slots
        slots.append((self.number,))
        node = self.writer.row(begin, begin, len(slots) - 1, self.number)
        self.writer.occurrences.append((self.cell, node, asked, self.number))
        return node

    def compute(self, one: ReplayTask) -> tuple[int, str, int]:
        now = self.now
        for what, node in dict.fromkeys(self.awaited[place] for place in one.before):
            if what:
                self.writer.waits.append((self.cell, what, now, node))
                now = self.writer.joined([now, node], self.number)
        now = self.over(one, now)
        end = self.now = self.played(now, -1) if one.seconds else now
        return end, "", end

    def alone(self, one: ReplayTask) -> tuple[int, str, int]:
        begin = self.over(one)
        end = self.played(begin, begin) if one.seconds else begin
        return end, HOST if one.kind == "host" else "", end

    def collective(self, one: ReplayTask) -> tuple[int, str, int]:
        key = self.writer.group(one)
        begin = self.over(one, self.last.get(key, 0))
        node = self.last[key] = self.writer.met(one, self.number)
        self.writer.arrivals.setdefault(node, []).append((begin, self.number))
        self.writer.occurrences.append((self.cell, node, begin, self.number))
        return node, key[0], node

    def send(self, one: ReplayTask) -> tuple[int, str, int]:
        key = self.writer.group(one)
        begin = self.over(one, self.last.get(key, 0))
        node = self.last[key] = self.writer.met(one, self.number)
        self.writer.slots.append((self.number,))
        self.writer.rows[node] = _GraphNode(begin, begin, len(self.writer.slots) - 1, self.number, node)
        self.writer.sent[node] = begin
        self.writer.occurrences.append((self.cell, node, begin, self.number))
        return node, "send", node

    def receive(self, one: ReplayTask) -> tuple[int, str, int]:
        node = self.writer.met(one, self.number)
        return self.over(one, node), "receive", node
