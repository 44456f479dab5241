"""Plans: scripts of jobs bound to the network that they share, as programs of roles and columns over rank cells.

The activity of each task of a `Layout` is determined at once for all rank cells of equal speed. Rank cells share an activity if
their groups have equal flows.
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
from clustersim.engine.network import Network, Tenant, demand, folded, networks
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
    """Speed of a rank's computation; activities are shared only by ranks with equal speeds."""

    slowdown: float = 1.0
    """Time of the GPU over that of a nominal GPU of its type."""
    kind: int = 0
    """Type of its node, as an index into `Topology.kinds`."""
    rank: int = -1
    """Rank, if no other rank may share its activities; -1: equal ranks share them."""


class Work(NamedTuple):
    """A placed job with the script of each role, and the seconds of every kernel on a nominal GPU.

    A role is a pipeline rank, combined with a position in the ep group if loads of its positions differ: roles are numbered
    pipeline rank · positions + position.
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
    """First rank of each rank cell, and number of its ranks (cells,)."""
    hosts: tuple[Launcher, ...] = ()
    """Launchers of the kernels by node type; () if launches never delay a kernel."""

    @property
    def begins(self) -> Ints:
        """First task of each rank cell, and the number of all tasks."""
        return task_begins(self.programs, self.role)

    def group(self, cell: int, family: str, side: str = "") -> int:
        """Return the group cell of a rank cell in a family, -1 for none. side: `send` or `receive` for messages, else empty."""
        return int(self.groups[f"{family}/{side}" if side else family][cell])

    def placed(self, cell: int, calls: Mapping[Collective, float]) -> Carried:
        """Return {(variant, group cell): bytes} of calls of a rank cell. calls: {collective or message: bytes}."""
        bytes_of: dict[tuple[Variant, int], float] = {}
        for call, size in calls.items():
            group = self.group(cell, call.group, "send" if call.op == "send" else "")
            key = self.network.variant(call, group), group
            bytes_of[key] = bytes_of.get(key, 0.0) + size
        return bytes_of

    def carried(self) -> Carried:
        """Return {(variant, group cell): bytes} of all collectives and messages of a step, in one group of each cell."""
        executions = [Counter([key for key, _ in program.passes()]) for program in self.programs]
        sums: dict[tuple[int, bytes], dict[Collective, float]] = {}
        total: dict[tuple[Variant, int], float] = {}
        for cell, (role, begin) in enumerate(zip(self.role.tolist(), self.begins.tolist(), strict=False)):
            layout = self.programs[role].layout
            does = self.does[begin : begin + len(layout.tasks)]
            if (key := (role, does.tobytes())) not in sums:
                role_bytes = sums[key] = {}
                for name, indices in layout.templates.items():
                    for activity in does[indices.start : indices.stop].tolist():
                        for call, size in self.activities[activity].calls.items():
                            role_bytes[call] = role_bytes.get(call, 0.0) + executions[role][name] * size
            total |= self.placed(cell, sums[key])
        return total


def task_begins(programs: Sequence[Program], role: Ints) -> Ints:
    """Return the first task of each rank cell, followed by the number of all tasks. role: program of each rank cell."""
    return offsets(np.array([len(program.layout.tasks) for program in programs], np.int64)[role])


def families_of(work: Work, topology: Topology) -> dict[str, Ints]:
    """Return {family: ranks of its groups (groups, n)} of a job's families that communicate.

    The key PIPELINES has the ranks of each pipeline, if messages use its communicator.
    """
    families = [family for family, _ in tenant(work.job, topology, work.gpus, collectives(work.scripts)).families]
    pipelines = [family.communicators for family in families if family.communicators is not None]
    return {family.name: family.ranks for family in families} | ({PIPELINES: pipelines[0]} if pipelines else {})


def plan(works: Sequence[Work], topology: Topology, fold: bool = True) -> tuple[Plan, ...]:
    """Return the plans of jobs that share the cluster. fold: whether equivalent ranks are one rank cell; else each is one."""
    topology = with_host_links(topology) if any(offloads(w.job) for w in works) else topology
    loads = demand(topology, [tenant(w.job, topology, w.gpus, collectives(w.scripts)) for w in works])
    return tuple(map(_plan, works, loads.tenants, networks(loads, folded(loads, fold))))


def _plan(work: Work, placed: Tenant, network: Network) -> Plan:
    """Return the plan of one job on its network."""
    topology, ranks, families = network.topology, network.cells.ranks, [family for family, _ in placed.families]

    def find_cells() -> tuple[Ints, dict[str, Ints]]:
        """Return (role of each rank cell, `cells_of` the families)."""
        return roles(work.job)[ranks.first], cells_of(families, network)

    role, groups = topology.cache.once(("ranks", network.cells.key), find_cells)
    gpus, job = work.gpus[ranks.first], work.job
    activities = Activities(work.seconds, network, work.hosts, job.communication_sms, job.communication_memory)
    host_mode = launching(job, work.scripts, work.seconds, work.hosts)
    # a layout without hosts may still have the points where a host waits for its GPU
    with_host = {
        layout: hosted(layout, host_mode) if work.hosts or layout.synchronised else layout
        for layout in layouts(work.scripts)
    }
    programs = [script._replace(layout=with_host[script.layout]) for script in work.scripts]
    inside = dict.fromkeys(chain(*[layout.inside for layout in with_host.values()]))
    inner_families = [family for family in inside if family in groups]
    slowdown, node_type = topology.slowdown[gpus], topology.kind_of(gpus)
    layout_number = {layout: index for index, layout in enumerate(with_host)}
    layout = np.array([layout_number[script.layout] for script in work.scripts])[role]
    apart = ranks.first if work.apart else np.full(len(role), -1)
    columns = [layout, slowdown.view(np.int64), node_type, apart, *[groups[family] >= 0 for family in inner_families]]
    # rank cells of equal layouts and speeds are one class
    firsts, cell_class = distinct_rows(np.stack(columns, axis=1, dtype=np.int64))
    begins = task_begins(programs, role)
    does = np.empty(begins[-1], np.int64)
    for number, first in enumerate(firsts.tolist()):
        cells = np.flatnonzero(cell_class == number)
        speed = Speed(float(slowdown[first]), int(node_type[first]), int(apart[first]))
        binder = _Binder(
            activities, speed, groups, cells, frozenset(f for f in inner_families if groups[f][first] >= 0)
        )
        tasks, task_index = programs[role[first]].layout.distinct
        task_activities = np.empty((len(tasks), len(cells)), np.int64)
        for row, task in enumerate(tasks):
            task_activities[row] = binder.activity(task)
        does[begins[cells] + np.arange(len(task_index))[:, np.newaxis]] = task_activities[task_index]
    return Plan(programs, role, groups, activities.activities, does, network, ranks.first, ranks.size, work.hosts)


def group_key(call: Collective) -> str:
    """Return the key in `Plan.groups` of the groups that run a collective, or that send a message."""
    return f"{call.group}/send" if call.op == "send" else call.group


def cells_of(families: Iterable[Family], network: Network) -> dict[str, Ints]:
    """Return {family: group cell of every rank cell, -1 for none}, with keys `family/send` and `family/receive` for messages."""
    ranks, result = network.cells.ranks, {}
    for family in families:
        cells = np.append(network.cells.groups[family.name].of, -1)
        p2p = family.name.startswith("p2p")
        sides = {f"{family.name}/send": 0, f"{family.name}/receive": 1} if p2p else {family.name: None}
        for key, side in sides.items():
            result[key] = cells[group_of(family, len(ranks.of), side)[ranks.first]]
    return result


@dataclass(frozen=True, slots=True)
class _Binder:
    """Determines the activities of rank cells of one layout and speed, as indices into `Activities.activities`."""

    activities: Activities
    speed: Speed
    groups: Mapping[str, Ints]
    """Group cell of each rank cell of the job, by family, as in Plan."""
    cells: Ints
    """Rank cells whose tasks are bound."""
    families: frozenset[str]
    """Families in which `cells` have groups."""
    known: dict[tuple[str, ...], Sequence[EquivalentCells]] = field(default_factory=dict)
    """Results of `equivalent`."""

    def equivalent(self, families: tuple[str, ...]) -> Sequence[EquivalentCells]:
        """Return for each rank cell the group cells that are equivalent to its groups in `families`."""
        if families not in self.known:
            network, columns = self.activities.network, []
            for family in families:
                first = network.equivalent_cells(family)
                columns.append([first[cell] for cell in self.groups[family][self.cells].tolist()])
            self.known[families] = list(zip(*columns, strict=True)) or [()] * len(self.cells)
        return self.known[families]

    def activity(self, task: Task) -> int | list[int]:
        """Return the activity of a task: one for all rank cells, or a list with that of each."""
        if task.collective is not None:
            return self.transfers(task.collective)
        if task.stream == COMPUTE:
            return self.compute(task.items, task.launches if task.fresh else None) if task.kind else 0
        if task.kind == SYNCHRONISE:
            return 0
        if task.launches.start:
            return self.activities.without_flows(task.launches.start)
        if task.kind == READY:
            return self.leads(task)
        parts = self.activities.parts(task.items, self.speed, self.families, self.extra(task.launches))
        return self.activities.without_flows(parts.launching)

    def leads(self, task: Task) -> list[int]:
        """Return for each rank cell an activity with the lead that a host needs, so that no kernel of a computation waits for it.

        The lead is the computation's time with launches from its start on, less its time with all launches in time.
        """
        pairs = zip(self.compute(task.items, task.launches), self.compute(task.items, None), strict=True)
        seconds = [activity.timing.idle for activity in self.activities.activities]
        return [self.activities.without_flows(seconds[fresh] - seconds[prompt]) for fresh, prompt in pairs]

    def extra(self, launches: Launches) -> float:
        """Return the host's seconds for `launches`; 0 if launches never delay a kernel."""
        if not self.activities.hosts:
            return 0.0
        host = self.activities.hosts[self.speed.kind]
        return launches.calls * host.collective + launches.tensors * host.parameter + launches.parts * host.part

    def compute(self, items: Steps, fresh: Launches | None) -> list[int]:
        """Return the activity of a computation, with the collectives between its kernels, for each rank cell.

        fresh: further launches of a host that begins to launch when the computation begins; None: all launches are in time.
        """
        extra = None if fresh is None else self.extra(fresh)
        activities, content = self.activities, (items, self.speed, self.families, extra)
        parts = activities.parts(*content)
        flows = {call: activities.network.flows(call) for call in parts.sizes}
        calls = [(call, parts.families.index(call.group)) for call in parts.sizes]

        def make(row: EquivalentCells) -> Activity:
            """Return the activity on the flows of a row, whose times are shared with equal ones."""
            call_flows = [flows[call][row[place][0]] for call, place in calls]
            times_key = id(parts), self.speed.rank, *[same_times for _, same_times in row]
            if times_key not in activities.times:
                activities.times[times_key] = activities.timing(
                    Source(*content, dict(zip(flows, call_flows, strict=True)))
                )
            return Activity(activities.times[times_key], tuple(chain(*call_flows)), parts.sizes)

        return activities.indices((id(parts), self.speed.rank), self.equivalent(parts.families), make)

    def transfers(self, call: Collective) -> list[int]:
        """Return the activity of a collective or message for each rank cell."""
        return self.activities.transfers(call, self.groups[group_key(call)][self.cells].tolist())


