"""Scripts of jobs + the network that they share → a plan: programs of roles, and columns over rank cells.

The activity of each task of a `Layout` is found at once for all rank cells that compute at one speed; rank cells whose groups
have the same flows share an activity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct_rows, offsets
from clustersim.collectives.plan import BUFFERED, bus_factor
from clustersim.engine.fabric import Activity, SegmentRow, SegmentTimes
from clustersim.engine.flows import Flow
from clustersim.engine.groups import PIPELINES, group_of, roles, tenant
from clustersim.engine.launching import LaunchTimes, Seconds, hosted, launching
from clustersim.engine.network import Demand, Network, Tenant, demand, folded, networks
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    Carried,
    Launches,
    Program,
    Task,
    once_each,
)
from clustersim.engine.script import collectives, layouts
from clustersim.engine.traffic import Family, Variant
from clustersim.model.kernel import VECTOR, Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.host import Launcher
from clustersim.parallel.job import Job
from clustersim.parallel.offload import DIRECTIONS, offloads
from clustersim.topology.host_links import with_host_links
from clustersim.topology.model import Topology


class Speed(NamedTuple):
    """Speed of a rank's computation."""

    slowdown: float = 1.0
    """Time of the GPU over that of a nominal GPU of its type."""
    kind: int = 0
    """Type of its node, as an index into `Topology.kinds`."""
    rank: int = -1
    """Rank whose computations have their own activities; -1: equal ranks share them."""


class Work(NamedTuple):
    """A placed job with the script of each role, and the seconds of every kernel on a nominal GPU.

    A role is a pipeline rank, combined with a position in the ep group if loads differ there; the position counts faster.
    """

    job: Job
    scripts: tuple[Program, ...]
    kernels: tuple[Kernel, ...]
    """Distinct kernels of all scripts, in order of appearance."""
    seconds: tuple[Seconds, ...]
    """Seconds of each kernel by node type; empty for types that the job does not use."""
    gpus: Ints
    """GPU of every rank (ranks,)."""
    hosts: tuple[Launcher, ...] = ()
    """Launchers of the kernels by node type; () if launches never delay a kernel."""
    apart: bool = False
    """Whether no two ranks share an activity, so that each can have its own speed."""


class Plan(NamedTuple):
    """Input of the engines: the programs of roles, the folded network, and columns over rank cells and their tasks."""

    programs: Sequence[Program]
    role: Ints
    """Program of each rank cell."""
    groups: Mapping[str, Ints]
    """Group cell of each rank cell by family, -1 for none; for messages by `family/send` and `family/receive`."""
    activities: Sequence[Activity]
    """Distinct activities."""
    does: Ints
    """Activity of each task of each rank cell, rank cell after rank cell."""
    network: Network
    first: Ints
    size: Ints
    """First rank of each rank cell, and its number of ranks (cells,)."""
    hosts: tuple[Launcher, ...] = ()
    """Launchers of the kernels by node type."""

    @property
    def begins(self) -> Ints:
        """First task of each rank cell, and the number of all tasks."""
        return task_begins(self.programs, self.role)

    def group(self, cell: int, family: str, side: str = "") -> int:
        """Return the group cell of a rank cell; side: `send` or `receive` for messages."""
        return int(self.groups[f"{family}/{side}" if side else family][cell])

    def placed(self, cell: int, calls: Mapping[Collective, float]) -> Carried:
        """Return the bytes of collectives and messages of a rank cell by variant and group cell."""
        found: dict[tuple[Variant, int], float] = {}
        for call, size in calls.items():
            group = self.group(cell, call.group, "send" if call.op == "send" else "")
            to = self.network.variant(call, group), group
            found[to] = found.get(to, 0.0) + size
        return found

    def carried(self) -> Carried:
        """Return the bytes of all collectives and messages of a step, by variant and group cell."""
        often = [Counter([key for key, _ in program.passes()]) for program in self.programs]
        sums: dict[tuple[int, bytes], dict[Collective, float]] = {}
        total: dict[tuple[Variant, int], float] = {}
        for cell, (role, begin) in enumerate(zip(self.role.tolist(), self.begins.tolist(), strict=False)):
            layout = self.programs[role].layout
            does = self.does[begin : begin + len(layout.tasks)]
            if (key := (role, does.tobytes())) not in sums:
                own = sums[key] = {}
                for name, places in layout.templates.items():
                    for activity in does[places.start : places.stop].tolist():
                        for call, size in self.activities[activity].calls.items():
                            own[call] = own.get(call, 0.0) + often[role][name] * size
            total |= self.placed(cell, sums[key])
        return total


