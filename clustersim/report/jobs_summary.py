"""What `summary.json` says of jobs that share a cluster: how long each takes alone and together, and where they meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from clustersim.engine.compile import Plan
from clustersim.engine.record import Record
from clustersim.report.breakdown import breakdown, mean
from clustersim.report.jobs_facts import JobSteps, Shared
from clustersim.report.shared_links import meeting
from clustersim.report.summary import cluster_facts, memory_facts, predictor_facts, split_facts
from clustersim.report.trace import shown
from clustersim.report.verdicts import not_modelled

COMMUNICATION = ("tp", "pp", "dp", "ep", "cp")


def summary(shared: Shared) -> dict[str, Any]:
    """Return the summary as plain data; keys carry their units."""
    return {
        "cluster": cluster_facts(shared.cluster),
        "warnings": list(shared.cluster.warnings),
        "free_nodes": shared.cluster.nodes - sum(len(one.nodes) for one in shared.jobs),
        "placement": shared.placement,
        "steps": shared.steps,
        "jobs": [_job(shared, one) for one in shared.jobs],
        "meetings": [meeting(shared, a, b) for a, b in combinations(range(len(shared.jobs)), 2)],
        "not_modelled": not_modelled([one.job for one in shared.jobs]),
        "simulated": _simulated(shared),
    }


def _job(shared: Shared, one: JobSteps) -> dict[str, Any]:
    cluster = shared.cluster
    times = [step.end - step.begin for step in one.counted]
    alone = parts(one.alone.plan, one.alone.record)
    together = mean_parts([parts(one.plan, step) for step in one.counted])
    return {
        "name": one.name,
        "workload": one.job.document.path,
        "nodes": one.nodes.tolist(),
        "gpus": one.job.mesh.size,
        "idle_gpus": len(cluster.numbering.gpus_of(one.nodes)) - one.job.mesh.size,
        "parallelism": split_facts(one.job),
        "memory": memory_facts(cluster, one.gpus, one.alone.memory),
        "predictor": predictor_facts(one.job, one.alone.forecast),
        "start_s": one.start,
        "step_alone_s": one.alone.record.end,
        "step_together_s": one.mean,
        "step_together_min_s": min(times),
        "step_together_max_s": max(times),
        "slowdown": one.mean / one.alone.record.end,
        "exposed_alone_s": exposed(alone),
        "exposed_together_s": exposed(together),
        "breakdown_alone_s": alone,
        "breakdown_together_s": together,
        "trace": shown(one.traced(len(shared.jobs)), one.plan),
        "steps": _steps(one),
    }


def _steps(one: JobSteps) -> list[dict[str, Any]]:
    early = len(one.steps) - len(one.counted)
    return [
        {"begin_s": step.begin, "step_s": step.end - step.begin, "counted": number >= early}
        for number, step in enumerate(one.steps)
    ]


def parts(plan: Plan, step: Record) -> dict[str, float]:
    """Return where a step of a job went, on the mean of its ranks."""
    return mean(breakdown(step), plan.size.tolist())


def mean_parts(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of the parts of several steps."""
    return {name: float(np.mean([step.get(name, 0.0) for step in steps])) for name in steps[0]}


def exposed(found: dict[str, float]) -> float:
    """Return the seconds of communication that a rank waits for."""
    return math.fsum(found.get(name, 0.0) for name in COMMUNICATION)


def _simulated(shared: Shared) -> dict[str, Any]:
    links = max(
        (one.plan.network.cells.links for one in shared.jobs), key=lambda one: len(one.of)
    )  # of the largest simulation
    every = [one.steps[0] for one in shared.jobs]
    return {
        "ranks": sum(one.job.mesh.size for one in shared.jobs),
        "rank_classes": sum(len(one.plan.programs) for one in shared.jobs),
        "links_that_can_be_short": len(links.of),
        "link_classes": len(links.first),
        "seconds": max(step.end for one in shared.jobs for step in one.steps),
        "events": every[0].events,
        "maxmin_solves": every[0].solves,
    }