EquivalentCells = tuple[tuple[int, int], ...]
"""Entries of `Network.equivalent_cells` for several groups."""


@dataclass(frozen=True, slots=True)
class Activities:
    """Makes the distinct activities of a job on its network; activities with equally long flows share their times."""

    seconds: Sequence[Seconds]
    """Seconds of each kernel on a nominal GPU, by node type."""
    network: Network
    hosts: Sequence[Launcher] = ()
    """Launchers by node type; () if launches never delay a kernel."""
    sms: int | None = 0
    """SMs that communication on separate streams takes from passes; None: one per NCCL channel."""
    memory: float | None = 0.0
    """Share of memory bandwidth that it takes from memory-bound kernels; None: computed from NCCL's traffic."""
    known_parts: dict[tuple[object, ...], _TaskParts] = field(default_factory=dict)
    activities: list[Activity] = field(default_factory=lambda: [Activity.without_flows()])
    """Distinct activities so far; the first takes no time."""
    numbers: dict[Hashable, dict[EquivalentCells, int]] = field(default_factory=dict)
    """{content without groups: {group cells of its calls: index in `activities`}}"""
    times: dict[tuple[object, ...], SegmentTimes] = field(default_factory=dict)
    """{(content without groups, group cells with equally long flows …): times}"""

    def without_flows(self, seconds: float) -> int:
        """Return the index of the activity that takes `seconds` and has no flow."""
        return self.indices(seconds, [()], lambda _: Activity.without_flows(seconds))[0]

    def indices(
        self, content: Hashable, rows: Sequence[EquivalentCells], make: Callable[[EquivalentCells], Activity]
    ) -> list[int]:
        """Return the index of each row's activity, which `make` makes the first time. content: all but the rows' groups."""
        known = self.numbers.setdefault(content, {})
        for row in rows:
            if row not in known:
                known[row] = len(self.activities)
                self.activities.append(make(row))
        return [known[row] for row in rows]

    def parts(self, items: Steps, speed: Speed, families: frozenset[str], extra: float | None) -> _TaskParts:
        """Return the kernel seconds of a computation, cut at its collectives of `families`. extra: as in Source."""
        key = id(items), *speed[:2], families, extra
        if key not in self.known_parts:
            host = None if extra is None or not self.hosts else LaunchTimes(self.hosts[speed.kind], items, extra)
            self.known_parts[key] = _cut(items, self.seconds[speed.kind], speed.slowdown, families, host)
        return self.known_parts[key]

    def timing(self, source: Source) -> SegmentTimes:
        """Return the times of activities with the content `source`."""
        parts, sms = self.parts(*source[:4]), self.network.topology.kinds[source.speed.kind].gpu.sms
        rows, order, phases, first = list[SegmentRow](), list[int](), dict[Collective, list[tuple[int, float]]](), 0
        for call, flows in source.flows.items():
            idle = [flow.idle for flow in flows]
            total = math.fsum(idle) or 1.0  # computation overlaps with all phases, in proportion to their times
            phases[call] = [(first + i, took / total) for i, took in enumerate(idle)]
            first += len(flows)
        compute = launched = 0.0
        for call, before, overlapped, earliest in zip(
            parts.calls, parts.before, parts.overlapped, parts.launched, strict=False
        ):
            compute += before
            launched = earliest if earliest > launched else launched
            for flow_index, share in phases[call]:
                rows += ((compute, launched, overlapped * share, (call.sms or 0) / sms, 0.0),)
                order += (flow_index,)
                compute = launched = 0.0
            if not phases[call]:
                compute += overlapped
        rows += ((compute + parts.before[-1], max(launched, parts.launched[-1]), 0.0, 0.0, 0.0),)
        return SegmentTimes(rows, [*chain(*source.flows.values())], [*order, -1], parts.memory, source)

    def transfers(self, call: Collective, cells: Sequence[int]) -> list[int]:
        """Return the activity of one collective or message in each of the group cells `cells`."""
        flows, equivalent = self.network.flows(call), self.network.equivalent_cells(call.group)

        def make(row: EquivalentCells) -> Activity:
            """Return the activity of the call on the flows of its cell. row: one entry of `Network.equivalent_cells`."""
            [(cell, same_times)] = row
            cell_flows = flows[cell]
            if (call, same_times) not in self.times:
                shares = [(0.0, 0.0, 0.0, *self.taken(call, cell, cell_flows))] * len(cell_flows)
                self.times[call, same_times] = SegmentTimes(shares, cell_flows, range(len(cell_flows)))
            return Activity(self.times[call, same_times], cell_flows, {call: call.size})

        return self.indices(call, [(equivalent[cell],) for cell in cells], make)

    def taken(self, call: Collective, cell: int, flows: Sequence[Flow]) -> tuple[float, float]:
        """Return the shares of SMs and memory bandwidth that a call in group cell `cell` takes from passes; 0 for host copies."""
        # copies to and from hosts use copy engines
        if call.group in DIRECTIONS or (self.sms == 0 and self.memory == 0.0):
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
    """Seconds of other launches, if the host begins to launch with the activity; None: all launches are in time."""
    flows: Mapping[Collective, tuple[Flow, ...]]
    """Flows of each distinct collective, one per phase."""


