"""What a picture of a cluster is about: nodes, switches by level, and how many cables join them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from clustersim.topology.faults import DEAD
from clustersim.topology.model import Topology

INNER = frozenset({"nvlink", "pcie", "mesh", "ring"})


class Cable(NamedTuple):
    """Parallel cables between two ends: how many, and bytes/s of one."""

    a: str
    b: str
    cables: int
    rate: float


class Parts(NamedTuple):
    """nodes: their names; levels: the switches at each distance from the nodes; cables: of the fabric, nodes being one end."""

    nodes: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    cables: tuple[Cable, ...]

    @property
    def hierarchical(self) -> bool:
        """Whether no cable joins two switches of the lowest level."""
        lowest = set(self.levels[0]) if self.levels else set()
        return not any(cable.a in lowest and cable.b in lowest for cable in self.cables)


def parts(topology: Topology) -> Parts:
    """Return the nodes and switches of a small cluster, built with one link a cable."""
    cables = _cables(topology)
    nodes = tuple(f"node[{n}]" for n in range(_nodes(topology)))
    near = defaultdict(list)
    for cable in cables:
        near[cable.a].append(cable.b)
        near[cable.b].append(cable.a)
    seen, front, levels = set(nodes), list(nodes), []
    while front := list(dict.fromkeys(s for v in front for s in near[v] if s not in seen)):
        seen.update(front)
        levels.append(tuple(sorted(front, key=_order)))
    return Parts(nodes, tuple(levels), cables)


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("[")
    return kind, int(number[:-1]) if number else 0


def _cables(topology: Topology) -> tuple[Cable, ...]:
    nics = int(topology.counts.get("nics", 0)) // _nodes(topology) or 1
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for tier in topology.tiers:
        if tier.name.split("-")[0] in INNER or not tier.name.endswith("-up"):
            continue
        for link in range(tier.first, tier.first + tier.links):
            ends = tuple(_joined(end, nics) for end in topology.ends(link))
            cables, rate = int(topology.cables[link]), float(topology.capacity[link])
            if ends[0] != ends[1] and cables and rate > DEAD:
                count, _ = found.get((ends[0], ends[1]), (0, 0.0))
                found[ends[0], ends[1]] = count + cables, rate / cables
    return tuple(Cable(*ends, *value) for ends, value in found.items())


def _joined(end: str, nics: int) -> str:
    kind, _, number = end.partition("[")
    return f"node[{int(number[:-1]) // nics}]" if kind in ("nic", "ports") else end


def _nodes(topology: Topology) -> int:
    return topology.nodes + int(topology.counts.get("dead_nodes", 0))


def inner_pairs(topology: Topology) -> list[tuple[int, int]]:
    """Return the pairs of GPUs of the first node that a wire joins; none when they meet in a switch."""
    pairs = []
    for tier in topology.tiers:
        if tier.name.split("-")[0] in ("mesh", "ring") and tier.name.endswith("-up"):
            each = tier.links // _nodes(topology)
            ends = (topology.ends(link) for link in range(tier.first, tier.first + each))
            pairs += [tuple(int(end[4:-1]) for end in pair) for pair in ends]
    return [(a, b) for a, b in pairs]


def rate_inside(topology: Topology) -> float:
    """Return the bytes/s of one link inside a node: of a GPU into the switch, or of a wire."""
    return float(np.max(topology.capacity[: topology.tiers[0].links], initial=0.0))
