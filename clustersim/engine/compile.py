"""Scripts of jobs + the network that they share → one program a rank cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.collectives.plan import BUFFERED, bus_factor
from clustersim.engine.fabric import HOST, Activity, Carried, Segment
from clustersim.engine.flows import Flow
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.groups import PIPELINES, group_of, roles, tenant
from clustersim.engine.instruction import Compute, Drain, Instruction, Launch, Recv, Send, Wait
from clustersim.engine.launching import Launches, Launching, Seconds, launching
from clustersim.engine.network import Demand, Network, demand, folded, networks
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    UPDATE,
    GroupCell,
    Handle,
    Launched,
    Message,
    Program,
    Ready,
    Task,
    Template,
)
from clustersim.engine.script import Script, collectives, once_each
from clustersim.engine.traffic import Family
from clustersim.model.kernel import VECTOR, Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.host import Launcher
from clustersim.parallel.job import Job
from clustersim.topology.model import Topology


class Speed(NamedTuple):
    """How fast a rank computes."""

    slowdown: float = 1.0
    """How many times as long as a nominal GPU of its type."""
    kind: int = 0
    """The type of its node, by its place in `Topology.kinds`."""
    rank: int = -1
    """The rank whose computations are activities of their own; -1: those of equal ranks are one."""


class Work(NamedTuple):
    """All that a placed job does: the script of each role, and the seconds of every kernel on a nominal GPU.

    A role is a pipeline rank, and where ep ranks have different loads a position in the ep group, the latter counting faster.
    """

    job: Job
    scripts: tuple[Script, ...]
    kernels: tuple[Kernel, ...]
    """The distinct ones of all scripts, in order of appearance."""
    seconds: tuple[Seconds, ...]
    """By type of node of the cluster; those of types that the job is not on are empty."""
    gpus: Ints
    """The GPU of every rank."""
    hosts: tuple[Launcher, ...] = ()
    """What launches the kernels, by type of node; none: hosts that are never late."""
    apart: bool = False
    """No two ranks share an activity, so that each can be given another speed."""


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
    calls: Mapping[Activity, tuple[Collective, int]]
    """Which collective or message the others are, and in which group cell."""
    hosts: tuple[Launcher, ...] = ()
    """What launches the kernels, by type of node."""

    def lengthened(self, work: Work) -> Plan:
        """Return the plan of a step with more microbatches, given the work of that: what passes do stays."""
        role = roles(work.job)
        scripts = [work.scripts[role[rank]] for rank in self.first]
        programs = [
            one._replace(row=script.row, special=dict(zip(script.special, one.special.values(), strict=True)))
            for one, script in zip(self.programs, scripts, strict=True)
        ]
        return self._replace(programs=programs)


class Draft(NamedTuple):
    """Jobs on the cluster that they share, before they are folded."""

    works: tuple[Work, ...]
    uses: tuple[Sequence[tuple[Family, Sequence[Collective]]], ...]
    demand: Demand


def draft(works: Sequence[Work], topology: Topology) -> Draft:
    """Return the groups of jobs and what they may put on links."""
    tenants = [tenant(w.job, topology, w.gpus, collectives(w.scripts)) for w in works]
    return Draft(tuple(works), tuple(one.families for one in tenants), demand(topology, tenants))


def families_of(work: Work, topology: Topology) -> dict[str, Ints]:
    """Return the ranks of all groups of a job that communicate, by family (groups, n), and of its pipelines where messages go in
    their communicators."""
    own = [family for family, _ in tenant(work.job, topology, work.gpus, collectives(work.scripts)).families]
    wide = [family.communicators for family in own if family.communicators is not None]
    return {family.name: family.ranks for family in own} | ({PIPELINES: wide[0]} if wide else {})


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
    ranks, families = net.cells.ranks, tuple(family for family, _ in uses)

    def found() -> tuple[Ints, dict[str, Ints], dict[GroupCell, int]]:
        return roles(work.job)[ranks.first], _places(families, net), _members(families, net)

    role, places, members = topology.cache.once(("ranks", net.cells.key), found)
    speeds = topology.slowdown[work.gpus[ranks.first]], topology.kind_of(work.gpus[ranks.first])
    apart = ranks.first.tolist() if work.apart else [-1] * len(ranks.first)
    made, how = Activities.of(work, net), launching(work.job, work.scripts, work.seconds, work.hosts)
    hosted = dict[float, Activity]()
    columns = role.tolist(), map(Speed, *(column.tolist() for column in speeds), apart), _cells_of(places, len(role))
    programs = [
        _Binder(made, how, speed, cells, frozenset(cells), hosted).program(work.scripts[own])
        for own, speed, cells in zip(*columns, strict=True)
    ]
    return Plan(programs, net, members, ranks.first, ranks.size, made.sources, made.calls, work.hosts)


def _places(families: Iterable[Family], net: Network) -> dict[str, Ints]:
    """Return, by name, the group cell of every rank cell, -1 for none; pairs are asked by who sends and by who receives."""
    ranks, result = net.cells.ranks, {}
    for family in families:
        cells = np.append(net.cells.groups[family.name].of, -1)
        p2p = family.name.startswith("p2p")
        sides = {f"{family.name}/send": 0, f"{family.name}/receive": 1} if p2p else {family.name: None}
        for place, side in sides.items():
            result[place] = cells[group_of(family, len(ranks.of), side)[ranks.first]]
    return result


def _cells_of(places: Mapping[str, Ints], count: int) -> Iterator[dict[str, int]]:
    """Yield the group cells of each of so many rank cells by place; places where it has no group are left out."""
    columns = [[(place, cell) for cell in cells.tolist()] for place, cells in places.items()]
    rows = zip(*columns, strict=True) if columns else repeat((), count)
    return ({place: cell for place, cell in row if cell >= 0} for row in rows)


def _members(families: Iterable[Family], net: Network) -> dict[GroupCell, int]:
    """Count the rank cells in the first group of every group cell."""
    result: dict[GroupCell, int] = {}
    for family in families:
        cells = np.sort(net.cells.ranks.of[family.ranks[net.cells.groups[family.name].first]], axis=1)
        different = (np.diff(cells, axis=1) > 0).sum(axis=1) + 1
        result |= {(family.name, cell): count for cell, count in enumerate(different.tolist())}
    return result


@dataclass(frozen=True, slots=True)
class _Binder:
    """Binds the script of a rank to the cells that it is in; equal activities are one object."""

    activities: Activities
    launching: Launching
    """How the host launches passes."""
    speed: Speed
    cells: Mapping[str, int]
    """The group cell of the rank, by family …"""
    families: frozenset[str]
    """… all of them."""
    hosted: dict[float, Activity]
    """What hosts do, by seconds."""
    computed: dict[tuple[int, float | None], Activity] = field(default_factory=dict)
    """What the rank computes, by the items and the seconds of launches …"""
    sent: dict[int, Activity] = field(default_factory=dict)
    """… and its collectives and messages."""

    def program(self, script: Script) -> Program:
        def bound(lines: Sequence[Instruction]) -> Template:
            return tuple(self.tasks(lines))

        return Program(
            (*self.started(), *bound(script.begin)),
            script.row,
            {key: bound(lines) for key, lines in script.steps.items()},
            {action: bound(lines) for action, lines in script.special.items()},
            bound(script.finish),
            script.pairing,
        )

    def started(self) -> Iterator[Task]:
        """Yield the wait for the first launches of a step, after which the host is ahead."""
        if self.launching.start:
            yield Task(HOST, READY, -1, None, (), None, self.alone(self.launching.start))
            yield _waiting([Ready()])

    def tasks(self, lines: Sequence[Instruction]) -> Iterator[Task]:
        """Yield the tasks of a pass, bound to the cells of the rank.

        What is waited for belongs to the next computation; before a launch, and at the end, a task waits and does nothing else.
        """
        waits: list[Handle] = []
        behind, calls = self.behind(lines), 0
        last = max(behind, default=0)
        for place, line in enumerate(lines):
            if isinstance(line, Wait):
                waits.append(_launched(line))
            elif isinstance(line, Recv):
                waits.append(Message((line.family, self.cells[f"{line.family}/receive"]), line.stage))
            elif isinstance(line, Compute):
                one = _Bound(line, calls)
                if place in behind:
                    yield from self.following(one, tuple(waits))
                elif place < last:
                    yield from self.leading(one, tuple(waits))
                else:
                    fresh = self.launching.mode == "synchronised" or line.kind in UPDATE
                    yield self.computation(one, tuple(waits), fresh and bool(self.activities.hosts))
                waits, calls = [], 0
            elif isinstance(line, Drain):
                if self.launching.mode == "ahead" or place < last:  # else the next pass begins so anyway
                    yield from self.drained(waits)
                    waits, calls = [], 0
            else:
                if waits:
                    yield _waiting(waits)
                yield self.launched(line)
                calls += 1
                waits = [Launched(line.collective.group)] if isinstance(line, Send) and line.wait else []
        if waits:
            yield _waiting(waits)

    def behind(self, lines: Sequence[Instruction]) -> list[int]:
        """Return the places of computations whose launches begin when those before them are done, not when the GPU is free."""
        if self.launching.mode == "prompt":
            return []
        places = [place for place, line in enumerate(lines) if isinstance(line, Compute) and line.kind not in UPDATE]
        return places if self.launching.mode == "ahead" else places[1:]

    def computation(self, one: _Bound, waits: tuple[Handle, ...], fresh: bool) -> Task:
        """Return a computation; fresh: its host begins to launch it when it begins."""
        line = one.line
        group = (line.family, self.cells[line.family]) if line.family else None
        return Task(COMPUTE, line.kind, line.stage, group, waits, None, self.compute(one, fresh))

    def drained(self, waits: Sequence[Handle]) -> Iterator[Task]:
        """Yield that the host waits for its GPU, which waits for these."""
        if waits:
            yield _waiting(waits)
        yield Task(HOST, SYNCHRONISE, -1, None, (), None, Activity.NONE)

    def leading(self, one: _Bound, waits: tuple[Handle, ...]) -> Iterator[Task]:
        """Yield a computation at which the host waits for its GPU, and goes on to others from there."""
        yield from self.drained(waits)
        yield self.computation(one, (), fresh=True)
        yield self.busy(one)

    def following(self, one: _Bound, waits: tuple[Handle, ...]) -> Iterator[Task]:
        """Yield a computation whose kernels the host launches when it has launched all those before, whatever its GPU does.

        With D and H when GPU and host are free, G what the kernels take in a row and K what they take when launched from 0, it
        is over at max(D + G, H + K): as if it could not begin before H + K - G.
        """
        task = self.computation(one, (*waits, Ready()), fresh=False)
        lead = self.compute(one, fresh=True).idle - task.activity.idle
        yield Task(HOST, READY, one.line.stage, None, (), None, self.alone(lead))
        yield task
        yield self.busy(one)

    def busy(self, one: _Bound) -> Task:
        """Return what the host does to launch a computation."""
        seconds = self.activities.launching(one.line.items, self.speed, self.families, self.extra(one))
        return Task(HOST, one.line.kind, one.line.stage, None, (), None, self.alone(seconds))

    def extra(self, one: _Bound) -> float:
        """Return the seconds of launches that are no kernel of the computation: of messages before it, of tensors."""
        if not self.activities.hosts:
            return 0.0
        host = self.activities.hosts[self.speed.kind]
        return one.calls * host.collective + one.line.tensors * host.parameter + one.line.parts * host.part

    def alone(self, seconds: float) -> Activity:
        """Return an activity of so many seconds; equal ones are one."""
        return self.hosted.setdefault(seconds, Activity((Segment(seconds, None),)))

    def compute(self, one: _Bound, fresh: bool) -> Activity:
        extra = self.extra(one) if fresh else None
        key = id(one.line.items), extra  # many passes are the same, of other stages
        if key not in self.computed:
            self.computed[key] = self.activities.work(one.line.items, self.speed, self.cells, self.families, extra)
        return self.computed[key]

    def launched(self, line: Send | Launch) -> Task:
        family = line.collective.group
        if isinstance(line, Send):
            pair = (family, self.cells[f"{family}/send"])
            activity = self.transfer(line.collective, pair[1])
            return Task(family, "send", line.stage, None, (), Message(pair, line.stage), activity)
        group = (family, self.cells[family])
        waits = (_launched(line.after),) if line.after else ()
        activity = self.transfer(line.collective, group[1])
        return Task(family, line.collective.op, line.stage, group, waits, None, activity)

    def transfer(self, call: Collective, cell: int) -> Activity:
        """Return the activity of a collective or message, found once for each object."""
        if id(call) not in self.sent:
            self.sent[id(call)] = self.activities.transfer(call, cell)
        return self.sent[id(call)]


def _launched(wait: Wait) -> Launched:
    return Launched(wait.family, wait.first, wait.but)


class _Bound(NamedTuple):
    """A computation on a rank."""

    line: Compute
    calls: int
    """Collectives and messages launched right before."""


def _waiting(waits: Sequence[Handle]) -> Task:
    return Task(COMPUTE, "", -1, None, tuple(waits), None, Activity.NONE)


# Kernels and collectives become activities: seconds of compute with flows between them.


@dataclass(frozen=True, slots=True)
class Activities:
    """Makes the activities of a job on its network; those with the same flows share their segments."""

    seconds: Sequence[Seconds]
    """Of each kernel on a nominal GPU, by type of node."""
    network: Network
    hosts: Sequence[Launcher] = ()
    """What launches them, by type of node; none: they are never late."""
    sms: int | None = 0
    """SMs that communication on streams of its own takes from passes; None: one a channel of NCCL."""
    memory: float | None = 0.0
    """Share of their memory's bandwidth that it takes from kernels which that bounds; None: what NCCL moves."""
    written: dict[tuple[object, ...], _Written] = field(default_factory=dict)
    bound: dict[tuple[object, ...], Activity] = field(default_factory=dict)
    """By what is written or called, and where …"""
    known: dict[tuple[object, ...], Activity] = field(default_factory=dict)
    """… by the flows …"""
    alike: dict[tuple[object, ...], Activity] = field(default_factory=dict)
    """… and by what those take."""
    sources: dict[Activity, Source] = field(default_factory=dict)
    calls: dict[Activity, tuple[Collective, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Work, network: Network) -> Activities:
        """Return what makes the activities of a job on its network."""
        return cls(work.seconds, network, work.hosts, work.job.sms_beside, work.job.memory_beside)

    def work(
        self,
        items: Steps,
        speed: Speed,
        cells: Mapping[str, int],
        families: frozenset[str],
        extra: float | None = None,
    ) -> Activity:
        """Return the activity of kernels and collectives in the order given.

        speed: of this rank. cells: the rank's group cell by family; collectives of other `families` than these are left out.
        extra: seconds of launches besides, where the host begins with the first; None: all is launched in time.
        """
        written = self.text(items, speed, families, extra)
        key = id(written), speed.rank, *[cells[family] for family in written.families]
        if (known := self.bound.get(key)) is not None:
            return known
        flows, carried = {}, Carried()
        for call, size in written.sizes.items():
            cell = cells[call.group]
            to = self.network.variant(call, cell), cell
            carried[to], flows[call] = carried.get(to, 0.0) + size, self.network.flows(call, cell)
        source = Source(items, speed, families, extra, flows)
        self.bound[key] = made = self.made(source).carrying(carried)
        self.sources[made] = source
        return made

    def launching(self, items: Steps, speed: Speed, families: frozenset[str], extra: float) -> float:
        """Return the seconds that the host takes to launch items."""
        return self.text(items, speed, families, extra).launching

    def text(self, items: Steps, speed: Speed, families: frozenset[str], extra: float | None) -> _Written:
        """Return the seconds before each of the collectives of those families, and after the last."""
        key = id(items), *speed[:2], families, extra
        if key not in self.written:
            host = None if extra is None or not self.hosts else Launches(self.hosts[speed.kind], items, extra)
            self.written[key] = _write(items, self.seconds[speed.kind], speed.slowdown, families, host)
        return self.written[key]

    def made(self, source: Source) -> Activity:
        """Return the activity of a source; those with the same flows are one, but for ranks that are kept apart."""
        if source.speed.rank >= 0:
            shared = self.made(source._replace(speed=source.speed._replace(rank=-1)))
            return shared.timed(shared.segments, shared.memory)
        key = id(source.items), source.speed, source.families, source.extra, *map(id, source.flows.values())
        if key not in self.known:
            alike = self.alike.get(source.key)
            if alike is None:
                memory = self.text(*source[:4]).memory
                self.alike[source.key] = self.known[key] = Activity(self.segments(source), memory=memory)
            else:
                calls = (source.flows[part.call] for part in self.text(*source[:4]).parts)
                self.known[key] = alike.over((*chain.from_iterable(calls), None), {})
        return self.known[key]

    def segments(self, source: Source) -> tuple[Segment, ...]:
        """Return the segments of the activity of a source."""
        sms = self.network.topology.kinds[source.speed.kind].gpu.sms
        return tuple(_segments(self.text(*source[:4]), source.flows, sms))

    def timed(self, activity: Activity, source: Source) -> Activity:
        """Return an activity with the times of a source that has its flows."""
        return activity.timed(self.segments(source), self.text(*source[:4]).memory)

    def transfer(self, call: Collective, cell: int) -> Activity:
        """Return the activity of one collective or one message."""
        if (call, cell) not in self.bound:
            flows = self.network.flows(call, cell)
            taken = self.taken(call, cell, flows)
            key = taken, *[flow[:4] for flow in flows]
            alike = self.alike.get(key)
            if alike is None:
                share, memory = taken
                alike = self.alike[key] = Activity(Segment(0.0, flow, share=share, memory=memory) for flow in flows)
            carried = {(self.network.variant(call, cell), cell): call.size}
            self.bound[call, cell] = made = alike.over(flows, carried)
            self.calls[made] = call, cell
        return self.bound[call, cell]

    def taken(self, call: Collective, cell: int, flows: Sequence[Flow]) -> tuple[float, float]:
        """Return the shares of SMs and of the memory's bandwidth that communication takes from the passes beside it."""
        plan, gpus = self.network.plan(call, cell), [kind.gpu for kind in self.network.topology.kinds]
        sms = plan.channels if self.sms is None else self.sms
        memory = self.memory
        if memory is None:
            moved = BUFFERED * bus_factor(call.op, math.prod(plan.levels)) * call.size
            memory = moved / (math.fsum(flow.idle for flow in flows) * min(gpu.memory_bandwidth for gpu in gpus))
        return sms / min(gpu.sms for gpu in gpus), memory


class Source(NamedTuple):
    """What an activity is made of, whatever its kernels take."""

    items: Steps
    speed: Speed
    families: frozenset[str]
    """Collectives of other families are left out."""
    extra: float | None
    """Seconds of launches besides, where the host begins with the first; None: all is launched in time."""
    flows: Mapping[Collective, tuple[Flow, ...]]

    @property
    def key(self) -> tuple[object, ...]:
        """What tells how long it takes on an idle fabric: like groups have the same on other links."""
        return (id(self.items), *self[1:4], *(tuple(flow[:4] for flow in flows) for flows in self.flows.values()))


class _Part(NamedTuple):
    """A call, the seconds of kernels before and beside it, and before when it cannot begin, as it is not launched."""

    before: float
    launched: float
    call: Collective
    beside: float = 0.0


class _Written(NamedTuple):
    """What computes before each call and after the last, and when it is launched; the bytes of each different call in all."""

    parts: tuple[_Part, ...]
    rest: tuple[float, float]
    sizes: Mapping[Collective, float]
    families: tuple[str, ...]
    """Of the calls, each once."""
    launching: float = 0.0
    memory: float = 0.0
    """Seconds of kernels that memory's bandwidth bounds."""


def _write(
    items: Steps, seconds: Seconds, slowdown: float, families: frozenset[str], host: Launches | None = None
) -> _Written:
    parts: list[_Part] = []
    sizes: dict[Collective, float] = {}
    compute, over, memory = 0.0, 0, 0.0
    known = {id(item): seconds[item] * slowdown for item in once_each(items) if isinstance(item, Kernel)}
    for item in items:
        if isinstance(item, Kernel):
            took = known[id(item)]
            if item.kind in VECTOR:
                memory += took
            if over:
                parts[-1], over = parts[-1]._replace(beside=parts[-1].beside + took), over - 1
            else:
                compute += took
            if host is not None:
                host.kernel(item, took)
        elif isinstance(item, Collective) and item.group in families:
            parts.append(_Part(compute, host.call(item) if host else 0.0, item))
            sizes[item] = sizes.get(item, 0.0) + item.size
            compute, over = 0.0, item.over
    called = tuple(dict.fromkeys(call.group for call in sizes))
    if host is None:
        return _Written(tuple(parts), (compute, 0.0), sizes, called, memory=memory)
    return _Written(tuple(parts), (compute, host.queue.over), sizes, called, host.queue.launched, memory)


def _segments(written: _Written, flows: Mapping[Collective, Sequence[Flow]], sms: float) -> Iterator[Segment]:
    """Yield the segments of what is written; sms: of the GPU."""
    compute = launched = 0.0
    for before, begun, call, beside in written.parts:
        compute, launched = compute + before, max(launched, begun)
        idle = math.fsum(flow.idle for flow in flows[call]) or 1.0
        for flow in flows[call]:
            yield Segment(
                compute, flow, launched, beside * flow.idle / idle, (call.sms or 0) / sms
            )  # over all of its phases
            compute = launched = 0.0
        if not flows[call]:
            compute += beside
    compute, launched = compute + written.rest[0], max(launched, written.rest[1])
    yield Segment(compute, None, launched)
