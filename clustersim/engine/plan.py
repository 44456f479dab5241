"""Mesh + schedule + stages + seconds → one program a rank cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.config.gpu import BYTES
from clustersim.engine.activities import Seconds, activity, cut, transfer
from clustersim.engine.fabric import Activity
from clustersim.engine.groups import BACKWARD, FORWARD, Use, families, group_of
from clustersim.engine.network import Network, network
from clustersim.engine.program import Drain, Group, Instruction, Post, Program, Receive, Run, Send
from clustersim.schedules.action import Action, Schedule
from clustersim.topology.model import Ints, Topology
from clustersim.workload.job import Job
from clustersim.workload.kernel import Kernel
from clustersim.workload.operator import Exchange
from clustersim.workload.optimizer import update, weight_bytes
from clustersim.workload.stages import Stage


class Update(NamedTuple):
    """The end of the step on one pipeline rank: all up to the gradient norm, then the optimizer."""

    norm: tuple[Kernel, ...]
    step: tuple[Kernel, ...]


class Work(NamedTuple):
    """All that a placed job computes: global stages, schedule, update of each pipeline rank, and seconds by kernel."""

    job: Job
    stages: tuple[Stage, ...]
    schedule: Schedule
    updates: tuple[Update, ...]
    seconds: Seconds


def updates(job: Job, stages: Sequence[Stage]) -> tuple[Update, ...]:
    """Return the update of each pipeline rank, which holds every pp-th global stage."""
    return tuple(
        _update(job, sum(s.parameters for s in stages[rank :: job.parallelism.pp]))
        for rank in range(job.parallelism.pp)
    )


def _update(job: Job, parameters: int) -> Update:
    kernels = update(job, parameters)
    cut_at = next((i + 1 for i, kernel in enumerate(kernels) if kernel.op == "gradient_norm"), 0)
    return Update(kernels[:cut_at], kernels[cut_at:])


def kernels(stages: Sequence[Stage], ends: Sequence[Update]) -> list[Kernel]:
    """Return the distinct kernels of a job, in order of appearance."""
    layers = dict.fromkeys(layer for stage in stages for layer, _ in stage.layers)
    passes = (
        items
        for layer in layers
        for op in layer.operators
        for items in (op.forward, op.backward_input, op.backward_weight)
    )
    found = (item for items in (*passes, *(part for end in ends for part in end)) for item in items)
    return list(dict.fromkeys(item for item in found if isinstance(item, Kernel)))


class Plan(NamedTuple):
    """What the engine plays: a program a rank cell, the folded network, and how many rank cells each group has."""

    programs: list[Program]
    network: Network
    members: Mapping[Group, int]
    first: Ints
    size: Ints


def plan(work: Work, topology: Topology, fold: bool = True) -> Plan:
    """Return the programs of a job. `fold` off gives every rank its own program."""
    mesh = work.job.mesh
    count = mesh.size
    uses = families(work.job, topology, _exchanges(work.stages))
    position = np.empty(count, np.int64)
    position[mesh.ranks.reshape(mesh.pp, -1)] = np.arange(mesh.pp)[:, None]
    slowdown = topology.slowdown[:count]
    _, speed = np.unique(slowdown, return_inverse=True)
    net = network(topology, uses, position * (speed.max() + 1) + speed, fold)
    places = _places(uses, count)
    cells = net.cells.ranks
    builder = _Builder(work, net, {})
    programs = [
        builder.program(int(position[r]), float(slowdown[r]), _cells_of(int(r), places, net)) for r in cells.first
    ]
    return Plan(programs, net, _members(uses, net), cells.first, cells.size)


def _exchanges(stages: Sequence[Stage]) -> list[str]:
    """Return the distinct collectives inside the layers."""
    work = (item for stage in stages for item in (*stage.forward, *stage.backward))
    return list(dict.fromkeys(item.op for item in work if isinstance(item, Exchange)))


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
    result = {}
    for family, _ in uses:
        for cell, group in enumerate(net.cells.groups[family.name].first):
            result[family.name, cell] = len(np.unique(net.cells.ranks.of[family.ranks[group]]))
    return result


@dataclass(frozen=True, slots=True)
class _Builder:
    work: Work
    net: Network
    known: dict[tuple[object, ...], Activity]

    def program(self, rank: int, slowdown: float, cells: Mapping[str, int]) -> Program:
        """Return the program of pipeline rank `rank`."""
        row = self.work.schedule[rank]
        steps: dict[tuple[str, int], tuple[Instruction, ...]] = {}
        special: dict[Action, tuple[Instruction, ...]] = {}
        for action in {(a.letter, a.stage): a for a in row}.values():  # the last of each letter and stage
            around = self.receive(action, cells), self.send(action, cells)
            steps[action.letter, action.stage] = (*around[0], self.run(action, slowdown, cells), *around[1])
            if self.work.job.parallelism.overlap.grad_reduce and action.letter in "BW":
                special[action] = (*around[0], *self.bucketed(action, slowdown, cells), *around[1])
        begin, first = self.gather(rank, slowdown, cells) if self.gathers(cells) else ((), {})
        return Program(begin, row, steps, special | first, tuple(self.finish(rank, slowdown, cells)))

    def gathers(self, cells: Mapping[str, int]) -> bool:
        """Whether the parameters of the last update are gathered during the first forward passes."""
        split = self.work.job.parallelism
        return bool(split.zero and split.overlap.param_gather and "dp" in cells)

    def gather(
        self, rank: int, slowdown: float, cells: Mapping[str, int]
    ) -> tuple[tuple[Instruction, ...], dict[Action, tuple[Instruction, ...]]]:
        """Post all gathers at the start; the first forward pass of each stage waits for each bucket where it reads it."""
        posts: list[Instruction] = []
        special: dict[Action, tuple[Instruction, ...]] = {}
        for action in {a.stage: a for a in reversed(self.work.schedule[rank]) if a.letter == "F"}.values():
            stage = self.work.stages[action.stage]
            buckets = _first_reads(stage.parameters_used, self.bucket)
            parts = cut(stage.forward, [position for position, _ in buckets[1:]])
            result = self.receive(action, cells)
            for n, (part, (_, parameters)) in enumerate(zip(parts, buckets, strict=True)):
                posts += self.post("dp", "all_gather", action.stage, parameters * weight_bytes(self.work.job), cells)
                work = self.activity(("F", action.stage, "bucket", n), part, slowdown, cells)
                result += [Drain("dp", len(posts)), Run("F", action.stage, work, _group("tp", cells))]
            special[action] = (*result, *self.send(action, cells))
        return tuple(posts), special

    @property
    def bucket(self) -> int:
        """Parameters of a bucket; the default is Megatron's (megatron/core/distributed/distributed_data_parallel.py)."""
        return self.work.job.parallelism.bucket or max(40_000_000, 1_000_000 * self.work.job.dp)

    @property
    def gradient_size(self) -> float:
        return BYTES[self.work.job.training.gradients]

    def items(self, action: Action) -> Sequence[Kernel | Exchange]:
        stage = self.work.stages[action.stage]
        by_letter = {"F": stage.forward, "B": stage.backward, "I": stage.backward_input, "W": stage.backward_weight}
        return by_letter[action.letter]

    def activity(
        self, key: tuple[object, ...], items: Sequence[Kernel | Exchange], slowdown: float, cells: Mapping[str, int]
    ) -> Activity:
        key = (*key, slowdown, cells.get("tp"))
        if key not in self.known:
            self.known[key] = activity(items, self.work.seconds, slowdown, self.net, cells)
        return self.known[key]

    def run(self, action: Action, slowdown: float, cells: Mapping[str, int]) -> Run:
        work = self.activity((action.letter, action.stage), self.items(action), slowdown, cells)
        return Run(action.letter, action.stage, work, _group("tp", cells))

    def receive(self, action: Action, cells: Mapping[str, int]) -> list[Instruction]:
        if action.letter == "F" and action.stage > 0:
            return [Receive(action.stage, (FORWARD, cells[f"{FORWARD}/receive"]))]
        if action.letter in "BI" and action.stage < len(self.work.stages) - 1:
            return [Receive(action.stage, (BACKWARD, cells[f"{BACKWARD}/receive"]))]
        return []

    def send(self, action: Action, cells: Mapping[str, int]) -> list[Instruction]:
        if action.letter == "F" and action.stage < len(self.work.stages) - 1:
            family, target, size = FORWARD, action.stage + 1, self.work.stages[action.stage].output_bytes
        elif action.letter in "BI" and action.stage > 0:
            family, target, size = BACKWARD, action.stage - 1, self.work.stages[action.stage - 1].output_bytes
        else:
            return []
        cell = cells[f"{family}/send"]
        key = (family, cell, size)
        if key not in self.known:
            self.known[key] = transfer(self.net, family, "send", cell, size)
        wait = not self.work.job.parallelism.overlap.p2p
        return [Send(target, self.known[key], (family, cell), wait)]

    def bucketed(self, action: Action, slowdown: float, cells: Mapping[str, int]) -> list[Instruction]:
        """Run the last backward pass of a stage in parts and post the reduction of each bucket as it fills."""
        items, stage = self.items(action), self.work.stages[action.stage]
        ready = stage.gradient_ready if action.letter == "B" else ((len(items), stage.parameters),)
        buckets = _buckets(ready, self.bucket)
        result: list[Instruction] = []
        for n, (part, (_, parameters)) in enumerate(
            zip(cut(items, [p for p, _ in buckets[:-1]]), buckets, strict=True)
        ):
            key = (action.letter, action.stage, "bucket", n)
            work = self.activity(key, part, slowdown, cells)
            result.append(Run(action.letter, action.stage, work, _group("tp", cells)))
            result += self.reduce(action.stage, parameters, cells)
        return result

    def reduce(self, stage: int, parameters: float, cells: Mapping[str, int]) -> list[Instruction]:
        """Post the reduction of gradients over the dp ranks."""
        op = "reduce_scatter" if self.work.job.parallelism.zero else "all_reduce"
        return self.post("dp", op, stage, parameters * self.gradient_size, cells)

    def post(self, family: str, op: str, stage: int, size: float, cells: Mapping[str, int]) -> list[Instruction]:
        if family not in cells or not size:
            return []
        cell = cells[family]
        key = (family, op, cell, size)
        if key not in self.known:
            self.known[key] = transfer(self.net, family, op, cell, size)
        return [Post(op, stage, self.known[key], (family, cell))]

    def finish(self, rank: int, slowdown: float, cells: Mapping[str, int]) -> list[Instruction]:
        """Reduce gradients, tie the embeddings, clip, update, gather parameters."""
        split = self.work.job.parallelism
        stages = range(rank, len(self.work.stages), self.work.job.parallelism.pp)
        result: list[Instruction] = []
        if not split.overlap.grad_reduce:
            result += [p for s in stages for p in self.reduce(s, self.work.stages[s].parameters, cells)]
        result += [Drain("dp")] if "dp" in cells else []
        if "embedding" in cells:
            size = self.work.stages[0].shared * self.gradient_size
            result += [*self.post("embedding", "all_reduce", -1, size, cells), Drain("embedding")]
        result += self.end(rank, slowdown, cells)
        if split.zero and not split.overlap.param_gather:
            for s in stages:
                size = self.work.stages[s].parameters * weight_bytes(self.work.job)
                result += self.post("dp", "all_gather", s, size, cells)
            result += [Drain("dp")] if "dp" in cells else []
        return result

    def end(self, rank: int, slowdown: float, cells: Mapping[str, int]) -> list[Instruction]:
        norm, step = self.work.updates[rank]
        result: list[Instruction] = []
        if norm:
            items: list[Kernel | Exchange] = [*norm]
            if "model" in cells:
                items.append(Exchange("model", "all_reduce", 4.0))  # type: ignore[arg-type]
            work = self.activity(("norm", rank, cells.get("model")), items, slowdown, cells)
            result.append(Run("norm", -1, work, _group("model", cells)))
        if step:
            result.append(Run("optimizer", -1, self.activity(("optimizer", rank), step, slowdown, cells), None))
        return result


def _group(family: str, cells: Mapping[str, int]) -> Group | None:
    return (family, cells[family]) if family in cells else None


def _buckets(ready: Sequence[tuple[int, float]], size: float) -> list[tuple[int, float]]:
    """Gather (position, parameters) into buckets of at least `size` parameters; the last takes the rest."""
    result: list[tuple[int, float]] = []
    held = 0.0
    for position, parameters in ready:
        held += parameters
        if held >= size:
            result.append((position, held))
            held = 0.0
    if held or not result:
        result.append((ready[-1][0] if ready else 0, held))
    return result


def _first_reads(used: Sequence[tuple[int, float]], size: float) -> list[tuple[int, float]]:
    """Gather (position, parameters) into buckets of at least `size` parameters, each at its first position."""
    result: list[tuple[int, float]] = []
    for position, parameters in used:
        if result and result[-1][1] < size:
            result[-1] = (result[-1][0], result[-1][1] + parameters)
        else:
            result.append((position, parameters))
    return result or [(0, 0)]
