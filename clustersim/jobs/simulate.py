"""Simulates jobs that share a cluster: each job alone on its nodes, then all together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from clustersim.config.overrides import parted
from clustersim.engine.compile import plan
from clustersim.engine.player import together
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.errors import InputError
from clustersim.garbage import uncollected
from clustersim.jobs.placement import PlacedJob, place_jobs
from clustersim.jobs.request import JobsRequest, load
from clustersim.parallel.job import MAX_PASSES
from clustersim.parallel.offload import offloads
from clustersim.preparation import check_names, check_precision
from clustersim.report.jobs import Alone, JobSteps, Shared, summary
from clustersim.simulation import PlayOptions, Progress, Simulator, silent
from clustersim.topology.host_links import hosted
from clustersim.topology.model import Topology


@dataclass(frozen=True, slots=True)
class JobsResult:
    """Result of simulating several jobs on one cluster."""

    summary: dict[str, Any]
    """Content of `summary.json`."""
    shared: Shared
    inputs: dict[str, Path]
    """{part of the input: file that it was read from}"""
    seconds: float
    """Wall time of the simulation in seconds."""


def simulate(
    topology: str | Path,
    files: Sequence[str | Path],
    overrides: Mapping[str, object] | None = None,
    *,
    placement: str | None = None,
    steps: int | None = None,
    **options: Unpack[PlayOptions],
) -> JobsResult:
    """Simulate jobs that share a cluster.

    `topology` is the path of a YAML file, `files` are workloads or one file of jobs. `overrides` are dotted keys that are
    replaced in the topology and in every workload. `placement` is `packed` (default), `spread`, `random` or `random:7`. `steps`
    is the smallest number of steps that each job completes (default 3). Raises InputError for bad input.
    """
    from clustersim.topology.build import load as load_topology

    progress = options.get("progress", silent)
    progress("load")
    of_cluster, of_jobs = parted(overrides or {})
    wanted = load([Path(file) for file in files], of_jobs, placement, steps)
    progress("build")
    return share(load_topology(topology, of_cluster), wanted, **options)


@uncollected()
def share(
    cluster: Topology,
    wanted: JobsRequest,
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
    for request in wanted.requests:
        check_names(request.job)
    if any(offloads(request.job) for request in wanted.requests):
        cluster = hosted(cluster)
    placed = place_jobs(cluster, wanted.requests, wanted.placement)
    simulator, works, alone = Simulator(cluster), [], []
    for one in placed:
        check_precision(one.job, cluster, one.gpus)
        progress(f"predict {one.name}")
        work, memory, forecast = simulator.prepare(one.job, one.gpus, ignore_memory=ignore_memory)
        progress(f"simulate {one.name} alone")
        record = simulator.alone(work, "auto", fold)
        works.append(work)
        alone.append(Alone(record.plan, record, memory, forecast))
    _check_length(placed, alone, wanted.steps)
    progress("plan")
    starts = [one.start for one in placed]
    jobs = list(map(Tasks, plan(works, cluster, fold)))
    found = together(jobs, "auto", wanted.steps, starts, lambda share: progress(f"simulate together {share:.0%}"))
    progress("summarize")
    shared = Shared(cluster, wanted.placement, wanted.steps, _job_steps(placed, alone, found))
    return JobsResult(summary(shared), shared, wanted.inputs, time.perf_counter() - begun)


def _check_length(placed: Sequence[PlacedJob], alone: Sequence[Alone], steps: int) -> None:
    """Raise InputError if the shortest job would have to run too many steps during one step of the longest."""
    times = [one.record.end for one in alone]
    counts = [math.ceil(steps * max(times) / step) for step in times]
    passes = [
        count * one.job.microbatches * one.job.parallelism.pp * one.job.parallelism.vpp
        for count, one in zip(counts, placed, strict=True)
    ]
    if sum(passes) <= MAX_PASSES:
        return
    most, longest = passes.index(max(passes)), times.index(max(times))
    what = (
        f"{counts[most]:,} steps of {placed[most].name} are {passes[most]:,} passes, too many to play ({MAX_PASSES:,})"
    )
    if most == longest:
        raise InputError(f"{what}; lower steps or training.global_batch")
    beside = f"during {steps} of {placed[longest].name}, {what}"
    raise InputError(f"{beside}; lower steps, or give {placed[most].name} a larger training.global_batch")


def _job_steps(
    placed: Sequence[PlacedJob], alone: Sequence[Alone], records: Sequence[Sequence[Record]]
) -> tuple[JobSteps, ...]:
    """Return each job with its step alone and all its steps; those that began after the last job's start are counted."""
    since = max(one.start for one in placed)
    return tuple(
        JobSteps(*one, apart, played[0].plan, tuple(played), tuple(r for r in played if r.begin >= since))
        for one, apart, played in zip(placed, alone, records, strict=True)
    )