def task_begins(programs: Sequence[Program], role: Ints) -> Ints:
    """Return the first task of each rank cell, and the number of all tasks; role: the program of each rank cell."""
    return offsets(np.array([len(one.layout.tasks) for one in programs], np.int64)[role])


def demand_of(works: Sequence[Work], topology: Topology) -> Demand:
    """Return the loads of jobs before folding; with links to hosts if a job offloads."""
    topology = with_host_links(topology) if any(offloads(w.job) for w in works) else topology
    return demand(topology, [tenant(w.job, topology, w.gpus, collectives(w.scripts)) for w in works])


def families_of(work: Work, topology: Topology) -> dict[str, Ints]:
    """Return the ranks of all groups of a job that communicate, by family (groups, n), and of its pipelines where messages go in
    their communicators."""
    own = [family for family, _ in tenant(work.job, topology, work.gpus, collectives(work.scripts)).families]
    wide = [family.communicators for family in own if family.communicators is not None]
    return {family.name: family.ranks for family in own} | ({PIPELINES: wide[0]} if wide else {})


def plan(works: Sequence[Work], topology: Topology, fold: bool = True) -> tuple[Plan, ...]:
    """Return the plan of every job of those that share the cluster. `fold` off gives every rank its own program."""
    asked = demand_of(works, topology)
    return tuple(map(_plan, works, asked.tenants, networks(asked, folded(asked, fold))))


def _plan(work: Work, placed: Tenant, net: Network) -> Plan:
    """Return the plan of one job: the activity of every task on each rank cell, for equal layouts and speeds at once."""
    topology, ranks, families = net.topology, net.cells.ranks, [family for family, _ in placed.families]

    def found() -> tuple[Ints, dict[str, Ints]]:
        return roles(work.job)[ranks.first], cells_of(families, net)

    role, groups = topology.cache.once(("ranks", net.cells.key), found)
    gpus, job = work.gpus[ranks.first], work.job
    made = Activities(work.seconds, net, work.hosts, job.communication_sms, job.communication_memory)
    how = launching(job, work.scripts, work.seconds, work.hosts)
    # a layout without hosts may still have the points where a host waits for its GPU
    own = {one: hosted(one, how) if work.hosts or one.synchronised else one for one in layouts(work.scripts)}
    programs = [script._replace(layout=own[script.layout]) for script in work.scripts]
    inside = [family for family in dict.fromkeys(chain(*[one.inside for one in own.values()])) if family in groups]
    slowdown, kind = topology.slowdown[gpus], topology.kind_of(gpus)
    number = {one: place for place, one in enumerate(own)}
    layout = np.array([number[script.layout] for script in work.scripts])[role]
    apart = ranks.first if work.apart else np.full(len(role), -1)
    same = [layout, slowdown.view(np.int64), kind, apart, *[groups[family] >= 0 for family in inside]]
    firsts, of = distinct_rows(np.stack(same, axis=1, dtype=np.int64))
    begins = task_begins(programs, role)
    does = np.empty(begins[-1], np.int64)
    for alike, first in enumerate(firsts.tolist()):
        cells = np.flatnonzero(of == alike)
        speed = Speed(float(slowdown[first]), int(kind[first]), int(apart[first]))
        binder = _Binder(made, speed, groups, cells, frozenset(f for f in inside if groups[f][first] >= 0))
        tasks, which = programs[role[first]].layout.distinct
        different = np.empty((len(tasks), len(cells)), np.int64)
        for row, task in enumerate(tasks):
            different[row] = binder.activity(task)
        does[begins[cells] + np.arange(len(which))[:, np.newaxis]] = different[which]
    return Plan(programs, role, groups, made.activities, does, net, ranks.first, ranks.size, work.hosts)


