"""Jobs that share a cluster: each is played alone on its nodes, then all together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from clustersim.arrays import Mask
from clustersim.config.overrides import parted
from clustersim.engine.compile import Plan, Work, bound, draft
from clustersim.engine.fold.adaptive import PlayedJobs, adapted
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.fold.saturation import jobs_contend, saturated_links
from clustersim.engine.player import Player, together
from clustersim.engine.record import Record
from clustersim.errors import InputError
from clustersim.garbage import uncollected
from clustersim.jobs.placement import PlacedJob, place_jobs
from clustersim.jobs.request import Wanted, load
from clustersim.parallel.job import MAX_PASSES
from clustersim.preparation import check_names, check_precision, rows
from clustersim.report.jobs import Alone, JobSteps, Shared, summary
from clustersim.simulation import PlayOptions, Progress, Simulator, silent
from clustersim.topology.model import Topology


@dataclass(frozen=True, slots=True)
class JobsResult:
    """All that one simulation of several jobs found."""

    summary: dict[str, Any]
    """What `summary.json` has."""
    shared: Shared
    inputs: dict[str, Path]
    """The files that were read, by their part."""
    seconds: float
    """The wall time that it took."""


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

    topology: path of a YAML file. files: workloads, or one file of jobs. overrides: dotted keys that are replaced in the
    topology and in every workload. placement: `packed` (default), `spread`, `random`, `random:7`. steps: how many each job
    completes at least (default 3). Raises InputError for bad input.
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
    wanted: Wanted,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    progress: Progress = silent,
) -> JobsResult:
    """Simulate loaded jobs on a built cluster; the rest is in PlayOptions."""
    begun = time.perf_counter()
    for request in wanted.requests:
        check_names(request.job)
    placed = place_jobs(cluster, wanted.requests, wanted.placement)
    simulator, works, alone = Simulator(cluster), [], []
    for one in placed:
        check_precision(one.job, cluster, one.gpus)
        progress(f"predict {one.name}")
        work, memory, forecast = simulator.prepare(one.job, one.gpus, ignore_memory=ignore_memory)
        progress(f"simulate {one.name} alone")
        plan, record = simulator.alone(work, "auto", fold)
        works.append(work)
        alone.append(Alone(plan, record, memory, forecast))
    _check_length(placed, alone, wanted.steps)
    progress("plan")
    starts = [one.start for one in placed]
    found = _together(works, alone, simulator, wanted.steps, starts, fold, progress)
    progress("summarize")
    shared = Shared(cluster, wanted.placement, wanted.steps, _job_steps(placed, alone, found.plans, found.records))
    return JobsResult(summary(shared), shared, wanted.inputs, time.perf_counter() - begun)


def _together(
    works: Sequence[Work],
    alone: Sequence[Alone],
    simulator: Simulator,
    steps: int,
    starts: Sequence[float],
    fold: bool,
    progress: Progress,
) -> PlayedJobs:
    """Return the steps of jobs beside each other: by the loop where several could fill a link together, else those alone."""
    drafted = draft(works, simulator.cluster)
    plans, nets = tuple(one.plan for one in alone), [one.plan.network for one in alone]
    complete, under_way = _repeated([one.record for one in alone], steps, starts)
    if not jobs_contend(drafted.demand, nets, under_way):
        return PlayedJobs(plans, complete)

    def simulated(cells: Partition, kept: Mask) -> PlayedJobs:
        plans = bound(drafted, cells, kept)
        players = (Player("auto", simulator.plans, rows(work.job)) for work in works)
        jobs = [player.compiled(plan) for player, plan in zip(players, plans, strict=True)]
        return PlayedJobs(
            plans, together(jobs, steps, starts, lambda share: progress(f"simulate together {share:.0%}"))
        )

    short = saturated_links(drafted.demand, nets, under_way)
    found = adapted(drafted, np.ones(len(short), bool), simulated, fold, short)
    assert found is not None  # the loop plays everything
    return found


def _repeated(
    alone: Sequence[Record], steps: int, starts: Sequence[float]
) -> tuple[tuple[list[Record], ...], tuple[list[Record], ...]]:
    """Return the steps of jobs, one after the other from their starts, until each has so many that began when all had started.

    First those that are complete then, second also those that are under way.
    """
    since, both = max(starts), list(zip(alone, starts, strict=True))
    counted = ((end for begin, end in _turns(record, start) if begin >= since) for record, start in both)
    stop = max(next(islice(ends, steps - 1, None)) for ends in counted)
    under_way = tuple(
        [record.begun(begin) for begin, _ in takewhile(lambda turn: turn[0] < stop, _turns(record, start))]
        for record, start in both
    )
    return tuple([step for step in own if step.end <= stop] for own in under_way), under_way


def _turns(record: Record, begin: float) -> Iterator[tuple[float, float]]:
    """Yield when steps begin and end, one after the other without end."""
    while True:
        end = begin + record.end
        yield begin, end
        begin = end


def _check_length(placed: Sequence[PlacedJob], alone: Sequence[Alone], steps: int) -> None:
    """Raise InputError when so many steps, or short jobs beside a long one, would have to be played too often."""
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
    beside = f"beside {steps} of {placed[longest].name}, {what}"
    raise InputError(f"{beside}; lower steps, or give {placed[most].name} a larger training.global_batch")


def _job_steps(
    placed: Sequence[PlacedJob],
    alone: Sequence[Alone],
    plans: Sequence[Plan],
    records: Sequence[Sequence[Record]],
) -> tuple[JobSteps, ...]:
    since = max(one.start for one in placed)
    return tuple(
        JobSteps(*one, apart, planned, tuple(played), tuple(r for r in played if r.begin >= since))
        for one, apart, planned, played in zip(placed, alone, plans, records, strict=True)
    )
