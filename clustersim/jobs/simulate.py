"""Simulates jobs that share a cluster: each job alone on its nodes, then all together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clustersim.engine.compile import plan
from clustersim.engine.player import execute_together
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.errors import InputError
from clustersim.garbage import uncollected
from clustersim.jobs.placement import PlacedJob, place_jobs
from clustersim.jobs.request import JobsRequest
from clustersim.parallel.job import MAX_PASSES
from clustersim.parallel.offload import offloads
from clustersim.preparation import check_names, check_precision
from clustersim.report.jobs import AloneStep, JobSteps, Shared, summary
from clustersim.simulation import Progress, Simulator, silent
from clustersim.topology.host_links import with_host_links
from clustersim.topology.model import Topology


@dataclass(frozen=True, slots=True)
class JobsResult:
    """Result of simulating several jobs on one cluster."""

    summary: dict[str, Any]
    """Content of `summary.json`."""
    shared: Shared
    seconds: float
    """Wall time of the simulation in seconds."""


@uncollected()
def share(
    cluster: Topology,
    requested: JobsRequest,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    progress: Progress = silent,
) -> JobsResult:
    """Simulate loaded jobs on a built cluster.

    `fold` simulates identical ranks once, `ignore_memory` skips the check of memory, and `progress` receives the name of each
    phase when it starts. Raises InputError if jobs do not fit the cluster or its memory.
    """
    begun = time.perf_counter()
    for request in requested.requests:
        check_names(request.job)
    if any(offloads(request.job) for request in requested.requests):
        cluster = with_host_links(cluster)
    placed = place_jobs(cluster, requested.requests, requested.placement)
    simulator, works, single_runs = Simulator(cluster), [], []
    for placed_job in placed:
        check_precision(placed_job.job, cluster, placed_job.gpus)
        progress(f"predict {placed_job.name}")
        work, memory, forecast = simulator.prepare(placed_job.job, placed_job.gpus, ignore_memory=ignore_memory)
        progress(f"simulate {placed_job.name} alone")
        record = simulator.simulate(work, "auto", fold)
        works.append(work)
        single_runs.append(AloneStep(record, memory, forecast))
    _check_length(placed, single_runs, requested.steps)
    progress("plan")
    starts = [placed_job.start for placed_job in placed]
    jobs = list(map(Tasks, plan(works, cluster, fold)))
    records = execute_together(
        jobs, "auto", requested.steps, starts, lambda done: progress(f"simulate together {done:.0%}")
    )
    progress("summarize")
    shared = Shared(cluster, requested.placement, requested.steps, _job_steps(placed, single_runs, records))
    return JobsResult(summary(shared), shared, time.perf_counter() - begun)


def _check_length(placed: Sequence[PlacedJob], single_runs: Sequence[AloneStep], steps: int) -> None:
    """Raise InputError if all jobs together would run more than MAX_PASSES passes while the slowest completes its steps.

    single_runs: record of one step of each job by itself. steps: number of steps that each job must complete.
    """
    times = [run.record.end for run in single_runs]
    counts = [math.ceil(steps * max(times) / step) for step in times]
    passes = [
        count * run.job.microbatches * run.job.parallelism.pp * run.job.parallelism.vpp
        for count, run in zip(counts, placed, strict=True)
    ]
    if sum(passes) <= MAX_PASSES:
        return
    most, longest = passes.index(max(passes)), times.index(max(times))
    what = (
        f"{counts[most]:,} steps of {placed[most].name} are {passes[most]:,} passes, too many to play ({MAX_PASSES:,})"
    )
    if most == longest:
        raise InputError(f"{what}; lower steps or training.global_batch")
    context = f"during {steps} of {placed[longest].name}, {what}"
    raise InputError(f"{context}; lower steps, or give {placed[most].name} a larger training.global_batch")


def _job_steps(
    placed: Sequence[PlacedJob], single_runs: Sequence[AloneStep], records: Sequence[Sequence[Record]]
) -> tuple[JobSteps, ...]:
    """Return each job with its step alone, and its steps (`records`), of which those after the last job's start count."""
    since = max(placed_job.start for placed_job in placed)
    return tuple(
        JobSteps(*job, single, steps[0].plan, tuple(steps), tuple(step for step in steps if step.begin >= since))
        for job, single, steps in zip(placed, single_runs, records, strict=True)
    )