def cells_of(families: Iterable[Family], net: Network) -> dict[str, Ints]:
    """Return {family: group cell of every rank cell, -1 for none}; for messages, one entry for each side."""
    ranks, result = net.cells.ranks, {}
    for family in families:
        cells = np.append(net.cells.groups[family.name].of, -1)
        p2p = family.name.startswith("p2p")
        sides = {f"{family.name}/send": 0, f"{family.name}/receive": 1} if p2p else {family.name: None}
        for place, side in sides.items():
            result[place] = cells[group_of(family, len(ranks.of), side)[ranks.first]]
    return result


@dataclass(frozen=True, slots=True)
class _Binder:
    """Finds what rank cells of one layout and speed do: the number of one activity, or of one for each rank cell."""

    activities: Activities
    speed: Speed
    groups: Mapping[str, Ints]
    """Group cells of all rank cells, by family."""
    cells: Ints
    """Rank cells whose tasks are bound."""
    families: frozenset[str]
    """Families of which `cells` have groups."""
    known: dict[tuple[str, ...], Sequence[LikeCells]] = field(default_factory=dict)
    """Cells with the same flows as each rank cell's groups, by families."""

    def alike(self, families: tuple[str, ...]) -> Sequence[LikeCells]:
        """Return for each rank cell the cells with the same flows as its group in each of `families`."""
        if families not in self.known:
            like = [
                (self.activities.network.equivalent_cells(one), self.groups[one][self.cells].tolist())
                for one in families
            ]
            columns = [[first[cell] for cell in own] for first, own in like]
            self.known[families] = list(zip(*columns, strict=True)) or [()] * len(self.cells)
        return self.known[families]

    def activity(self, task: Task) -> int | list[int]:
        """Return the activity of a task, on all rank cells or on each."""
        if task.collective is not None:
            return self.moved(task.collective)
        if task.stream == COMPUTE:
            return self.compute(task.items, task.launches if task.fresh else None) if task.kind else 0
        if task.kind == SYNCHRONISE:
            return 0
        if task.launches.start:
            return self.activities.alone(task.launches.start)
        if task.kind == READY:
            return self.lead(task)
        extra = self.extra(task.launches)
        return self.activities.alone(self.activities.text(task.items, self.speed, self.families, extra).launching)

    def lead(self, task: Task) -> list[int]:
        """Return for each rank cell an activity as long as the host must be ahead before a computation, so that nothing waits."""
        both = zip(self.compute(task.items, task.launches), self.compute(task.items, None), strict=True)
        every = self.activities.activities
        return [self.activities.alone(every[fresh].timing.idle - every[later].timing.idle) for fresh, later in both]

    def extra(self, launches: Launches) -> float:
        """Return the host's seconds for launches other than of kernels: collectives before, and tensors one by one."""
        if not self.activities.hosts:
            return 0.0
        host = self.activities.hosts[self.speed.kind]
        return launches.calls * host.collective + launches.tensors * host.parameter + launches.parts * host.part

    def compute(self, items: Steps, fresh: Launches | None) -> list[int]:
        """Return the activity of a computation, with the collectives between its kernels, on each rank cell.

        fresh: launches of a host that starts with the first kernel; None: all are in time.
        """
        extra = None if fresh is None else self.extra(fresh)
        made, of = self.activities, (items, self.speed, self.families, extra)
        text = made.text(*of)
        flows = {call: made.network.flows(call) for call in text.sizes}
        places = [(call, text.families.index(call.group)) for call in text.sizes]

        def make(row: LikeCells) -> Activity:
            own = [flows[call][row[place][0]] for call, place in places]
            like = id(text), self.speed.rank, *[long for _, long in row]
            if like not in made.times:
                made.times[like] = made.timing(Source(*of, dict(zip(flows, own, strict=True))))
            return Activity(made.times[like], tuple(chain(*own)), text.sizes)

        return made.numbered((id(text), self.speed.rank), self.alike(text.families), make)

    def moved(self, call: Collective) -> list[int]:
        """Return the activity of a collective or message on each rank cell."""
        groups = self.groups[f"{call.group}/send" if call.op == "send" else call.group]
        return self.activities.transfers(call, groups[self.cells].tolist())


