"""What the folded job sees of the network: moves of representative groups on representative links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clustersim.engine.choose import Chosen, chosen
from clustersim.engine.fabric import Move
from clustersim.engine.flows import NOWHERE, Loads
from clustersim.engine.fold import Partition, partition
from clustersim.engine.script import Call
from clustersim.engine.traffic import Family, Held, Mask, Traffic, scarce, traffic
from clustersim.topology.model import Floats, Ints, Topology

Variant = tuple[str, str, str]
"""A collective by (family, op, algorithm)."""


class Demand(NamedTuple):
    """All that a job may put on links, rank by rank.

    choices: what each call uses. phases: the traffic of each variant, its latency and bound as its calls have them. links:
    those that could be short, sorted; held: what the phases, one after the other, put on them.
    """

    topology: Topology
    families: tuple[Family, ...]
    choices: Mapping[Call, Chosen]
    phases: Mapping[Variant, tuple[Traffic, ...]]
    links: Ints
    held: tuple[Held, ...]

    @property
    def flat(self) -> list[Traffic]:
        """All phases, one after the other."""
        return [t for parts in self.phases.values() for t in parts]


def demand(topology: Topology, families: Sequence[tuple[Family, Sequence[Call]]]) -> Demand:
    """Return what a job may put on links; families: each with the collectives it runs."""
    choices = {call: chosen(topology, f, call.op, call.size) for f, calls in families for call in calls}
    by_name = {f.name: f for f, _ in families}
    used: dict[Variant, list[Chosen]] = {}
    for call, choice in choices.items():
        used.setdefault((call.family, call.op, choice.algorithm), []).append(choice)
    phases = {v: _paced(traffic(topology, _as(by_name[v[0]], own[-1]), v[1]), own) for v, own in used.items()}
    links, held = scarce(topology, [t for parts in phases.values() for t in parts])
    return Demand(topology, tuple(by_name.values()), choices, phases, links, held)


def _paced(parts: Iterable[Traffic], choices: Sequence[Chosen]) -> tuple[Traffic, ...]:
    """Return traffic no faster than its protocol lets it be, and without the latency of hops where the protocol has its own.

    What no call can reach must not make a link look short, nor tell groups apart.
    """
    rate = max(choice.rate for choice in choices)
    hops = any(choice.latency is None for choice in choices)
    return tuple(t._replace(bound=np.minimum(t.bound, rate), latency=t.latency if hops else 0 * t.latency) for t in parts)


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
    loads: Mapping[Variant, tuple[Mapping[int, Loads], ...]]
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
            yield Move(call.family, start + hops, call.size, bound, loads.get(cell, NOWHERE))
            start = 0.0

    def bytes_by_link(self, sizes: Iterable[tuple[Variant, Floats]]) -> Floats:
        """Return the bytes over every link, given by variant the bytes of the collectives of each group."""
        total = np.zeros(len(self.topology.capacity))
        for variant, size in sizes:
            for t in self.phases[variant]:
                total += np.bincount(t.link, t.weight * size[t.group], len(total))
        return total


def folded(demand: Demand, seeds: Ints, kept: Mask, fold: bool = True) -> Partition:
    """Return which ranks, groups and links are alike when the job has those of its links that are `kept`.

    seeds: an integer a rank; ranks of different seeds are never folded. `fold` off: none are.
    """
    capacity = demand.topology.capacity[demand.links[kept]]
    return partition(seeds, demand.families, demand.flat, _held(demand, kept), capacity, fold)


def network(demand: Demand, cells: Partition, kept: Mask) -> Network:
    """Return a job's communication on its cells."""
    capacity = demand.topology.capacity[demand.links[kept]]
    each = iter(_held(demand, kept))
    loads = {v: tuple(_loads(next(each), cells) for _ in parts) for v, parts in demand.phases.items()}
    return Network(demand.topology, demand.choices, demand.phases, cells, capacity[cells.links.first], loads)


def _held(demand: Demand, kept: Mask) -> tuple[Held, ...]:
    return demand.held if kept.all() else tuple(_only(held, kept) for held in demand.held)


def _only(held: Held, kept: Mask) -> Held:
    """Return the loads on the links of a mask, numbered anew."""
    entries = np.flatnonzero(kept[held.link])
    place = np.cumsum(kept) - 1
    return held._replace(group=held.group[entries], link=place[held.link[entries]], weight=held.weight[entries])


def _as(family: Family, choice: Chosen) -> Family:
    return family._replace(algorithm=choice.algorithm, levels=choice.levels)


def _loads(held: Held, cells: Partition) -> dict[int, Loads]:
    """Sum, for each group cell, what all its groups put on the first link of every link cell."""
    count = len(cells.links.first)
    kept = np.flatnonzero(cells.links.first[cells.links.of[held.link]] == held.link)
    key = cells.groups[held.family].of[held.group[kept]] * count + cells.links.of[held.link[kept]]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.bincount(inverse, held.weight[kept], len(key))
    cell, link = np.divmod(key, max(count, 1))
    cuts = np.flatnonzero(np.diff(cell, prepend=-1))
    parts = zip(np.split(link, cuts[1:]), np.split(weight, cuts[1:]), strict=True)
    return {c: Loads(*part) for c, part in zip(cell[cuts].tolist(), parts, strict=False)}
