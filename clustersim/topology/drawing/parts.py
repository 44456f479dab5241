"""What a picture of a cluster is about: nodes, switches by level, and how many cables join them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from clustersim.topology.model import Topology
from clustersim.topology.numbering import Numbering

INNER = frozenset({"nvlink", "pcie", "mesh", "ring"})


class Cable(NamedTuple):
    """Parallel cables between two ends."""

    a: str
    """One end by name."""
    b: str
    """The other."""
    cables: int
    """How many."""
    rate: float
    """Bytes/s of one."""
    dead: bool = False
    """All are."""
    slow: bool = False
    """Some are slow or dead."""


class DrawnParts(NamedTuple):
    """What a cluster is made of, by name."""

    nodes: tuple[str, ...]
    """All of them."""
    levels: tuple[tuple[str, ...], ...]
    """The switches at each distance from the nodes, the nearest first."""
    cables: tuple[Cable, ...]
    """Of the fabric; those of NICs end at nodes."""

    @property
    def hierarchical(self) -> bool:
        """Whether no cable joins two switches of the lowest level."""
        lowest = set(self.levels[0]) if self.levels else set()
        return not any(cable.a in lowest and cable.b in lowest for cable in self.cables)


def parts(topology: Topology, sound: Topology) -> DrawnParts:
    """Return the nodes and switches of a small cluster, built with one link a cable; `sound` is the same without faults."""
    cables = _cables(topology, sound)
    nodes = tuple(f"node[{n}]" for n in range(topology.numbering.built.nodes))
    neighbours = defaultdict(list)
    for cable in cables:
        neighbours[cable.a].append(cable.b)
        neighbours[cable.b].append(cable.a)
    seen, front, levels = set(nodes), list(nodes), []
    while front := list(dict.fromkeys(s for v in front for s in neighbours[v] if s not in seen)):
        seen.update(front)
        levels.append(tuple(sorted(front, key=_order)))
    return DrawnParts(nodes, tuple(levels), cables)


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("[")
    return kind, int(number[:-1]) if number else 0


def _cables(topology: Topology, sound: Topology) -> tuple[Cable, ...]:
    ill = topology.capacity < sound.capacity * (1 - 1e-9)
    found: dict[tuple[str, str], Cable] = {}
    for tier in topology.tiers:
        if tier.name.split("-")[0] in INNER or tier.name.endswith("-down"):
            continue
        back = next((t.first - tier.first for t in topology.tiers if t.name == tier.name[:-3] + "-down"), 0)
        for link in range(tier.first, tier.first + tier.links):
            a, b = (_joined(end, topology.numbering.built) for end in topology.ends(link))
            if a == b:
                continue
            old = found.get((a, b), Cable(a, b, 0, 0.0, dead=True))
            cables, rate = int(sound.cables[link]), float(sound.capacity[link] / sound.cables[link])
            slow = old.slow or bool(ill[link] or ill[link + back])
            gone = topology.cables[link] == 0 and topology.cables[link + back] == 0
            found[a, b] = Cable(a, b, old.cables + cables, rate, old.dead and bool(gone), slow)
    return tuple(found.values())


def _joined(end: str, numbering: Numbering) -> str:
    kind, _, number = end.partition("[")
    return f"node[{numbering.place(kind, int(number[:-1]))[0]}]" if kind in ("nic", "ports") else end


def inner_pairs(topology: Topology) -> list[tuple[int, int]]:
    """Return the pairs of GPUs of the first node that a wire joins; none when they meet in a switch."""
    pairs = []
    for tier in topology.tiers:
        if tier.name.split("-")[0] in ("mesh", "ring") and tier.name.endswith("-up"):
            each = tier.links // topology.numbering.built.nodes
            ends = (topology.ends(link) for link in range(tier.first, tier.first + each))
            pairs += [tuple(int(end[4:-1]) for end in pair) for pair in ends]
    return [(a, b) for a, b in pairs]


def rate_inside(topology: Topology) -> float:
    """Return the bytes/s of one link inside a node: of a GPU into the switch, or of a wire."""
    return float(np.max(topology.capacity[: topology.tiers[0].links], initial=0.0))
