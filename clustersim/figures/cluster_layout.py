"""Ends, cables and levels of a cluster as its pictures show them: a node is one end if there are several nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.topology.model import Topology

INSIDE = ("gpu", "nic", "ports", "nvswitch", "pcie")
"""Kinds of ends inside a node."""


class Cable(NamedTuple):
    """Parallel links in both directions between two ends."""

    a: str
    b: str
    links: Ints


def cables(topology: Topology, links: Iterable[int]) -> list[Cable]:
    """Return the cables of some links. Links between the same two ends are one cable, and links inside a node none."""
    by_ends: dict[tuple[str, str], list[int]] = {}
    for link in links:
        a, b = drawn_ends(topology, link)
        if a != b:
            by_ends.setdefault((b, a) if (b, a) in by_ends else (a, b), []).append(link)
    return [Cable(a, b, np.array(parallel)) for (a, b), parallel in by_ends.items()]


def drawn_ends(topology: Topology, link: int) -> tuple[str, str]:
    """Return the names of the ends of a link as drawn: the node for everything inside one, if there are several nodes."""
    a, b = topology.ends(link)
    return (_drawn_end(topology, a), _drawn_end(topology, b)) if topology.nodes > 1 else (a, b)


def _drawn_end(topology: Topology, end: str) -> str:
    """Return the name of an end as drawn in a cluster of several nodes."""
    part = end_kind(end)
    if part not in INSIDE or part == end:
        return end
    number = sort_key(end)[1]
    return f"node[{topology.numbering.built.place(part, number)[0] if part in ('gpu', 'nic', 'ports') else number}]"


def levels(lowest: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return {end: number of cables to the nearest end of `lowest`} of all ends that `pairs` of ends reach."""
    neighbours = defaultdict[str, list[str]](list)
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    front, level = list(lowest), 0
    reached = dict.fromkeys(front, level)
    while front := list(dict.fromkeys(other for name in front for other in neighbours[name] if other not in reached)):
        level += 1
        reached |= dict.fromkeys(front, level)
    return reached


def end_kind(end: str) -> str:
    """Return the kind of an end by its name: `leaf` of `leaf[3]`."""
    return end.partition("[")[0]


def sort_key(end: str) -> tuple[str, int]:
    """Return (kind, number) of an end, by which ends are sorted; the number is -1 if its name has none."""
    part, _, number = end.partition("[")
    return part, int(number.rstrip("]")) if number.rstrip("]").isdecimal() else -1
