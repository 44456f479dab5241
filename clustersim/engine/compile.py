"""Scripts of jobs + the network that they share → a plan: programs of roles, and columns over rank cells.

Each different text of scripts becomes one `Layout`. What its tasks do is found at once for all rank cells that compute at one
speed; those whose groups have the same flows share an activity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask, distinct_rows, offsets
from clustersim.collectives.plan import BUFFERED, bus_factor
from clustersim.engine.fabric import HOST, Activity, Segment, SegmentRow, SegmentTimes
from clustersim.engine.flows import Flow
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.groups import PIPELINES, group_of, roles, tenant
from clustersim.engine.instruction import Compute, Drain, Instruction, Launch, Send
from clustersim.engine.launching import Launches, Launching, Seconds, launching
from clustersim.engine.network import Demand, Network, Tenant, demand, folded, networks
from clustersim.engine.program import (
    COMPUTE,
    NOTHING,
    READY,
    SYNCHRONISE,
    UPDATE,
    Carried,
    GroupCell,
    Layout,
    LayoutHandle,
    LayoutTask,
    Message,
    PassMessage,
    Program,
    Task,
    TemplateKey,
    Wait,
)
from clustersim.engine.script import Script, ScriptText, collectives, once_each
from clustersim.engine.traffic import Family, Variant
from clustersim.model.kernel import VECTOR, Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.host import Launcher
from clustersim.parallel.job import Job
from clustersim.parallel.offload import WAYS, offloads
from clustersim.topology.host_links import hosted
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
    scripts: tuple[Script, ...]
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
    members: Mapping[GroupCell, int]
    """Number of rank cells of each group."""
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

    def task(self, cell: int, place: int, activity: Activity) -> Task:
        """Return a task of a rank cell by its place in the layout. activity: what it does."""
        program = self.programs[self.role[cell]]
        stream, kind, chunk, family, waits, gives, free = program.layout.tasks[place]

        def message(one: PassMessage, side: str) -> Message:
            return Message(
                (one.family, self.group(cell, one.family, side)), program.own[one.chunk] + one.ahead, one.number
            )

        return Task(
            stream,
            kind,
            program.stage(chunk),
            None if family is None else (family, self.group(cell, family)),
            tuple(message(one, "receive") if isinstance(one, PassMessage) else one for one in waits),
            None if gives is None else message(gives, "send"),
            activity,
            free,
            self.placed(cell, activity.calls) if activity.calls else NOTHING,
        )

    def passes(self, cell: int) -> Iterator[tuple[tuple[Task, ...], int]]:
        """Yield the tasks of every pass of a rank cell, and its microbatch (-1 outside the actions)."""
        program, made, begin = self.programs[self.role[cell]], dict[TemplateKey, tuple[Task, ...]](), self.begins[cell]
        for key, places in program.layout.templates.items():
            made[key] = tuple(self.task(cell, place, self.activities[self.does[begin + place]]) for place in places)
        for key, microbatch in program.passes():
            yield made[key], microbatch

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
        often = [program.often() for program in self.programs]
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
                            own[call] = own.get(call, 0.0) + often[role].get(name, 0) * size
            total |= self.placed(cell, sums[key])
        return total


def task_begins(programs: Sequence[Program], role: Ints) -> Ints:
    """Return the first task of each rank cell, and the number of all tasks; role: the program of each rank cell."""
    return offsets(np.array([len(one.layout.tasks) for one in programs], np.int64)[role])


def demand_of(works: Sequence[Work], topology: Topology) -> Demand:
    """Return the loads of jobs before folding; with links to hosts if a job offloads."""
    topology = hosted(topology) if any(offloads(w.job) for w in works) else topology
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
    every = np.ones(len(asked.links), bool)
    return bound(works, asked, folded(asked, every, fold), every)


def bound(works: Sequence[Work], demand: Demand, cells: Partition, kept: Mask) -> tuple[Plan, ...]:
    """Return the plan of every job on folded `cells`, with only the links that are `kept`."""
    return tuple(map(_plan, works, demand.tenants, networks(demand, cells, kept)))


def _plan(work: Work, placed: Tenant, net: Network) -> Plan:
    topology, ranks, families = net.topology, net.cells.ranks, [family for family, _ in placed.families]

    def found() -> tuple[Ints, dict[str, Ints], dict[GroupCell, int]]:
        return roles(work.job)[ranks.first], _places(families, net), _members(families, net)

    role, groups, members = topology.cache.once(("ranks", net.cells.key), found)
    gpus, made, hosted = work.gpus[ranks.first], Activities.of(work, net), dict[float, int]()
    writer, layouts = _LayoutWriter(launching(work.job, work.scripts, work.seconds, work.hosts), bool(work.hosts)), {}
    for script in work.scripts:
        if id(script.text) not in layouts:
            layouts[id(script.text)] = writer.written(script.text)
    each = [layouts[id(script.text)] for script in work.scripts]
    inside = [family for family in dict.fromkeys(chain(*[one.inside for one in each])) if family in groups]
    slowdown, kind = topology.slowdown[gpus], topology.kind_of(gpus)
    number = dict(zip(layouts, range(len(layouts)), strict=True))
    layout = np.array([number[id(script.text)] for script in work.scripts])[role]
    apart = ranks.first if work.apart else np.full(len(role), -1)
    same = [layout, slowdown.view(np.int64), kind, apart, *[groups[family] >= 0 for family in inside]]
    firsts, of = distinct_rows(np.stack(same, axis=1, dtype=np.int64))
    programs = [Program(own.layout, s.row, s.own) for own, s in zip(each, work.scripts, strict=True)]
    begins = task_begins(programs, role)
    does = np.empty(begins[-1], np.int64)
    for alike, first in enumerate(firsts.tolist()):
        cells = np.flatnonzero(of == alike)
        speed = Speed(float(slowdown[first]), int(kind[first]), int(apart[first]))
        binder = _Binder(made, speed, groups, cells, frozenset(f for f in inside if groups[f][first] >= 0), hosted)
        own = each[role[first]]
        different = np.empty((len(own.recipes), len(cells)), np.int64)
        for row, (how, *what) in enumerate(own.recipes):
            different[row] = how(binder, *what)
        does[begins[cells] + np.arange(len(own.which))[:, np.newaxis]] = different[own.which]
    return Plan(programs, role, groups, members, made.activities, does, net, ranks.first, ranks.size, work.hosts)


def _places(families: Iterable[Family], net: Network) -> dict[str, Ints]:
    """Return {family: group cell of every rank cell, -1 for none}; for messages, one entry for each side."""
    ranks, result = net.cells.ranks, {}
    for family in families:
        cells = np.append(net.cells.groups[family.name].of, -1)
        p2p = family.name.startswith("p2p")
        sides = {f"{family.name}/send": 0, f"{family.name}/receive": 1} if p2p else {family.name: None}
        for place, side in sides.items():
            result[place] = cells[group_of(family, len(ranks.of), side)[ranks.first]]
    return result


def _members(families: Iterable[Family], net: Network) -> dict[GroupCell, int]:
    """Count the rank cells in the first group of every group cell."""
    result: dict[GroupCell, int] = {}
    for family in families:
        cells = np.sort(net.cells.ranks.of[family.ranks[net.cells.groups[family.name].first]], axis=1)
        different = (np.diff(cells, axis=1) > 0).sum(axis=1) + 1
        result |= {(family.name, cell): count for cell, count in enumerate(different.tolist())}
    return result


@dataclass(frozen=True, slots=True)
class _LayoutWriter:
    """Turns the text of a script into a layout, with a recipe for the activity of each task."""

    launching: Launching
    """How the host launches passes."""
    hosted: bool
    """Whether launches by hosts are modelled at all."""

    def written(self, text: ScriptText) -> _Recipes:
        """Return the layout of a text and the recipes of its tasks."""
        found: list[_Made] = []
        templates: dict[TemplateKey, range] = {}

        def add(key: TemplateKey, tasks: Iterable[_Made]) -> None:
            first = len(found)
            found.extend(tasks)
            templates[key] = range(first, len(found))

        add(("begin", None), chain(self.started(), self.tasks(text.begin)))
        for key, lines in text.steps.items():
            add(("steps", key), self.tasks(lines))
        for one, lines in text.special.items():
            add(("special", one), self.tasks(lines))
        add(("finish", None), self.tasks(text.finish))
        items = chain.from_iterable(line.items for line in text.lines() if isinstance(line, Compute))
        # tasks of like layers have one recipe
        keys = [(how, id(what), *counts) for _, (how, what, *counts) in found]
        recipes = dict(zip(keys, [how for _, how in found], strict=True))
        number = {key: place for place, key in enumerate(recipes)}
        return _Recipes(
            Layout(tuple([task for task, _ in found]), templates, text.pairing),
            list(recipes.values()),
            np.array([number[key] for key in keys], np.int64),
            tuple(dict.fromkeys([item.group for item in once_each(items, Collective)])),
        )

    def started(self) -> Iterator[_Made]:
        """Yield the wait for the first launches of a step; from then on the host is ahead of the GPU."""
        if self.launching.start:
            task = LayoutTask(HOST, READY, -1, None, (), None)
            yield task, (_Binder.alone, self.launching.start)
            yield _waiting([Wait(READY)])

    def tasks(self, lines: Sequence[Instruction]) -> Iterator[_Made]:
        """Yield the tasks of a pass.

        Waits belong to the next computation; before a launch, and at the end, a separate task waits.
        """
        waits: list[LayoutHandle] = []
        behind, calls = self.behind(lines), 0
        last = max(behind, default=0)
        for place, line in enumerate(lines):
            if isinstance(line, Wait | PassMessage):
                waits.append(line)
            elif isinstance(line, Compute):
                one = line, calls
                if place in behind:
                    yield from self.following(*one, tuple(waits))
                elif place < last:
                    yield from self.leading(*one, tuple(waits))
                else:
                    fresh = self.launching.mode == "synchronised" or line.kind in UPDATE
                    yield self.computation(*one, tuple(waits), fresh and self.hosted)
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
                waits = [Wait(line.collective.group)] if isinstance(line, Send) and line.wait else []
        if waits:
            yield _waiting(waits)

    def behind(self, lines: Sequence[Instruction]) -> list[int]:
        """Return the indices of computations whose launches directly follow earlier launches, whatever the GPU does."""
        if self.launching.mode == "prompt":
            return []
        places = [place for place, line in enumerate(lines) if isinstance(line, Compute) and line.kind not in UPDATE]
        return places if self.launching.mode == "ahead" else places[1:]

    def computation(self, line: Compute, calls: int, waits: tuple[LayoutHandle, ...], fresh: bool) -> _Made:
        """Return a computation; calls: collectives and messages launched right before; fresh: its host begins to launch it when
        it begins."""
        task = LayoutTask(COMPUTE, line.kind, line.chunk, line.family or None, waits, None)
        return task, (_Binder.compute, line.items, fresh, calls, line.tensors, line.parts)

    def drained(self, waits: Sequence[LayoutHandle]) -> Iterator[_Made]:
        """Yield a synchronisation: the host waits until its GPU is idle; before that, the GPU waits for `waits`."""
        if waits:
            yield _waiting(waits)
        yield LayoutTask(HOST, SYNCHRONISE, -1, None, (), None), _NOTHING

    def leading(self, line: Compute, calls: int, waits: tuple[LayoutHandle, ...]) -> Iterator[_Made]:
        """Yield a computation before which the host waits for its GPU, and from which it launches ahead."""
        yield from self.drained(waits)
        yield self.computation(line, calls, (), fresh=True)
        yield self.launches(line, calls, line.kind)

    def following(self, line: Compute, calls: int, waits: tuple[LayoutHandle, ...]) -> Iterator[_Made]:
        """Yield a computation whose kernels the host launches when it has launched all those before, whatever its GPU does.

        With GPU and host free at D and H, G the duration of the kernels in a row, and K their duration when launched from 0, it
        ends at max(D + G, H + K), as if it could not start before H + K - G.
        """
        yield self.launches(line, calls, READY)
        yield self.computation(line, calls, (*waits, Wait(READY)), fresh=False)
        yield self.launches(line, calls, line.kind)

    def launches(self, line: Compute, calls: int, kind: str) -> _Made:
        """Return the host's task of launching a computation, or the mark that it is so far ahead that this may begin."""
        how = _Binder.lead if kind == READY else _Binder.busy
        return LayoutTask(HOST, kind, line.chunk, None, (), None), (how, line.items, calls, line.tensors, line.parts)

    def launched(self, line: Send | Launch) -> _Made:
        """Return the task of a message or collective on its own stream."""
        call = line.collective
        moved = _Binder.moved, call
        if isinstance(line, Send):
            gives = PassMessage(call.group, line.chunk, line.ahead)
            return LayoutTask(call.group, "send", line.chunk, None, (), gives), moved
        waits = (line.after,) if line.after else ()
        return LayoutTask(call.group, call.op, line.chunk, call.group, waits, None), moved


