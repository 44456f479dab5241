"""Bytes on links, and the links that limit the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan
from clustersim.engine.network import Network
from clustersim.engine.traffic import Traffic, Variant
from clustersim.report.breakdown import Path
from clustersim.topology.model import Topology

_SAME = 1 + 1e-9


def link_bytes(plan: Plan) -> Floats:
    """Return the bytes that cross every link in the step (links,)."""
    return plan.network.bytes_by_link(plan.carried())


class Limit(NamedTuple):
    """The links that limit the rate of a phase of a collective, or of a message, on an idle fabric."""

    call: tuple[Variant, int]
    """Collective and group cell."""
    links: Ints
    """Limiting links, all equally; each once."""
    seconds: float
    """Seconds per byte of the collective's size."""


def limits(calls: Iterable[tuple[Variant, int]], network: Network) -> list[Limit]:
    """Return the limiting links of each call, (collective or message, group cell): one `Limit` for each phase that has some.

    A transfer whose rate NCCL or its GPUs limit has no limiting link. Rates are for an idle fabric, without other transfers.
    """
    cells: dict[Variant, list[int]] = {}
    for variant, cell in calls:
        cells.setdefault(variant, []).append(cell)
    limiting: list[Limit] = []
    for variant, of_variant in cells.items():
        groups = network.cells.groups[variant[0]].first[of_variant]
        for t in network.traffic[variant]:
            group, link, seconds = _limiting(t, network.topology, groups)
            cuts = np.searchsorted(group, np.arange(len(of_variant) + 1)).tolist()
            limiting += [
                Limit((variant, cell), link[a:b], float(seconds[a]))
                for cell, a, b in zip(of_variant, cuts, cuts[1:], strict=False)
                if b > a
            ]
    return limiting


def _limiting(t: Traffic, topology: Topology, groups: Ints) -> tuple[Ints, Ints, Floats]:
    """Return columns sorted by the first: index into `groups`, limiting link of `t`, seconds per byte of a collective's size."""
    links = len(topology.capacity)
    group, link, weight = t.of_groups(topology, groups)
    key, inverse = np.unique(group * links + link, return_inverse=True)
    group, link = np.divmod(key, links)
    each = np.bincount(inverse, weight, len(key)) / topology.capacity[link]
    slowest = np.zeros(len(groups))
    np.maximum.at(slowest, group, each)
    decide = slowest * t.bound[groups] * _SAME >= 1
    slow = decide[group] & (each >= slowest[group] / _SAME)
    return group[slow], link[slow], slowest[group[slow]]


def path_limits(path: Path, network: Network) -> tuple[list[Limit], Floats]:
    """Return the limits of the transfers on a path, and the seconds of the path in which each link sets a rate (links,)."""
    sizes: dict[tuple[Variant, int], float] = {}
    for span in path:
        for call, size in span.carried.items():
            sizes[call] = sizes.get(call, 0.0) + size
    limiting, total = limits(sizes, network), np.zeros(len(network.topology.capacity))
    for limit in limiting:
        total[limit.links] += sizes[limit.call] * limit.seconds
    return limiting, total


def busiest(topology: Topology, crossed: Floats, limiting: Floats, end: float) -> list[dict[str, Any]]:
    """Return a row {`link`, `from`, `to`, `bytes`, `utilization`, `limiting_s`} for one link of each tier with traffic.

    It is the one that limits the critical path longest, else the most used. The longest limiting come first, then the most used.
    crossed, limiting: bytes, and seconds on the critical path, of each link (links,). end: seconds of the step.
    """
    use = crossed / topology.capacity / end
    slows = np.round(limiting, 9)
    tops = [
        tier.first + int(np.lexsort((use[tier.span], slows[tier.span]))[-1]) for tier in topology.tiers if tier.links
    ]
    return [
        {
            "link": topology.link_name(i),
            **dict(zip(("from", "to"), end_names(topology, i), strict=True)),
            "bytes": float(crossed[i]),
            "utilization": float(use[i]),
            "limiting_s": float(limiting[i]),
        }
        for i in sorted(tops, key=lambda i: (-slows[i], -use[i]))
        if crossed[i] > 0
    ]


def tier_of(topology: Topology, links: Ints | list[int]) -> tuple[Ints, Ints]:
    """Return the index of the tier of each link (links,), and the index of the link in its tier (links,)."""
    starts = np.array([tier.first for tier in topology.tiers] or [0])
    tiers = np.searchsorted(starts, links, side="right") - 1
    return tiers, np.asarray(links) - starts[tiers]


def end_names(topology: Topology, link: int) -> tuple[str, str]:
    """Return the names (source, target) of a directed link's ends: GPUs and NICs by their node, switches as in `show --draw`."""
    a, b = (_end_name(topology, end) for end in topology.ends(link))
    return a, b


def _end_name(topology: Topology, name: str) -> str:
    """Return an end of a link in words: a GPU or NIC by its node, such as `node 3 GPU 1`, a switch by its name."""
    kind, _, number = name.partition("[")
    if kind not in ("gpu", "nic"):
        return name
    node, local = topology.numbering.built.place(kind, int(number.rstrip("]")))
    return f"node {node} {kind.upper()} {local}"