# Kernels and collectives become activities: seconds of compute with flows between them.

LikeCells = tuple[tuple[int, int], ...]
"""(first group cell with the same flows, first group cell whose flows take as long) for each of several groups."""


@dataclass(frozen=True, slots=True)
class Activities:
    """Creates the activities of a job on its network; those with equal flows share their segments."""

    seconds: Sequence[Seconds]
    """Seconds of each kernel on a nominal GPU, by node type."""
    network: Network
    hosts: Sequence[Launcher] = ()
    """Launchers by node type; () if launches never delay a kernel."""
    sms: int | None = 0
    """SMs that communication on separate streams takes from passes; None: one per NCCL channel."""
    memory: float | None = 0.0
    """Share of memory bandwidth that it takes from memory-bound kernels; None: computed from NCCL's traffic."""
    written: dict[tuple[object, ...], _Written] = field(default_factory=dict)
    activities: list[Activity] = field(default_factory=lambda: [Activity.without_flows()])
    """Distinct activities; those with the same flows share their times."""
    numbers: dict[Hashable, dict[LikeCells, int]] = field(default_factory=dict)
    """Index in `activities`, by the content without groups and then by the group cells of the calls."""
    times: dict[tuple[object, ...], SegmentTimes] = field(default_factory=dict)
    """Times, by the content without groups and the first group cells whose flows take as long."""

    def alone(self, seconds: float) -> int:
        """Return the number of the activity that takes `seconds` without any flow."""
        return self.numbered(seconds, [()], lambda _: Activity.without_flows(seconds))[0]

    def numbered(self, what: Hashable, rows: Sequence[LikeCells], make: Callable[[LikeCells], Activity]) -> list[int]:
        """Return the index of the activity for each of `rows`. what: key of the activity's content without its groups."""
        known = self.numbers.setdefault(what, {})
        for row in rows:
            if row not in known:
                known[row] = len(self.activities)
                self.activities.append(make(row))
        return [known[row] for row in rows]

    def text(self, items: Steps, speed: Speed, families: frozenset[str], extra: float | None) -> _Written:
        """Return the seconds of kernels before, during and after the collectives of `families`. Cached."""
        key = id(items), *speed[:2], families, extra
        if key not in self.written:
            host = None if extra is None or not self.hosts else LaunchTimes(self.hosts[speed.kind], items, extra)
            self.written[key] = _write(items, self.seconds[speed.kind], speed.slowdown, families, host)
        return self.written[key]

    def timing(self, source: Source) -> SegmentTimes:
        """Return the times of the activities of a source."""
        return _timing(self.text(*source[:4]), source, self.network.topology.kinds[source.speed.kind].gpu.sms)

    def transfers(self, call: Collective, cells: Sequence[int]) -> list[int]:
        """Return the activity of one collective or one message in each of the group cells `cells`."""
        flows, like = self.network.flows(call), self.network.equivalent_cells(call.group)

        def make(row: LikeCells) -> Activity:
            """Return the activity. row: one pair, (first group cell with the same flows, first whose flows take as long)."""
            [(cell, long)] = row
            own = flows[cell]
            if (call, long) not in self.times:
                shares = [(0.0, 0.0, 0.0, *self.taken(call, cell, own))] * len(own)
                self.times[call, long] = SegmentTimes(shares, own, range(len(own)))
            return Activity(self.times[call, long], own, {call: call.size})

        return self.numbered(call, [(like[cell],) for cell in cells], make)

    def taken(self, call: Collective, cell: int, flows: Sequence[Flow]) -> tuple[float, float]:
        """Return the shares of SMs and memory bandwidth that communication takes from concurrent passes."""
        if call.group in DIRECTIONS or (self.sms == 0 and self.memory == 0.0):  # copy engines take neither
            return 0.0, 0.0
        plan, gpus = self.network.plan(call, cell), [kind.gpu for kind in self.network.topology.kinds]
        sms = plan.channels if self.sms is None else self.sms
        memory = self.memory
        if memory is None:
            moved = BUFFERED * bus_factor(call.op, math.prod(plan.levels)) * call.size
            memory = moved / (math.fsum(flow.idle for flow in flows) * min(gpu.memory_bandwidth for gpu in gpus))
        return sms / min(gpu.sms for gpu in gpus), memory