@dataclass(frozen=True, slots=True)
class _Binder:
    """Finds what rank cells of one layout and speed do: the number of one activity, or of one for each rank cell."""

    activities: Activities
    speed: Speed
    groups: Mapping[str, Ints]
    """Group cells of all rank cells, by family …"""
    cells: Ints
    """… and the rank cells in question."""
    families: frozenset[str]
    """Families that these have groups of."""
    hosted: dict[float, int]
    """Activities of hosts, by seconds."""
    known: dict[tuple[str, ...], Sequence[LikeCells]] = field(default_factory=dict)
    """Like cells of each rank cell, by families."""

    def alike(self, families: tuple[str, ...]) -> Sequence[LikeCells]:
        """Return the like cells of each rank cell: of its group in each of `families`."""
        if families not in self.known:
            like = [(self.activities.network.alike(one), self.groups[one][self.cells].tolist()) for one in families]
            columns = [[first[cell] for cell in own] for first, own in like]
            self.known[families] = list(zip(*columns, strict=True)) or [()] * len(self.cells)
        return self.known[families]

    def nothing(self, _: object) -> int:
        """Return the activity of tasks that only wait."""
        return 0

    def lead(self, items: Steps, *counts: int) -> list[int]:
        """Return the lead of the host that a computation needs, as in `_LayoutWriter.following`."""
        both = zip(self.compute(items, True, *counts), self.compute(items, False, *counts), strict=True)
        every = self.activities.activities
        return [self.alone(every[fresh].idle - every[later].idle) for fresh, later in both]

    def busy(self, items: Steps, *counts: int) -> int:
        """Return the host's task of launching a computation."""
        return self.alone(self.activities.text(items, self.speed, self.families, self.extra(*counts)).launching)

    def extra(self, calls: int, tensors: int, parts: int) -> float:
        """Return the host's seconds for launches other than of kernels: collectives before, and tensors one by one."""
        if not self.activities.hosts:
            return 0.0
        host = self.activities.hosts[self.speed.kind]
        return calls * host.collective + tensors * host.parameter + parts * host.part

    def alone(self, seconds: float) -> int:
        """Return the activity that takes `seconds`; equal durations share one."""
        if seconds not in self.hosted:
            self.hosted[seconds] = self.activities.add(Activity.of((Segment(seconds, None),)))
        return self.hosted[seconds]

    def compute(self, items: Steps, fresh: bool, *counts: int) -> list[int]:
        """Return the activity of a computation, with the collectives between its kernels, on each rank cell.

        fresh: whether the host starts with the first kernel. counts: as in `extra`.
        """
        made, of = self.activities, (items, self.speed, self.families, self.extra(*counts) if fresh else None)
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


