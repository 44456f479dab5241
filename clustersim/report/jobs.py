"""Summary of several jobs on one cluster: mean steps, steps without the other jobs, and shared links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan
from clustersim.engine.memory import RankMemory
from clustersim.engine.network import Network
from clustersim.engine.record import Record
from clustersim.engine.traffic import Variant
from clustersim.parallel.job import Job
from clustersim.report.breakdown import breakdown, mean_of_ranks
from clustersim.report.links import link_bytes
from clustersim.report.summary import Forecast, cluster_facts, memory_facts, predictor_facts, split_facts
from clustersim.report.trace import MAX_EVENTS, cells_that_fit, shown_counts, slice_counts
from clustersim.report.verdicts import not_modelled
from clustersim.topology.model import Topology


class AloneStep(NamedTuple):
    """One step of a job that has the cluster to itself."""

    record: Record
    memory: list[RankMemory]
    """Memory of each pipeline rank."""
    forecast: Forecast
    """Uncertainty of its kernel times."""


class JobSteps(NamedTuple):
    """A job: its nodes, the GPU of each rank, its start in s, its step alone, and its plan and steps with the other jobs."""

    name: str
    job: Job
    nodes: Ints
    gpus: Ints
    start: float
    alone: AloneStep
    plan: Plan
    steps: tuple[Record, ...]
    """All complete steps."""
    counted: tuple[Record, ...]
    """Steps that began after every job had started."""

    @property
    def mean(self) -> float:
        """Mean seconds of a step with the other jobs."""
        return float(np.mean([step.end - step.begin for step in self.counted]))

    def traced(self, jobs: int) -> list[int]:
        """Return the rank cells of the job in a trace of `jobs` jobs, with all their steps."""
        width = self.job.mesh.size // self.job.parallelism.pp
        return cells_that_fit(self.plan, slice_counts(self.steps), width, MAX_EVENTS // jobs)


@dataclass(frozen=True)
class Shared:
    """Jobs that were simulated together on one cluster, each for at least `steps` steps."""

    cluster: Topology
    placement: str
    """Rule that chose the nodes."""
    steps: int
    jobs: tuple[JobSteps, ...]

    @cached_property
    def rates(self) -> Floats:
        """Mean bytes/s of each job on each link (jobs, links): the bytes of a step over its mean time."""
        return np.stack([link_bytes(t.plan) / t.mean for t in self.jobs])

    @property
    def window(self) -> tuple[float, float]:
        """(start, end) in seconds of the period that the counted steps of all jobs share; end <= start if there is none."""
        return max(t.counted[0].begin for t in self.jobs), min(t.counted[-1].end for t in self.jobs)


Interval = tuple[float, float]


def shared_links(shared: Shared, a: int, b: int) -> dict[str, Any]:
    """Return `jobs` (names of jobs `a` and `b`), `links` (number that they share), and `tiers`, the highest utilization first.

    A tier is {`tier`: name, `links`: number shared, and `_link_load` of the busiest}. Jobs that use a link at different times
    (`both` is 0) do not slow each other down, however busy it is.
    """
    both = (shared.rates[a] > 0) & (shared.rates[b] > 0)
    use = np.where(both, shared.rates.sum(axis=0) / shared.cluster.capacity, -1.0)
    tiers = []
    for tier in shared.cluster.tiers:
        if both[tier.span].any():
            busiest = tier.first + int(use[tier.span].argmax())
            tiers.append({"tier": tier.name, "links": int(both[tier.span].sum()), **_link_load(shared, busiest, a, b)})
    tiers.sort(key=lambda tier: -tier["utilization"])
    return {"jobs": [shared.jobs[a].name, shared.jobs[b].name], "links": int(both.sum()), "tiers": tiers}


def _link_load(shared: Shared, link: int, a: int, b: int) -> dict[str, Any]:
    """Return the load of a link: `busiest` (its name), `capacity_bytes_per_s`, and `bytes_per_s`, {job with traffic: mean rate}.

    `share`: {job: fraction of the link's traffic}. `utilization`: rate of all jobs over the capacity. `both`: fraction of the
    common period in which jobs `a` and `b` (indices) both have a transfer on the link, latency included; None without a period.
    """
    rates = {t.name: float(rate) for t, rate in zip(shared.jobs, shared.rates[:, link], strict=True) if rate}
    total = math.fsum(rates.values())
    return {
        "busiest": shared.cluster.link_name(link),
        "capacity_bytes_per_s": float(shared.cluster.capacity[link]),
        "bytes_per_s": rates,
        "share": {name: rate / total for name, rate in rates.items()},
        "utilization": total / float(shared.cluster.capacity[link]),
        "both": _common_share(shared, link, a, b),
    }


def _common_share(shared: Shared, link: int, a: int, b: int) -> float | None:
    """Return the share of the window in which jobs `a` and `b` both have a transfer on a link; None without a window."""
    begin, end = shared.window
    if end <= begin:
        return None
    first, second = (_transfer_intervals(shared.jobs[i], link) for i in (a, b))
    return common_seconds(first, second, shared.window) / (end - begin)


def _transfer_intervals(job: JobSteps, link: int) -> set[Interval]:
    """Return the (start, end) intervals, in s, in which a transfer of a job over a link is in progress, in its counted steps."""
    flows = _flows(job.plan.network, link)
    intervals: set[Interval] = set()
    places = [  # all steps of a job have the same tasks
        [i for i, segment in enumerate(activity.segments) if id(segment.flow) in flows]
        for activity in job.counted[0].tasks.different
    ]
    for step in job.counted:
        kind = step.tasks.of_task[step.shape.event_task]
        for event in np.flatnonzero(np.array([*map(bool, places)], bool)[kind]).tolist():
            intervals.update(_intervals(step, event, places[kind[event]]))
    return intervals


def _flows(network: Network, link: int) -> set[int]:
    """Return the identities of the flows of groups that cross a link, an index of the topology."""
    result = set()
    cells: dict[Variant, list[set[int]]] = {}
    for call in network.plans:
        cell_of = network.cells.groups[call.group].of
        for cell in range(len(network.cells.groups[call.group].first)):
            variant = network.variant(call, cell)
            if variant not in cells:
                cells[variant] = [set(cell_of[t.group[t.link == link]].tolist()) for t in network.phases(variant)]
            flows = network.flows(call)[cell]
            result |= {id(flow) for crossing, flow in zip(cells[variant], flows, strict=True) if cell in crossing}
    return result


def _intervals(step: Record, event: int, places: Iterable[int]) -> Iterator[Interval]:
    """Yield (start, end) in s of an event's transfers, equal for all its ranks. places: indices of the segments that transfer."""
    ends = step.segment_ends.get(int(step.leader[event]))
    if ends is None:
        begun = step.starts.item(event)
        ends = [begun + end for end in step.tasks.activity(step.shape.slot(event)).timing.ends]
    for i in places:
        yield ends[2 * i], ends[2 * i + 1]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, in ascending order and disjoint."""
    union = list[Interval]()
    for first, end in sorted(intervals):
        if union and first <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((first, end))
    return union


def common_seconds(first: Iterable[Interval], second: Iterable[Interval], window: Interval) -> float:
    """Return the seconds of a window in which an interval of each of two sets is in progress. Intervals of a set may overlap."""
    edges = [
        (min(max(time, window[0]), window[1]), side, step)
        for side, intervals in enumerate((first, second))
        for interval in intervals
        for time, step in zip(interval, (1, -1), strict=True)
    ]
    running, seconds, last = [0, 0], 0.0, window[0]
    for time, side, step in sorted(edges):
        seconds += (time - last) * all(running)
        running[side] += step
        last = time
    return seconds


COMMUNICATION = ("tp", "pp", "dp", "ep", "cp")


def summary(shared: Shared) -> dict[str, Any]:
    """Return the content of `summary.json` of jobs.

    Keys: `cluster`, `warnings` (sentences), `free_nodes` (number), `placement`, `steps` (least of each job), `jobs` (`_job`),
    `meetings` (`shared_links` of each two jobs), `not_modelled` (sentences), `simulated` (`_simulated`).
    """
    return {
        "cluster": cluster_facts(shared.cluster),
        "warnings": [*shared.cluster.notes, *shared.cluster.warnings],
        "free_nodes": shared.cluster.nodes - sum(len(job.nodes) for job in shared.jobs),
        "placement": shared.placement,
        "steps": shared.steps,
        "jobs": [_job(shared, job) for job in shared.jobs],
        "meetings": [shared_links(shared, a, b) for a, b in combinations(range(len(shared.jobs)), 2)],
        "not_modelled": not_modelled([job.job for job in shared.jobs]),
        "simulated": _simulated(shared),
    }


def _job(shared: Shared, job: JobSteps) -> dict[str, Any]:
    """Return the facts of a job, alone and with the other jobs.

    Keys: `name`, `workload` (path), `nodes`, numbers of `gpus` and of `idle_gpus` on these nodes, `parallelism`, `memory`,
    `predictor`, `trace`; `start_s`, `step_alone_s`, `step_together_s` (mean; also `…_min_s`, `…_max_s`), `slowdown` (together /
    alone), `exposed_…_s` (communication), `breakdown_…_s` ({part: s}), and `steps`: [{`begin_s`, `step_s`, `counted`}].
    """
    cluster = shared.cluster
    times = [step.end - step.begin for step in job.counted]
    early = len(job.steps) - len(job.counted)
    alone = _parts(job.alone.record)
    each = [_parts(step) for step in job.counted]
    together = {name: float(np.mean([parts.get(name, 0.0) for parts in each])) for name in each[0]}
    return {
        "name": job.name,
        "workload": job.job.document.path,
        "nodes": job.nodes.tolist(),
        "gpus": job.job.mesh.size,
        "idle_gpus": len(cluster.numbering.gpus_of(job.nodes)) - job.job.mesh.size,
        "parallelism": split_facts(job.job),
        "memory": memory_facts(cluster, job.gpus, job.alone.memory),
        "predictor": predictor_facts(job.job, job.alone.forecast),
        "start_s": job.start,
        "step_alone_s": job.alone.record.end,
        "step_together_s": job.mean,
        "step_together_min_s": min(times),
        "step_together_max_s": max(times),
        "slowdown": job.mean / job.alone.record.end,
        "exposed_alone_s": _exposed(alone),
        "exposed_together_s": _exposed(together),
        "breakdown_alone_s": alone,
        "breakdown_together_s": together,
        "trace": shown_counts(job.traced(len(shared.jobs)), job.plan),
        "steps": [
            {"begin_s": step.begin, "step_s": step.end - step.begin, "counted": number >= early}
            for number, step in enumerate(job.steps)
        ],
    }


def _parts(step: Record) -> dict[str, float]:
    """Return {part: seconds} of a job's step, mean of its ranks."""
    return mean_of_ranks(breakdown(step), step.plan.size.tolist())


def _exposed(parts: dict[str, float]) -> float:
    """Return the seconds of communication that a rank waits for."""
    return math.fsum(parts.get(name, 0.0) for name in COMMUNICATION)


def _simulated(shared: Shared) -> dict[str, Any]:
    """Return numbers `ranks`, `rank_classes`, `links_that_can_be_short`, `link_classes`, `events`, `maxmin_solves`; `seconds`."""
    links = max((job.plan.network.cells.links for job in shared.jobs), key=lambda job: len(job.of))
    first = shared.jobs[0].steps[0]
    return {
        "ranks": sum(job.job.mesh.size for job in shared.jobs),
        "rank_classes": sum(len(job.plan.first) for job in shared.jobs),
        "links_that_can_be_short": len(links.of),
        "link_classes": len(links.first),
        "seconds": max(step.end for job in shared.jobs for step in job.steps),
        "events": first.events,
        "maxmin_solves": first.solves,
    }
