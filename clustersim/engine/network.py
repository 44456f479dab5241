"""What folded jobs see of the network that they share: moves of representative groups on representative links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clustersim.engine.choose import Chosen, chosen
from clustersim.engine.fabric import Move
from clustersim.engine.fold import Cells, Partition, partition
from clustersim.engine.script import Call
from clustersim.engine.traffic import Family, Held, Traffic, scarce, traffic
from clustersim.topology.model import Floats, Ints, Topology

Loads = Mapping[int, tuple[tuple[int, float], ...]]
Variant = tuple[str, str, str]
"""A collective by (family, op, algorithm)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A job's communication on the cluster, folded.

    choices: what each call uses. phases: the traffic of each variant. cells: which ranks and groups of the job are alike, and
    which links. capacity: bytes/s of each link cell that can be short; link cells are those of all jobs that share the
    cluster. loads: by variant, for each phase, by group cell, the (link cell, bytes per byte) that all groups of that cell
    put on one link of the link cell.
    """

    topology: Topology
    choices: Mapping[Call, Chosen]
    phases: Mapping[Variant, tuple[Traffic, ...]]
    cells: Partition
    capacity: Floats
    loads: Mapping[Variant, tuple[Loads, ...]]
    known: dict[tuple[Call, int], tuple[Move, ...]] = field(default_factory=dict)

    def variant(self, call: Call) -> Variant:
        """Return the variant that carries a call."""
        return call.family, call.op, self.choices[call].algorithm

    def moves(self, call: Call, cell: int) -> tuple[Move, ...]:
        """Return the moves of a call in a group of that cell; the first pays the launch."""
        if (call, cell) not in self.known:
            self.known[call, cell] = tuple(self._moves(call, cell))
        return self.known[call, cell]

    def _moves(self, call: Call, cell: int) -> Iterator[Move]:
        choice, variant = self.choices[call], self.variant(call)
        group = self.cells.groups[call.family].first[cell]
        start = self.topology.launch if choice.latency is None else choice.latency
        for phase, loads in zip(self.phases[variant], self.loads[variant], strict=True):
            hops = float(phase.latency[group]) if choice.latency is None else 0.0
            bound = min(float(phase.bound[group]), choice.rate)
            yield Move(call.family, start + hops, call.size, bound, loads.get(cell, ()))
            start = 0.0

    def bytes_by_link(self, sizes: Iterable[tuple[Variant, Floats]]) -> Floats:
        """Return the bytes over every link, given by variant the bytes of the collectives of each group."""
        total = np.zeros(len(self.topology.capacity))
        for variant, size in sizes:
            for t in self.phases[variant]:
                total += np.bincount(t.link, t.weight * size[t.group], len(total))
        return total


class Tenant(NamedTuple):
    """A placed job as the network meets it.

    families: each with the collectives it runs; their `ranks` are those of the job. gpus: the GPU of every rank. seeds: an
    integer of 0 or more a rank; ranks of different seeds are never folded.
    """

    families: Sequence[tuple[Family, Sequence[Call]]]
    gpus: Ints
    seeds: Ints


def networks(topology: Topology, tenants: Sequence[Tenant], fold: bool = True) -> tuple[Network, ...]:
    """Build the network of every job; they share its links, and only those: cells of ranks and groups never mix jobs."""
    carried = [_carried(topology, job, tenant) for job, tenant in enumerate(tenants)]
    flat = [t for _, phases in carried for parts in phases.values() for t in parts]
    links, held = scarce(topology, flat)
    capacity = topology.capacity[links]
    cells = partition(_seeds(tenants), _vertices(tenants), flat, held, capacity, fold)
    each = iter(held)
    result = []
    for (choices, phases), own in zip(carried, _shares(cells, tenants), strict=True):
        loads = {v: tuple(_loads(next(each), own.groups[v[0]], own.links) for _ in p) for v, p in phases.items()}
        result.append(Network(topology, choices, phases, own, capacity[cells.links.first], loads))
    return tuple(result)


def _carried(
    topology: Topology, job: int, tenant: Tenant
) -> tuple[dict[Call, Chosen], dict[Variant, tuple[Traffic, ...]]]:
    """Return what each call of a job uses, and the traffic of each variant."""
    placed = {f.name: f._replace(ranks=tenant.gpus[f.ranks]) for f, _ in tenant.families}
    choices = {c: chosen(topology, placed[c.family], c.op, c.size) for _, calls in tenant.families for c in calls}
    used = {(call.family, call.op, choice.algorithm): choice for call, choice in choices.items()}
    phases = {
        v: traffic(topology, _of_job(placed[v[0]], job)._replace(algorithm=c.algorithm, levels=c.levels), v[1])
        for v, c in used.items()
    }
    return choices, phases


def _of_job(family: Family, job: int) -> Family:
    """Return a family under a name that no family of another job has."""
    return family._replace(name=f"{family.name}@{job}", job=job)


def _seeds(tenants: Sequence[Tenant]) -> Ints:
    """Return the seeds of all ranks, job after job, those of each job above those of the jobs before it."""
    above = np.cumsum([0, *(int(tenant.seeds.max()) + 1 for tenant in tenants)])
    return np.concatenate([tenant.seeds + start for tenant, start in zip(tenants, above[:-1], strict=True)])


def _vertices(tenants: Sequence[Tenant]) -> list[Family]:
    """Return the families of all jobs on ranks that are counted job after job."""
    starts = np.cumsum([0, *(len(tenant.gpus) for tenant in tenants)])
    return [
        _of_job(family, job)._replace(ranks=family.ranks + starts[job])
        for job, tenant in enumerate(tenants)
        for family, _ in tenant.families
    ]


def _shares(cells: Partition, tenants: Sequence[Tenant]) -> Iterator[Partition]:
    """Yield the cells of each job: a run of the ranks' cells, as these are numbered by their first member."""
    rank = cell = 0
    for job, tenant in enumerate(tenants):
        of = cells.ranks.of[rank : rank + len(tenant.gpus)] - cell
        mine = slice(cell, cell + int(of.max()) + 1)
        groups = {f.name: cells.groups[_of_job(f, job).name] for f, _ in tenant.families}
        yield Partition(Cells(of, cells.ranks.first[mine] - rank, cells.ranks.size[mine]), groups, cells.links)
        rank, cell = rank + len(of), mine.stop


def _loads(held: Held, groups: Cells, links: Cells) -> dict[int, tuple[tuple[int, float], ...]]:
    """Sum, for each group cell, what all its groups put on the first link of every link cell."""
    count = len(links.first)
    kept = np.flatnonzero(links.first[links.of[held.link]] == held.link)
    key = groups.of[held.group[kept]] * count + links.of[held.link[kept]]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.bincount(inverse, held.weight[kept], len(key))
    result: dict[int, list[tuple[int, float]]] = {}
    for k, w in zip(key.tolist(), weight.tolist(), strict=True):
        result.setdefault(k // count, []).append((k % count, w))
    return {cell: tuple(pairs) for cell, pairs in result.items()}