_Recipe = tuple[Any, ...]
"""How the activity of a task is found on rank cells: a method of `_Binder` and its arguments."""
_NOTHING: _Recipe = _Binder.nothing, None
_Made = tuple[LayoutTask, _Recipe]
"""A task, and how its activity is found."""


class _Recipes(NamedTuple):
    """A layout, and the recipes for the activities of its tasks."""

    layout: Layout
    recipes: Sequence[_Recipe]
    """Distinct recipes."""
    which: Ints
    """The recipe of each task."""
    inside: tuple[str, ...]
    """Families of collectives inside computations."""


def _waiting(waits: Sequence[LayoutHandle]) -> _Made:
    """Return a task of the compute stream that only waits and takes no time."""
    return LayoutTask(COMPUTE, "", -1, None, tuple(waits), None), _NOTHING


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
    activities: list[Activity] = field(default_factory=lambda: [Activity.NONE])
    """Distinct activities; those with the same flows share their times."""
    numbers: dict[Hashable, dict[LikeCells, int]] = field(default_factory=dict)
    """Index in `activities`, by the content without groups and then by the group cells of the calls."""
    times: dict[tuple[object, ...], SegmentTimes] = field(default_factory=dict)
    """Times, by the content without groups and the first group cells whose flows take as long."""

    @classmethod
    def of(cls, work: Work, network: Network) -> Activities:
        """Return the creator of activities for a job on its network."""
        return cls(work.seconds, network, work.hosts, work.job.sms_beside, work.job.memory_beside)

    def add(self, activity: Activity) -> int:
        """Add an activity; return its number."""
        self.activities.append(activity)
        return len(self.activities) - 1

    def numbered(self, what: Hashable, rows: Sequence[LikeCells], make: Callable[[LikeCells], Activity]) -> list[int]:
        """Return the index of the activity for each of `rows`. what: key of the activity's content without its groups."""
        known = self.numbers.setdefault(what, {})
        fresh = [row for row in dict.fromkeys(rows) if row not in known]
        known.update(zip(fresh, range(len(self.activities), len(self.activities) + len(fresh)), strict=True))
        self.activities.extend([make(row) for row in fresh])
        return [known[row] for row in rows]

    def text(self, items: Steps, speed: Speed, families: frozenset[str], extra: float | None) -> _Written:
        """Return the seconds of kernels before, during and after the collectives of `families`. Cached."""
        key = id(items), *speed[:2], families, extra
        if key not in self.written:
            host = None if extra is None or not self.hosts else Launches(self.hosts[speed.kind], items, extra)
            self.written[key] = _write(items, self.seconds[speed.kind], speed.slowdown, families, host)
        return self.written[key]

    def timing(self, source: Source) -> SegmentTimes:
        """Return the times of the activities of a source."""
        return _timing(self.text(*source[:4]), source, self.network.topology.kinds[source.speed.kind].gpu.sms)

    def transfers(self, call: Collective, cells: Sequence[int]) -> list[int]:
        """Return the activity of one collective or one message in each of the group cells `cells`."""
        flows, like = self.network.flows(call), self.network.alike(call.group)

        def make(row: LikeCells) -> Activity:
            [(cell, long)] = row
            own = flows[cell]
            if (call, long) not in self.times:
                shares = [(0.0, 0.0, 0.0, *self.taken(call, cell, own))] * len(own)
                self.times[call, long] = SegmentTimes(shares, own, range(len(own)))
            return Activity(self.times[call, long], own, {call: call.size})

        return self.numbered(call, [(like[cell],) for cell in cells], make)

    def taken(self, call: Collective, cell: int, flows: Sequence[Flow]) -> tuple[float, float]:
        """Return the shares of SMs and memory bandwidth that communication takes from concurrent passes."""
        if call.group in WAYS or (self.sms == 0 and self.memory == 0.0):  # copy engines take neither
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
    items: Steps, seconds: Seconds, slowdown: float, families: frozenset[str], host: Launches | None = None
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
