"""Scripts + network → one program a rank cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.engine.activities import Seconds, activity, transfer
from clustersim.engine.fabric import Activity
from clustersim.engine.groups import Use, families, group_of
from clustersim.engine.network import Network, network
from clustersim.engine.program import Drain, Group, Instruction, Post, Program, Receive, Run, Send
from clustersim.engine.script import Call, Compute, Give, Line, Script, Start
from clustersim.topology.model import Ints, Topology
from clustersim.workload.job import Job


class Work(NamedTuple):
    """All that a placed job does: the script of each role, and the seconds of every kernel on a nominal GPU.

    A role is a pipeline rank, and where ep ranks have different loads a position in the ep group, the latter counting faster.
    """

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


def plan(work: Work, topology: Topology, fold: bool = True) -> Plan:
    """Return the programs of a job. `fold` off gives every rank its own program."""
    count = work.job.mesh.size
    uses = families(work.job, topology, [call for script in work.scripts for call in script.calls()])
    role = roles(work.job)
    slowdown = topology.slowdown[:count]
    _, speed = np.unique(slowdown, return_inverse=True)
    net = network(topology, uses, role * (speed.max() + 1) + speed, fold)
    places = _places(uses, count)
    binder = _Binder(work, net, {})
    programs = [
        binder.program(work.scripts[role[r]], int(role[r]), float(slowdown[r]), _cells_of(int(r), places, net))
        for r in net.cells.ranks.first
    ]
    return Plan(programs, net, _members(uses, net), net.cells.ranks.first, net.cells.ranks.size)


def roles(job: Job) -> Ints:
    """Return the role of every rank."""
    pp, _, ep, _, _ = job.expert_mesh.coordinates(np.arange(job.mesh.size))
    return pp * job.positions + ep % job.positions


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

    def program(self, script: Script, role: int, slowdown: float, cells: Mapping[str, int]) -> Program:
        def bound(lines: Sequence[Line], *where: object) -> tuple[Instruction, ...]:
            return tuple(
                self.instruction(line, (role, *where, place), slowdown, cells) for place, line in enumerate(lines)
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
