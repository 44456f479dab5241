"""The cluster of a page: how full its links are, which of them hold the critical path, and what is slow or dead."""

from __future__ import annotations

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.pages.cluster_picture import HIGH, LOW, LinkFigures, picture, slow_links
from clustersim.report.links import carried, ends, limiting_seconds, limits, link_bytes
from clustersim.simulation import StepResult
from clustersim.topology.describe import describe, faults
from clustersim.topology.export import numbers
from clustersim.topology.faults import DEAD
from clustersim.topology.model import LinkTier, Topology

MOST_CELLS = 480
"""Cells of a row of links; a cell of several links shows the fullest of them."""
LISTED = 12
"""Links that are named."""


def network(result: StepResult) -> dict[str, object]:
    """Return the figures of a cluster and its links: `use` is mean load of capacity over the step, `limits` seconds."""
    topology = result.topology
    crossed = link_bytes(result.plan)
    capacity = np.where(topology.capacity > DEAD, topology.capacity, np.inf)
    use: Floats = crossed / capacity / result.record.end
    sizes = carried(result.facts.path)
    holds = limiting_seconds(sizes, limits(sizes, result.plan.network), topology)
    figures = LinkFigures(use, holds, slow_links(topology))
    return {
        "figures": [list(row) for row in describe(topology)],
        "faults": [list(row) for row in faults(topology)],
        "tiers": [_tier(topology, tier, figures) for tier in topology.tiers if tier.links],
        "links": _listed(topology, crossed, use, holds),
        "picture": picture(topology, figures),
        "slow_gpus": numbers(topology)[topology.slowdown != 1].tolist()[:1000],
    }


def _tier(topology: Topology, tier: LinkTier, figures: LinkFigures) -> dict[str, object]:
    """Return the links of a tier as a row of cells."""
    own = slice(tier.first, tier.first + tier.links)
    use, holds, slow = (one[own] for one in figures)
    cells = min(tier.links, MOST_CELLS)
    edges = np.arange(cells) * tier.links // cells
    fullest = np.maximum.reduceat(use, edges)
    return {
        "name": tier.name,
        "links": tier.links,
        "ends": [_plain(end) for end in topology.ends(tier.first)],
        "capacity": float(np.median(topology.capacity[own])),
        "use": [round(value, HIGH) for value in fullest.tolist()],
        "limits": [round(value, LOW) for value in np.maximum.reduceat(holds, edges).tolist()],
        "ill": np.flatnonzero(np.logical_or.reduceat(slow, edges)).tolist(),
        "mean": round(float(use.mean()), HIGH),
    }


def _plain(end: str) -> str:
    return end.partition("[")[0]


def _listed(topology: Topology, crossed: Floats, use: Floats, holds: Floats) -> list[dict[str, object]]:
    """Return the links that hold the critical path longest, then the fullest: of those of a tier that are alike, one."""
    tier = np.repeat(np.arange(len(topology.tiers)), [one.links for one in topology.tiers])
    place = np.flatnonzero(crossed > 0)
    figures = np.stack([tier, np.round(holds, LOW), np.round(use, HIGH), topology.capacity], axis=1)[place]
    runs = np.flatnonzero(np.append(True, (figures[1:] != figures[:-1]).any(axis=1))[: len(figures)])  # mostly alike
    alike, first, run = np.unique(figures[runs], axis=0, return_index=True, return_inverse=True)
    many = np.bincount(run, np.diff(np.append(runs, len(figures))))
    order = np.lexsort((-alike[:, 2], -alike[:, 1]))
    place = place[runs[first]]
    shown = list(dict.fromkeys([*order[:LISTED].tolist(), *_fullest(alike, order)]))
    return [_link(topology, int(place[i]), int(many[i]), crossed, use, holds) for i in shown]


def _fullest(alike: Floats, order: Ints) -> list[int]:
    """Return the first of each tier in an order of links."""
    return list({int(alike[i, 0]): i for i in reversed(order.tolist())}.values())[::-1]


def _link(topology: Topology, i: int, many: int, crossed: Floats, use: Floats, holds: Floats) -> dict[str, object]:
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
