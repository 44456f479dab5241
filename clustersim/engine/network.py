"""What the folded job sees of the network: moves of representative groups on representative links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clustersim.engine.choose import Chosen, chosen
from clustersim.engine.fabric import Move
from clustersim.engine.fold import Partition, partition
from clustersim.engine.script import Call
from clustersim.engine.traffic import Family, Held, Traffic, scarce, traffic
from clustersim.topology.model import Floats, Ints, Topology

Loads = Mapping[int, tuple[tuple[int, float], ...]]
Variant = tuple[str, str, str]
"""A collective by (family, op, algorithm)."""


@dataclass(frozen=True, slots=True)
class Network:
    """The job's communication on the cluster, folded.

    choices: what each call uses. phases: the traffic of each variant. cells: which ranks, groups and links are alike.
    capacity: bytes/s of each link cell that can be short. loads: by variant, for each phase, by group cell, the (link cell,
    bytes per byte) that all groups of that cell put on one link of the link cell.
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


def network(
    topology: Topology, families: Sequence[tuple[Family, Sequence[Call]]], seeds: Ints, fold: bool = True
) -> Network:
    """Build the network of a job.

    families: each with the collectives it runs. seeds: an integer a rank; ranks of different seeds are never folded.
    """
    choices = {call: chosen(topology, f, call.op, call.size) for f, calls in families for call in calls}
    by_name = {f.name: f for f, _ in families}
    used = {(call.family, call.op, choice.algorithm): choice for call, choice in choices.items()}
    phases = {v: traffic(topology, _as(by_name[v[0]], choice), v[1]) for v, choice in used.items()}
    flat = [t for parts in phases.values() for t in parts]
    links, held = scarce(topology, flat)
    capacity = topology.capacity[links]
    cells = partition(seeds, list(by_name.values()), flat, held, capacity, fold)
    each = iter(held)
    loads = {v: tuple(_loads(next(each), cells) for _ in parts) for v, parts in phases.items()}
    return Network(topology, choices, phases, cells, capacity[cells.links.first], loads)


def _as(family: Family, choice: Chosen) -> Family:
    return family._replace(algorithm=choice.algorithm, levels=choice.levels)


def _loads(held: Held, cells: Partition) -> dict[int, tuple[tuple[int, float], ...]]:
    """Sum, for each group cell, what all its groups put on the first link of every link cell."""
    count = len(cells.links.first)
    kept = np.flatnonzero(cells.links.first[cells.links.of[held.link]] == held.link)
    key = cells.groups[held.family].of[held.group[kept]] * count + cells.links.of[held.link[kept]]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.bincount(inverse, held.weight[kept], len(key))
    result: dict[int, list[tuple[int, float]]] = {}
    for k, w in zip(key.tolist(), weight.tolist(), strict=True):
        result.setdefault(k // count, []).append((k % count, w))
    return {cell: tuple(pairs) for cell, pairs in result.items()}