class _TaskParts(NamedTuple):
    """Kernel seconds of a computation around its collectives, without the times of these."""

    calls: Sequence[Collective]
    """Collectives in order."""
    before: Sequence[float]
    """Seconds of kernels before each collective, and after the last one (calls + 1,)."""
    overlapped: Sequence[float]
    """Seconds of kernels that overlap with each collective."""
    launched: Sequence[float]
    """Earliest launch of each collective, and of the kernels after the last one, in seconds from the start."""
    sizes: Mapping[Collective, float]
    """{distinct collective: bytes of all its calls}"""
    families: tuple[str, ...]
    """Distinct families of the calls."""
    launching: float
    """Seconds of the host to launch everything; 0 if launches never delay a kernel."""
    memory: float
    """Seconds of memory-bound kernels."""


def _cut(
    items: Steps, seconds: Seconds, slowdown: float, families: frozenset[str], host: LaunchTimes | None = None
) -> _TaskParts:
    """Return the parts of a computation, cut at its collectives of `families`, with kernel seconds times `slowdown`.

    host: launcher that begins to launch with the computation; None: all launches are in time.
    """
    calls, before, overlapped, launched = list[Collective](), list[float](), list[float](), list[float]()
    compute, kernels_left, memory = 0.0, 0, 0.0  # kernels_left: those that still overlap with the last collective
    distinct_kernels = once_each(items, Kernel)
    kernels = {id(kernel): (kernel, seconds[kernel] * slowdown, kernel.kind in VECTOR) for kernel in distinct_kernels}
    calls_by_id = {id(call): call for call in once_each(items, Collective) if call.group in families}
    for key in map(id, items):
        if key in kernels:
            kernel, kernel_seconds, memory_bound = kernels[key]
            if memory_bound:
                memory += kernel_seconds
            if kernels_left:
                overlapped[-1] += kernel_seconds
                kernels_left -= 1
            else:
                compute += kernel_seconds
            if host is not None:
                host.kernel(kernel, kernel_seconds)
        elif key in calls_by_id:
            call = calls_by_id[key]
            calls += (call,)
            before += (compute,)
            overlapped += (0.0,)
            launched += (host.call(call) if host else 0.0,)
            compute, kernels_left = 0.0, call.over
    sizes = {call: count * call.size for call, count in Counter(calls).items()}
    last_launch, launching = (host.queue.over, host.queue.launched) if host else (0.0, 0.0)
    groups = tuple(dict.fromkeys([call.group for call in sizes]))
    return _TaskParts(calls, [*before, compute], overlapped, [*launched, last_launch], sizes, groups, launching, memory)
