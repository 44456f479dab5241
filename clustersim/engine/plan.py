"""Scripts + network → one program a rank cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.engine.activities import Seconds, activity, transfer
from clustersim.engine.fabric import Activity
from clustersim.engine.fold import Partition
from clustersim.engine.groups import Use, families, group_of
from clustersim.engine.network import Demand, Network, demand, network
from clustersim.engine.program import Drain, Group, Instruction, Post, Program, Receive, Run, Send
from clustersim.engine.script import Call, Compute, Give, Line, Script, Start
from clustersim.engine.traffic import Mask
from clustersim.topology.model import Floats, Ints, Topology
from clustersim.workload.job import Job


class Work(NamedTuple):
    """All that a placed job does: the script of each pipeline rank, and the seconds of every kernel on a nominal GPU."""

    job: Job
    scripts: tuple[Script, ...]
    seconds: Seconds


class Plan(NamedTuple):
    """What the engine plays: a program a rank cell, the folded network, and how many rank cells each group has."""

    programs: list[Program]
    network: Network
    members: Mapping[Group, int]
    first: Ints
    size: Ints


class Draft(NamedTuple):
    """A job on a cluster before it is folded. seeds: an integer a rank, different where pipeline rank or speed are."""

    work: Work
    uses: tuple[Use, ...]
    demand: Demand
    seeds: Ints
    slowdown: Floats


def draft(work: Work, topology: Topology) -> Draft:
    """Return the groups of a job and what they may put on links."""
    uses = families(work.job, topology, [call for script in work.scripts for call in script.calls()])
    slowdown = topology.slowdown[: work.job.mesh.size]
    _, speed = np.unique(slowdown, return_inverse=True)
    seeds = _stage_of(work.job) * (speed.max() + 1) + speed
    return Draft(work, uses, demand(topology, uses), seeds, slowdown)


def plan(drafted: Draft, cells: Partition, kept: Mask) -> Plan:
    """Return the programs of a job whose ranks, groups and links fold to `cells`, on the links that are `kept`."""
    work, uses, slowdown = drafted.work, drafted.uses, drafted.slowdown
    net = network(drafted.demand, cells, kept)
    stage = _stage_of(work.job)
    places = _places(uses, work.job.mesh.size)
    binder = _Binder(work, net, {})
    programs = [
        binder.program(work.scripts[stage[r]], int(stage[r]), float(slowdown[r]), _cells_of(int(r), places, net))
        for r in cells.ranks.first
    ]
    return Plan(programs, net, _members(uses, net), cells.ranks.first, cells.ranks.size)


def _stage_of(job: Job) -> Ints:
    """Return the pipeline rank of every rank."""
    stage = np.empty(job.mesh.size, np.int64)
    stage[job.mesh.ranks.reshape(job.mesh.pp, -1)] = np.arange(job.mesh.pp)[:, None]
    return stage


def _places(uses: Sequence[Use], ranks: int) -> dict[str, Ints]:
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


def _members(uses: Sequence[Use], net: Network) -> dict[Group, int]:
    """Count the rank cells in the first group of every group cell."""
    result: dict[Group, int] = {}
    for family, _ in uses:
        cells = np.sort(net.cells.ranks.of[family.ranks[net.cells.groups[family.name].first]], axis=1)
        different = (np.diff(cells, axis=1) > 0).sum(axis=1) + 1
        result |= {(family.name, cell): count for cell, count in enumerate(different.tolist())}
    return result


@dataclass(frozen=True, slots=True)
class _Binder:
    """Binds scripts to network cells; equal activities are one object."""

    work: Work
    net: Network
    known: dict[tuple[object, ...], Activity]

    def program(self, script: Script, rank: int, slowdown: float, cells: Mapping[str, int]) -> Program:
        def bound(lines: Sequence[Line], *where: object) -> tuple[Instruction, ...]:
            return tuple(
                self.instruction(line, (rank, *where, place), slowdown, cells) for place, line in enumerate(lines)
            )

        return Program(
            bound(script.begin, "begin"),
            script.row,
            {key: bound(lines, "steps", key) for key, lines in script.steps.items()},
            {action: bound(lines, "special", action) for action, lines in script.special.items()},
            bound(script.finish, "finish"),
        )

    def instruction(
        self, line: Line, key: tuple[object, ...], slowdown: float, cells: Mapping[str, int]
    ) -> Instruction:
        """Return a line bound to the cells of a rank; `key` says where in the scripts it stands."""
        if isinstance(line, Drain):
            return line
        if isinstance(line, Compute):
            group = (line.family, cells[line.family]) if line.family else None
            return Run(line.kind, line.stage, self.compute(line, (*key, slowdown, group), slowdown, cells), group)
        if isinstance(line, Give):
            group = (line.call.family, cells[f"{line.call.family}/send"])
            return Send(line.stage, self.transfer(line.call, group), group, line.wait)
        if isinstance(line, Start):
            group = (line.call.family, cells[line.call.family])
            return Post(line.call.op, line.stage, self.transfer(line.call, group), group)
        return Receive(line.stage, (line.family, cells[f"{line.family}/receive"]))

    def compute(self, line: Compute, key: tuple[object, ...], slowdown: float, cells: Mapping[str, int]) -> Activity:
        if key not in self.known:
            self.known[key] = activity(line.items, self.work.seconds, slowdown, self.net, cells)
        return self.known[key]

    def transfer(self, call: Call, group: Group) -> Activity:
        key = (call, group)
        if key not in self.known:
            self.known[key] = transfer(self.net, call, group[1])
        return self.known[key]
