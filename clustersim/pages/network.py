"""The cluster of a page: how full its links are, which of them hold the critical path, and what is slow or dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.report.links import carried, ends, limiting_seconds, limits, link_bytes
from clustersim.simulation import StepResult
from clustersim.topology.describe import describe, faults
from clustersim.topology.faults import DEAD
from clustersim.topology.graph import numbers
from clustersim.topology.model import LinkTier, Topology

MOST_CELLS = 480
"""Cells of a row of links; a cell of several links shows the fullest of them."""
MOST_CABLES, MOST_LINKS = 400, 20_000
"""Cables that a picture shows each, and directed links that are looked at for it; of more, rows of links are all there is."""
LISTED = 12
"""Links that are named."""
HIGH, LOW = 4, 6
"""Digits of shares, and of bytes a second."""
INSIDE = ("gpu", "nic", "ports", "nvswitch", "pcie")
"""Ends that lie in a node."""


def network(result: StepResult) -> dict[str, Any]:
    """Return the figures of a cluster and its links: `use` is mean load of capacity over the step, `limits` seconds."""
    topology = result.topology
    crossed = link_bytes(result.plan)
    capacity = np.where(topology.capacity > DEAD, topology.capacity, np.inf)
    use: Floats = crossed / capacity / result.record.end
    sizes = carried(result.facts.path)
    holds = limiting_seconds(sizes, limits(sizes, result.plan.network), topology)
    return {
        "figures": [list(row) for row in describe(topology)],
        "faults": [list(row) for row in faults(topology)],
        "tiers": [_tier(topology, tier, use, holds) for tier in topology.tiers if tier.links],
        "links": _listed(topology, crossed, use, holds),
        "picture": _picture(topology, use, holds),
        "slow_gpus": numbers(topology)[topology.slowdown != 1].tolist()[:1000],
    }


def _tier(topology: Topology, tier: LinkTier, use: Floats, holds: Floats) -> dict[str, Any]:
    """Return the links of a tier as a row of cells."""
    own = slice(tier.first, tier.first + tier.links)
    cells = min(tier.links, MOST_CELLS)
    edges = np.arange(cells) * tier.links // cells
    fullest = np.maximum.reduceat(use[own], edges)
    slow = _slow(topology, tier)
    return {
        "name": tier.name,
        "links": tier.links,
        "ends": [_plain(end) for end in topology.ends(tier.first)],
        "capacity": float(np.median(topology.capacity[own])),
        "use": [round(value, HIGH) for value in fullest.tolist()],
        "limits": [round(value, LOW) for value in np.maximum.reduceat(holds[own], edges).tolist()],
        "ill": np.flatnonzero(np.maximum.reduceat(slow, edges)).tolist(),
        "mean": round(float(use[own].mean()), HIGH),
    }


def _slow(topology: Topology, tier: LinkTier) -> Floats:
    """Return 1 for the links of a tier that are slower than most of it, or dead."""
    own = topology.capacity[tier.first : tier.first + tier.links]
    usual = (
        np.median(topology.capacity[tier.first : tier.first + tier.links][own > DEAD]) if (own > DEAD).any() else 0.0
    )
    found: Floats = (own < usual * (1 - 1e-9)).astype(float)
    return found


def _plain(end: str) -> str:
    return end.partition("[")[0]


def _listed(topology: Topology, crossed: Floats, use: Floats, holds: Floats) -> list[dict[str, Any]]:
    """Return the links that hold the critical path longest, then the fullest: of those of a tier that are alike, one."""
    tier = np.repeat(np.arange(len(topology.tiers)), [one.links for one in topology.tiers])
    figures = np.stack([tier, np.round(holds, LOW), np.round(use, HIGH), topology.capacity], axis=1)[crossed > 0]
    alike, first, many = np.unique(figures, axis=0, return_index=True, return_counts=True)
    order = np.lexsort((-alike[:, 2], -alike[:, 1]))
    place = np.flatnonzero(crossed > 0)[first]
    shown = list(dict.fromkeys([*order[:LISTED].tolist(), *_fullest(alike, order)]))
    return [_link(topology, int(place[i]), int(many[i]), crossed, use, holds) for i in shown]


def _fullest(alike: Floats, order: Ints) -> list[int]:
    """Return the first of each tier in an order of links."""
    return list({int(alike[i, 0]): i for i in reversed(order.tolist())}.values())[::-1]


def _link(topology: Topology, i: int, many: int, crossed: Floats, use: Floats, holds: Floats) -> dict[str, Any]:
    a, b = ends(topology, i)
    return {
        "link": topology.link_name(i),
        "alike": many - 1,
        "from": a,
        "to": b,
        "capacity": float(topology.capacity[i]),
        "bytes": float(crossed[i]),
        "use": round(float(use[i]), HIGH),
        "limits": round(float(holds[i]), LOW),
    }


def _picture(topology: Topology, use: Floats, holds: Floats) -> dict[str, Any] | None:
    """Return ends and cables of a small cluster: nodes as one end each where there are several; None of a large one."""
    if len(topology.capacity) > MOST_LINKS:
        return None
    whole = topology.nodes > 1
    cables: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for link in range(len(topology.capacity)):
        a, b = (_joined(topology, end) if whole else end for end in topology.ends(link))
        if a != b:
            cables[min(a, b), max(a, b)].append(link)
    if not cables or len(cables) > MOST_CABLES:
        return None
    names = list(dict.fromkeys(end for pair in cables for end in pair))
    level = _levels(names, cables)
    number = {name: i for i, name in enumerate(sorted(names, key=lambda n: (level[n], _order(n))))}
    ill = {tier.first + int(i) for tier in topology.tiers if tier.links for i in np.flatnonzero(_slow(topology, tier))}
    return {
        "ends": [[name, level[name], *_ills(topology, name)] for name in number],
        "cables": [
            {
                "a": number[a],
                "b": number[b],
                "links": len(links),
                "capacity": float(topology.capacity[links].max()),
                "use": round(float(use[links].max()), HIGH),
                "limits": round(float(holds[links].max()), LOW),
                "ill": any(link in ill for link in links),
                "dead": bool((topology.capacity[links] <= DEAD).all()),
            }
            for (a, b), links in cables.items()
        ],
    }


def _ills(topology: Topology, name: str) -> list[str]:
    """Return what is wrong with a node or a GPU, in a word."""
    kind, _, number = name.partition("[")
    each = {"node": topology.gpus_per_node, "gpu": 1}.get(kind)
    if each is None:
        return []
    own = numbers(topology) // each == int(number.rstrip("]"))
    return ["dead"] if not own.any() else ["slow"] if (topology.slowdown[own] != 1).any() else []


def _joined(topology: Topology, end: str) -> str:
    """Return an end as the picture names it: what lies in a node is the node."""
    kind, _, rest = end.partition("[")
    each = {"gpu": topology.gpus_per_node, "nic": topology.node.nics, "ports": topology.node.nics}.get(kind, 1)
    return f"node[{int(rest.rstrip(']')) // max(each, 1)}]" if kind in INSIDE and rest else end


def _levels(names: list[str], cables: Mapping[tuple[str, str], object]) -> dict[str, int]:
    """Return how many cables each end is from the nearest node, or from the nearest GPU."""
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for a, b in cables:
        neighbours[a].append(b)
        neighbours[b].append(a)
    front = [name for name in names if _plain(name) in ("node", "gpu")] or names[:1]
    found = dict.fromkeys(front, 0)
    while front:
        front = [other for name in front for other in neighbours[name] if other not in found]
        found |= dict.fromkeys(front, max(found.values()) + 1)
    return {name: found.get(name, 0) for name in names}


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("[")
    return kind, int(number.rstrip("]")) if number.rstrip("]").isdecimal() else 0
