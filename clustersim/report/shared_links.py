"""The links on which two jobs meet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.fabric import Activity
from clustersim.engine.network import Network
from clustersim.engine.program import Task
from clustersim.engine.record import Record
from clustersim.engine.traffic import Variant
from clustersim.report.jobs_facts import JobSteps, Shared

Interval = tuple[float, float]


def meeting(shared: Shared, a: int, b: int) -> dict[str, Any]:
    """Return the links that two jobs share: how many of each tier, and of the busiest who uses it how much.

    `both` is the part of the time in which both have something under way on it, a transfer's latency included: two jobs that
    use a link at different times do not slow each other down, however busy it is.
    """
    both = (shared.rates[a] > 0) & (shared.rates[b] > 0)
    use = np.where(both, shared.rates.sum(axis=0) / shared.cluster.capacity, -1.0)
    tiers = []
    for tier in shared.cluster.tiers:
        links = slice(tier.first, tier.first + tier.links)
        if both[links].any():
            busiest = tier.first + int(use[links].argmax())
            tiers.append({"tier": tier.name, "links": int(both[links].sum()), **_link(shared, busiest, a, b)})
    tiers.sort(key=lambda one: -one["utilization"])
    return {"jobs": [shared.jobs[a].name, shared.jobs[b].name], "links": int(both.sum()), "tiers": tiers}


def _link(shared: Shared, link: int, a: int, b: int) -> dict[str, Any]:
    """Return what all jobs put on a link: bytes/s, mean utilization, and the share of each."""
    rates = {t.name: float(rate) for t, rate in zip(shared.jobs, shared.rates[:, link], strict=True) if rate}
    total = math.fsum(rates.values())
    return {
        "busiest": shared.cluster.link_name(link),
        "capacity_bytes_per_s": float(shared.cluster.capacity[link]),
        "bytes_per_s": rates,
        "share": {name: rate / total for name, rate in rates.items()},
        "utilization": total / float(shared.cluster.capacity[link]),
        "both": _both(shared, link, a, b),
    }


def _both(shared: Shared, link: int, a: int, b: int) -> float | None:
    """Return the part of the window in which both jobs have something under way on a link; None when there is no window."""
    begin, end = shared.window
    if end <= begin:
        return None
    one, two = (list(merged(_active(shared.jobs[i], link))) for i in (a, b))
    common = overlaps(one, two)
    return math.fsum(max(min(last, end) - max(first, begin), 0.0) for first, last in common) / (end - begin)


def _active(one: JobSteps, link: int) -> set[Interval]:
    """Return when a transfer of a job that crosses a link was under way."""
    wanted = _flows(one.plan.network, link)
    found: set[Interval] = set()
    crossing: dict[int, tuple[Mask, dict[Activity, list[int]]]] = {}
    for step in one.counted:
        if id(step.tasks) not in crossing:  # which all steps have, but for those that stand for longer ones
            crossing[id(step.tasks)] = _crossing(step.tasks.own, wanted)
        crosses, places = crossing[id(step.tasks)]
        tasks, done = step.tasks.own, step.graph.occurrences
        rows = np.flatnonzero(crosses[done.task])
        own, late = step.occurring(done.node[rows])
        rows = rows[own]
        for node, task, by in zip(*(one.tolist() for one in (done.node[rows], done.task[rows], late)), strict=True):
            found.update((begun + by, end + by) for begun, end in _intervals(step, node, places[tasks[task].activity]))
    return found


def _crossing(tasks: Sequence[Task], wanted: set[int]) -> tuple[Mask, dict[Activity, list[int]]]:
    """Return which tasks have some of the flows `wanted`, by identity, and in which segments their activities have them."""
    places = {
        activity: [i for i, flow in enumerate(activity.flows) if id(flow) in wanted]
        for activity in {task.activity for task in tasks}
    }
    return np.array([bool(places[task.activity]) for task in tasks], bool), places


def _flows(network: Network, link: int) -> set[int]:
    """Return the flows, by identity, of groups that cross a link."""
    result = set()
    cells: dict[Variant, list[set[int]]] = {}
    for (call, cell), flows in network.known.items():
        variant = network.variant(call, cell)
        if variant not in cells:
            of = network.cells.groups[call.group].of
            cells[variant] = [set(of[t.group[t.link == link]].tolist()) for t in network.phases(variant)]
        result |= {id(flow) for own, flow in zip(cells[variant], flows, strict=True) if cell in own}
    return result


def _intervals(step: Record, node: int, places: Iterable[int]) -> Iterator[Interval]:
    """Yield when some of the transfers at a node were under way: those of all ranks that were in lock-step there."""
    ends = step.segment_ends.get(node)
    if ends is None:
        begun, activity = step.starts.item(node), step.tasks.activities[step.graph.slot[node]]
        ends = [begun + end for end in activity.ends]
    for i in places:
        yield ends[2 * i], ends[2 * i + 1]


def merged(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the union of intervals, ascending and apart."""
    begun: float | None = None
    last = 0.0
    for first, end in sorted(intervals):
        if begun is None:
            begun, last = first, end
        elif first > last:
            yield begun, last
            begun, last = first, end
        else:
            last = max(last, end)
    if begun is not None:
        yield begun, last


def overlaps(one: list[Interval], two: list[Interval]) -> list[Interval]:
    """Return the intersections of two unions of intervals, each ascending and apart."""
    result, i, j = [], 0, 0
    while i < len(one) and j < len(two):
        first, last = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if last > first:
            result.append((first, last))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return result
