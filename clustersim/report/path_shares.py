"""The seconds of the critical path by stream, by link and by rank. Each division adds up to the step time.

By link: a transfer counts for the links that limit its rate. Links of one tier and rate count together, so that a slow link is
separate from its tier. The remaining communication is latency, rates limited by NCCL or GPUs, and losses to other transfers on
shared links.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.program import COMPUTE
from clustersim.engine.traffic import Variant
from clustersim.report.breakdown import Path, by_stream
from clustersim.report.links import Limit, end_names, tier_of
from clustersim.topology.model import Topology

COMPUTING = "kernels, and waiting for the host"
LATENCY = "latency and NCCL's own limits"
SHARING = "links shared with other transfers"
_SLOW = 1 - 1e-9
_ROUNDING = 1e-12  # relative to the step: smaller values are rounding errors of the sums
_SEVERAL = 16  # largest number of node types: a rate of more than a sixteenth of the links counts as the rate of a type


def path_shares(path: Path, limits: Iterable[Limit], width: int) -> dict[str, dict[str, float] | list[dict[str, Any]]]:
    """Return the seconds (`path_s`) of the critical path, divided in three ways, the longest first.

    `by_stream_s` is {stream: seconds}. `by_link` are the rows of `_by_link`. `by_rank` are rows {`rank`: first of its class,
    `ranks`: number of them, `pipeline_rank`, `path_s`}. `limits` belong to the transfers on the path; `width` is the ranks per
    pipeline rank.
    """
    plan = path.record.plan
    streams: defaultdict[str, float] = defaultdict(float)
    ranks: defaultdict[int, float] = defaultdict(float)
    for span in path:
        ranks[span.rank] += span.end - span.start
        for stream, seconds in by_stream(span).items():
            streams[stream] += seconds
    by_rank = [
        {
            "rank": int(plan.first[cell]),
            "ranks": int(plan.size[cell]),
            "pipeline_rank": int(plan.first[cell]) // width,
            "path_s": spent,
        }
        for cell, spent in _longest_first(ranks)
    ]
    by_link = _by_link(path, plan.network.topology, limits)
    return {"by_stream_s": dict(_longest_first(streams)), "by_link": by_link, "by_rank": by_rank}


def _longest_first(shares: dict[Any, float]) -> list[tuple[Any, float]]:
    """Return (key, seconds) of the shares without empty ones, the longest first."""
    return sorted(((what, seconds) for what, seconds in shares.items() if seconds), key=lambda share: -share[1])


def _exposed(path: Path) -> tuple[float, float, dict[tuple[Variant, int], float]]:
    """Return the communication on a path that no computation hides.

    It is total seconds, the seconds caused by other transfers on shared links, and {(collective, group cell): bytes}.
    """
    total, shared = 0.0, 0.0
    sizes: defaultdict[tuple[Variant, int], float] = defaultdict(float)
    visible = cache(_visible)
    for span in path:
        seconds = math.fsum(s for stream, s in by_stream(span).items() if stream not in (COMPUTE, HOST))
        total += seconds
        if span.activity is None:
            continue
        if span.segment_ends is not None:
            shared += min(max(span.end - span.start - span.activity.timing.idle, 0.0), seconds)
        for call, size in span.carried.items():
            sizes[call] += size * visible(span.activity).get(call[0][0], 0.0)
    return total, shared, sizes


def _visible(activity: Activity) -> dict[str, float]:
    """Return {family: share of its transfers that no computation hides} of an activity."""
    idle: defaultdict[str, float] = defaultdict(float)
    for segment in activity.segments:
        if segment.flow:
            idle[segment.flow.family] += segment.flow.idle
    exposed = activity.timing.exposed
    return {name: min(exposed.get(name, 0.0) / seconds, 1.0) for name, seconds in idle.items() if seconds}


def _by_link(path: Path, topology: Topology, limits: Iterable[Limit]) -> list[dict[str, Any]]:
    """Return, longest first, `_link` of the links that limit the path, and {`link`: None, `what`, `path_s`} of the other time."""
    exposed, shared, sizes = _exposed(path)
    step = math.fsum(span.end - span.start for span in path)
    by_key: dict[tuple[object, ...], tuple[float, set[int]]] = {}
    for limit in limits:
        key = _key(limit.links, topology)
        seconds, links = by_key.get(key, (0.0, set()))
        by_key[key] = seconds + sizes[limit.call] * limit.seconds, links | set(limit.links.tolist())
    rows = [_link(sorted(links), seconds, topology) for seconds, links in by_key.values()]
    rest = exposed - shared - math.fsum(row["path_s"] for row in rows)
    others = {COMPUTING: step - exposed, LATENCY: rest, SHARING: shared}
    rows += [
        {"link": None, "what": what, "path_s": seconds}
        for what, seconds in others.items()
        if abs(seconds) > _ROUNDING * step
    ]
    return sorted(rows, key=lambda row: -row["path_s"])


def _key(links: Ints, topology: Topology) -> tuple[object, ...]:
    """Return the names under which limiting links are counted: degraded cables, else their tiers."""
    tiers, slow = _tiers(topology, links)
    if slow.any():
        return tuple(sorted({undirected(topology.link_name(link)) for link in links[slow].tolist()}))
    return (*sorted({undirected(topology.tiers[tier].name) for tier in distinct(tiers).tolist()}), 0)


def _tiers(topology: Topology, links: Ints | list[int]) -> tuple[Ints, Mask]:
    """Return the index of the tier of each link (links,), and a mask of links slower than a healthy one there (links,)."""
    tiers, _ = tier_of(topology, links)
    return tiers, topology.capacity[links] < _SLOW * healthy_rates(topology)[tiers]


def undirected(link: str) -> str:
    """Return the name of a link or tier without its direction."""
    return link.replace("-up", "").replace("-down", "")


def healthy_links(topology: Topology, kind: str) -> dict[str, Any] | None:
    """Return `_link` of all healthy links of a kind, such as `nvlink`, that do not limit anything; None without any."""
    healthy = [
        tier.first + np.flatnonzero(topology.capacity[tier.span] >= _SLOW * rate)
        for tier, rate in zip(topology.tiers, healthy_rates(topology).tolist(), strict=True)
        if undirected(tier.name) == kind
    ]
    links = np.concatenate(healthy).tolist() if healthy else []
    return _link(links, 0.0, topology) if links else None


def healthy_rates(topology: Topology) -> Floats:
    """Return the bytes/s of a healthy link of each tier (tiers,): the fastest, or of several node types the slowest, or 0."""

    def compute() -> Floats:
        """Return the rate of each tier, 0 for one without links."""
        rates = [topology.capacity[tier.span] for tier in topology.tiers]
        return np.array([_healthy_rate(rate, bool(topology.pools)) if len(rate) else 0.0 for rate in rates])

    return topology.cache.once("sound links of each tier", compute)


def _healthy_rate(capacity: Floats, mixed: bool) -> float:
    """Return the bytes/s of a healthy link of a tier: the most, or if `mixed` the least that 1/16 of `capacity` (links,) has."""
    rates, often = np.unique(capacity, return_counts=True)
    return float(rates[often >= len(capacity) / _SEVERAL][0] if mixed and len(rates) <= _SEVERAL else rates[-1])


def _link(links: list[int], seconds: float, topology: Topology) -> dict[str, Any]:
    """Return the row of links that count together. Names are those of the first slow link, else of the first; tiers may differ.

    Keys: `link` (name), its ends `from` and `to`, its `capacity_bytes_per_s`; of all links `links` (number), `tiers` (names),
    `slow` (whether any is), `slow_links` (names), and `path_s` (`seconds`).
    """
    tiers, behind = _tiers(topology, links)
    slow = [topology.link_name(link) for link, late in zip(links, behind, strict=True) if late]
    named = links[int(np.argmax(behind))]
    source, target = end_names(topology, named)
    return {
        "link": topology.link_name(named),
        "from": source,
        "to": target,
        "links": len(links),
        "tiers": list(dict.fromkeys(topology.tiers[tier].name for tier in tiers)),
        "slow": bool(slow),
        "slow_links": slow,
        "capacity_bytes_per_s": float(topology.capacity[named]),
        "path_s": seconds,
    }