class Source(NamedTuple):
    """Content of an activity: kernels, collectives and flows, without seconds."""

    items: Steps
    speed: Speed
    families: frozenset[str]
    """Families of collectives that are included."""
    extra: float | None
    """Seconds of other launches, if the host starts with the first item; None: all launches are in time."""
    flows: Mapping[Collective, tuple[Flow, ...]]


class _Written(NamedTuple):
    """Seconds of kernels around the collectives of a computation, and the total bytes of each distinct collective."""

    calls: Sequence[Collective]
    """Collectives in order."""
    before: Sequence[float]
    """Seconds of kernels before each collective, and after the last one."""
    beside: Sequence[float]
    """Seconds of kernels during each collective."""
    launched: Sequence[float]
    """Earliest launch of each collective, and of the kernels after the last one, in seconds from the start."""
    sizes: Mapping[Collective, float]
    families: tuple[str, ...]
    """Distinct families of the calls."""
    launching: float
    """Seconds of the host to launch everything; 0 if launches never delay a kernel."""
    memory: float
    """Seconds of memory-bound kernels."""


def _write(
    items: Steps, seconds: Seconds, slowdown: float, families: frozenset[str], host: LaunchTimes | None = None
) -> _Written:
    """Return the parts of a computation, split at its collectives, with seconds of kernels times `slowdown`."""
    calls, before, beside, launched = list[Collective](), list[float](), list[float](), list[float]()
    compute, over, memory = 0.0, 0, 0.0
    own = once_each(items, Kernel)
    facts = zip(own, [seconds[one] * slowdown for one in own], [one.kind in VECTOR for one in own], strict=True)
    kernels = dict(zip(map(id, own), facts, strict=True))
    called = [one for one in once_each(items, Collective) if one.group in families]
    inside = dict(zip(map(id, called), called, strict=True))
    for key in map(id, items):
        if key in kernels:
            kernel, took, bound = kernels[key]
            if bound:
                memory += took
            if over:
                beside[-1] += took
                over -= 1
            else:
                compute += took
            if host is not None:
                host.kernel(kernel, took)
        elif key in inside:
            call = inside[key]
            calls += (call,)
            before += (compute,)
            beside += (0.0,)
            launched += (host.call(call) if host else 0.0,)
            compute, over = 0.0, call.over
    sizes = {call: often * call.size for call, often in Counter(calls).items()}
    begun, launching = (host.queue.over, host.queue.launched) if host else (0.0, 0.0)
    groups = tuple(dict.fromkeys([call.group for call in sizes]))
    return _Written(calls, [*before, compute], beside, [*launched, begun], sizes, groups, launching, memory)


def _timing(written: _Written, source: Source, sms: float) -> SegmentTimes:
    """Return the times of an activity. sms: SMs of the GPU."""
    rows, order, phases, first = list[SegmentRow](), list[int](), dict[Collective, list[tuple[int, float]]](), 0
    for call, own in source.flows.items():
        idle = [flow.idle for flow in own]
        total = math.fsum(idle) or 1.0  # computation overlaps with all phases, in proportion to their times
        phases[call] = [(first + i, took / total) for i, took in enumerate(idle)]
        first += len(own)
    compute = launched = 0.0
    for call, before, beside, begun in zip(
        written.calls, written.before, written.beside, written.launched, strict=False
    ):
        compute += before
        launched = begun if begun > launched else launched
        for place, part in phases[call]:
            rows += ((compute, launched, beside * part, (call.sms or 0) / sms, 0.0),)
            order += (place,)
            compute = launched = 0.0
        if not phases[call]:
            compute += beside
    rows += ((compute + written.before[-1], max(launched, written.launched[-1]), 0.0, 0.0, 0.0),)
    return SegmentTimes(rows, [*chain(*source.flows.values())], [*order, -1], written.memory, source)
