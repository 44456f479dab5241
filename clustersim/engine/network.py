"""What the folded job sees of the network: moves of representative groups on representative links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clustersim.engine.fabric import Move
from clustersim.engine.fold import Partition, partition
from clustersim.engine.script import Call
from clustersim.engine.traffic import Family, Held, Traffic, scarce, traffic
from clustersim.topology.model import Floats, Ints, Topology

Loads = Mapping[int, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class Network:
    """The job's communication on the cluster, folded.

    families: by name. phases: the traffic of each (family, op). cells: which ranks, groups and links are alike.
    capacity: bytes/s of each link cell that can be short. loads: by (family, op), for each phase, by group cell, the
    (link cell, bytes per byte) that all groups of that cell put on one link of the link cell.
    """

    topology: Topology
    families: Mapping[str, Family]
    phases: Mapping[tuple[str, str], tuple[Traffic, ...]]
    cells: Partition
    capacity: Floats
    loads: Mapping[tuple[str, str], tuple[Loads, ...]]
    known: dict[tuple[str, str, int, float], tuple[Move, ...]] = field(default_factory=dict)

    def moves(self, family: str, op: str, cell: int, size: float) -> tuple[Move, ...]:
        """Return the moves of collective `op` of `size` bytes in a group of that cell; the first pays the launch."""
        key = (family, op, cell, size)
        if key not in self.known:
            self.known[key] = self._moves(family, op, cell, size)
        return self.known[key]

    def _moves(self, family: str, op: str, cell: int, size: float) -> tuple[Move, ...]:
        group = self.cells.groups[family].first[cell]
        launch = self.topology.launch
        result = []
        for phase, loads in zip(self.phases[family, op], self.loads[family, op], strict=True):
            latency = launch + float(phase.latency[group])
            result.append(Move(family, latency, size, float(phase.bound[group]), loads.get(cell, ())))
            launch = 0.0
        return tuple(result)

    def bytes_by_link(self, sizes: Iterable[tuple[str, str, Floats]]) -> Floats:
        """Return the bytes over every link, given (family, op, bytes of the collective by group)."""
        total = np.zeros(len(self.topology.capacity))
        for family, op, size in sizes:
            for t in self.phases[family, op]:
                total += np.bincount(t.link, t.weight * size[t.group], len(total))
        return total


def network(
    topology: Topology, families: Sequence[tuple[Family, Sequence[Call]]], seeds: Ints, fold: bool = True
) -> Network:
    """Build the network of a job.

    families: each with the collectives it runs. seeds: an integer a rank; ranks of different seeds are never folded.
    """
    phases = {
        (f.name, op): traffic(topology, f, op) for f, calls in families for op in dict.fromkeys(c.op for c in calls)
    }
    flat = [t for parts in phases.values() for t in parts]
    links, held = scarce(topology, flat)
    capacity = topology.capacity[links]
    cells = partition(seeds, [f for f, _ in families], flat, held, capacity, fold)
    each = iter(held)
    loads = {key: tuple(_loads(next(each), cells) for _ in parts) for key, parts in phases.items()}
    by_name = {f.name: f for f, _ in families}
    return Network(topology, by_name, phases, cells, capacity[cells.links.first], loads)


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
