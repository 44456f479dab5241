"""Scripts of jobs + the network that they share → one program a rank cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.engine.fabric import Activity, Carried, Segment
from clustersim.engine.flows import Flow
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.groups import group_of, roles, tenant
from clustersim.engine.instruction import Compute, Instruction, Launch, Recv, Send, Wait
from clustersim.engine.network import Demand, Network, demand, folded, networks
from clustersim.engine.program import COMPUTE, GroupCell, Handle, Launched, Message, Program, Task, Template
from clustersim.engine.script import Script
from clustersim.engine.traffic import Family
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.job import Job
from clustersim.topology.model import Topology


class Work(NamedTuple):
    """All that a placed job does: the script of each role, and the seconds of every kernel on a nominal GPU.

    A role is a pipeline rank, and where ep ranks have different loads a position in the ep group, the latter counting faster.
    """

    job: Job
    scripts: tuple[Script, ...]
    seconds: Seconds
    gpus: Ints
    """The GPU of every rank."""


class Plan(NamedTuple):
    """What the engine plays of a job: a program a rank cell, the folded network, and how many rank cells each group has."""

    programs: list[Program]
    network: Network
    members: Mapping[GroupCell, int]
    first: Ints
    size: Ints
    """Of each rank cell, its first rank and the number of its ranks."""
    sources: Mapping[Activity, Source]
    """What the activities with kernels are made of."""


class Draft(NamedTuple):
    """Jobs on the cluster that they share, before they are folded."""

    works: tuple[Work, ...]
    uses: tuple[Sequence[tuple[Family, Sequence[Collective]]], ...]
    demand: Demand


def draft(works: Sequence[Work], topology: Topology) -> Draft:
    """Return the groups of jobs and what they may put on links."""
    tenants = [tenant(w.job, topology, w.gpus, [c for s in w.scripts for c in s.collectives()]) for w in works]
    return Draft(tuple(works), tuple(one.families for one in tenants), demand(topology, tenants))


def plan(works: Sequence[Work], topology: Topology, fold: bool = True) -> tuple[Plan, ...]:
    """Return the plan of every job of those that share the cluster. `fold` off gives every rank its own program."""
    drafted = draft(works, topology)
    every = np.ones(len(drafted.demand.links), bool)
    return bound(drafted, folded(drafted.demand, every, fold), every)


def bound(drafted: Draft, cells: Partition, kept: Mask) -> tuple[Plan, ...]:
    """Return the plan of every job on the `cells` that they fold to with those links that are `kept`."""
    nets = networks(drafted.demand, cells, kept)
    return tuple(_plan(*one, drafted.demand.topology) for one in zip(drafted.works, drafted.uses, nets, strict=True))


def _plan(work: Work, uses: Sequence[tuple[Family, Sequence[Collective]]], net: Network, topology: Topology) -> Plan:
    role, slowdown = roles(work.job), topology.slowdown[work.gpus]
    places = _places(uses, len(work.gpus))
    binder = _Binder(Activities(work.seconds, net), {})
    programs = [
        binder.program(work.scripts[role[r]], int(role[r]), float(slowdown[r]), _cells_of(int(r), places, net))
        for r in net.cells.ranks.first
    ]
    ranks = net.cells.ranks
    return Plan(programs, net, _members(uses, net), ranks.first, ranks.size, binder.activities.sources)


def _places(uses: Sequence[tuple[Family, Sequence[Collective]]], ranks: int) -> dict[str, Ints]:
    """Return, by name, the group of every rank; pairs are asked by who sends and by who receives."""
    result = {}
    for family, _ in uses:
        if family.name.startswith("p2p"):
            result[f"{family.name}/send"] = group_of(family, ranks, 0)
            result[f"{family.name}/receive"] = group_of(family, ranks, 1)
        else:
            result[family.name] = group_of(family, ranks)
    return result


def _cells_of(rank: int, places: Mapping[str, Ints], net: Network) -> dict[str, int]:
    """Return the group cell of a rank by place; places where it has no group are left out."""
    return {
        place: int(net.cells.groups[place.split("/")[0]].of[groups[rank]])
        for place, groups in places.items()
        if groups[rank] >= 0
    }


def _members(uses: Sequence[tuple[Family, Sequence[Collective]]], net: Network) -> dict[GroupCell, int]:
    """Count the rank cells in the first group of every group cell."""
    result: dict[GroupCell, int] = {}
    for family, _ in uses:
        cells = np.sort(net.cells.ranks.of[family.ranks[net.cells.groups[family.name].first]], axis=1)
        different = (np.diff(cells, axis=1) > 0).sum(axis=1) + 1
        result |= {(family.name, cell): count for cell, count in enumerate(different.tolist())}
    return result


@dataclass(frozen=True, slots=True)
class _Binder:
    """Binds scripts to network cells; equal activities are one object."""

    activities: Activities
    known: dict[tuple[object, ...], Activity]

    def program(self, script: Script, role: int, slowdown: float, cells: Mapping[str, int]) -> Program:
        def bound(lines: Sequence[Instruction], *where: object) -> Template:
            return tuple(self.tasks(lines, (role, *where), slowdown, cells))

        return Program(
            bound(script.begin, "begin"),
            script.row,
            {key: bound(lines, "steps", key) for key, lines in script.steps.items()},
            {action: bound(lines, "special", action) for action, lines in script.special.items()},
            bound(script.finish, "finish"),
        )

    def tasks(
        self, lines: Sequence[Instruction], key: tuple[object, ...], slowdown: float, cells: Mapping[str, int]
    ) -> Iterator[Task]:
        """Yield the tasks of a pass, bound to the cells of a rank; `key` says where in the scripts it stands.

        What is waited for belongs to the next computation; before a launch, and at the end, a task waits and does nothing else.
        """
        waits: list[Handle] = []
        for place, line in enumerate(lines):
            if isinstance(line, Wait):
                waits.append(_launched(line))
            elif isinstance(line, Recv):
                waits.append(Message((line.family, cells[f"{line.family}/receive"]), line.stage))
            elif isinstance(line, Compute):
                yield self.computation(line, (*key, place), tuple(waits), slowdown, cells)
                waits = []
            else:
                if waits:
                    yield _waiting(waits)
                yield self.launched(line, cells)
                waits = [Launched(line.collective.group)] if isinstance(line, Send) and line.wait else []
        if waits:
            yield _waiting(waits)

    def computation(
        self,
        line: Compute,
        key: tuple[object, ...],
        waits: tuple[Handle, ...],
        slowdown: float,
        cells: Mapping[str, int],
    ) -> Task:
        group = (line.family, cells[line.family]) if line.family else None
        activity = self.compute(line, (*key, slowdown, group), slowdown, cells)
        return Task(COMPUTE, line.kind, line.stage, group, waits, None, activity)

    def launched(self, line: Send | Launch, cells: Mapping[str, int]) -> Task:
        family = line.collective.group
        if isinstance(line, Send):
            pair = (family, cells[f"{family}/send"])
            activity = self.transfer(line.collective, pair)
            return Task(family, "send", line.stage, None, (), Message(pair, line.stage), activity)
        group = (family, cells[family])
        waits = (_launched(line.after),) if line.after else ()
        return Task(family, line.collective.op, line.stage, group, waits, None, self.transfer(line.collective, group))

    def compute(self, line: Compute, key: tuple[object, ...], slowdown: float, cells: Mapping[str, int]) -> Activity:
        if key not in self.known:
            self.known[key] = self.activities.work(line.items, slowdown, cells)
        return self.known[key]

    def transfer(self, call: Collective, group: GroupCell) -> Activity:
        key = (call, group)
        if key not in self.known:
            self.known[key] = self.activities.transfer(call, group[1])
        return self.known[key]


def _launched(wait: Wait) -> Launched:
    return Launched(wait.family, wait.first, wait.but)


def _waiting(waits: Sequence[Handle]) -> Task:
    return Task(COMPUTE, "", -1, None, tuple(waits), None, Activity.NONE)


# Kernels and collectives become activities: seconds of compute with flows between them.

Seconds = Mapping[Kernel, float]


@dataclass(frozen=True, slots=True)
class Activities:
    """Makes the activities of a job on its network; those with the same flows share their segments."""

    seconds: Seconds
    """Of each kernel on a nominal GPU."""
    network: Network
    written: dict[tuple[object, ...], _Written] = field(default_factory=dict)
    known: dict[tuple[object, ...], Activity] = field(default_factory=dict)
    sources: dict[Activity, Source] = field(default_factory=dict)

    def work(self, items: Steps, slowdown: float, cells: Mapping[str, int]) -> Activity:
        """Return the activity of kernels and collectives in the order given.

        slowdown: factor of this rank. cells: the rank's group cell by family; collectives of other families are left out.
        """
        written = self.text(items, slowdown, frozenset(cells))
        flows = {call: self.network.flows(call, cells[call.group]) for call in written.sizes}
        source = Source(items, slowdown, frozenset(cells), flows)
        carried: Carried = {}
        for call, size in written.sizes.items():
            to = self.network.variant(call), cells[call.group]
            carried[to] = carried.get(to, 0.0) + size
        made = self.made(source).carrying(carried)
        self.sources[made] = source
        return made

    def text(self, items: Steps, slowdown: float, families: frozenset[str]) -> _Written:
        """Return the seconds before each of the collectives of those families, and after the last."""
        key = id(items), slowdown, families
        if key not in self.written:
            self.written[key] = _write(items, self.seconds, slowdown, families)
        return self.written[key]

    def made(self, source: Source) -> Activity:
        """Return the activity of a source; those with the same flows are one."""
        key = id(source.items), source.slowdown, source.families, *map(id, source.flows.values())
        if key not in self.known:
            self.known[key] = Activity(_segments(self.text(*source[:3]), source.flows))
        return self.known[key]

    def transfer(self, call: Collective, cell: int) -> Activity:
        """Return the activity of one collective or one message."""
        flows = self.network.flows(call, cell)
        return Activity((Segment(0.0, flow) for flow in flows), {(self.network.variant(call), cell): call.size})


class Source(NamedTuple):
    """What an activity is made of, whatever its kernels take."""

    items: Steps
    slowdown: float
    families: frozenset[str]
    """Collectives of other families are left out."""
    flows: Mapping[Collective, tuple[Flow, ...]]


def timed(sources: Mapping[Activity, Source], seconds: Seconds, network: Network) -> dict[Activity, Activity]:
    """Return, for each activity that has kernels, the one in which these take other `seconds`."""
    activities, known = Activities(seconds, network), dict[tuple[object, ...], Activity]()
    result = {}
    for old, source in sources.items():
        key = id(old.segments), source.slowdown
        if key not in known:
            known[key] = old.timed([one.compute for one in _segments(activities.text(*source[:3]), source.flows)])
        result[old] = known[key].carrying(old.carried)
    return result


class _Written(NamedTuple):
    """Seconds before each call, and after the last; and the bytes of each different call in all."""

    parts: tuple[tuple[float, Collective], ...]
    rest: float
    sizes: Mapping[Collective, float]


def _write(items: Steps, seconds: Seconds, slowdown: float, families: frozenset[str]) -> _Written:
    parts: list[tuple[float, Collective]] = []
    sizes: dict[Collective, float] = {}
    compute = 0.0
    for item in items:
        if isinstance(item, Kernel):
            compute += seconds[item] * slowdown
        elif item.group in families:
            parts.append((compute, item))
            sizes[item] = sizes.get(item, 0.0) + item.size
            compute = 0.0
    return _Written(tuple(parts), compute, sizes)


def _segments(written: _Written, flows: Mapping[Collective, Sequence[Flow]]) -> Iterator[Segment]:
    compute = 0.0
    for before, call in written.parts:
        compute += before
        for flow in flows[call]:
            yield Segment(compute, flow)
            compute = 0.0
    yield Segment(compute + written.rest, None)
