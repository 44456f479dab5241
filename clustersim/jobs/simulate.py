"""Jobs that share a cluster: each is played alone on its nodes, then all together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from clustersim.arrays import Mask
from clustersim.config.overrides import parted
from clustersim.engine.compile import Plan, Work, bound, draft
from clustersim.engine.fold.adaptive import PlayedJobs, adapted
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.player import Player
from clustersim.engine.record import Record
from clustersim.engine.simulate import simulate as play_all
from clustersim.engine.together import complete, together
from clustersim.errors import InputError
from clustersim.garbage import uncollected
from clustersim.jobs.placement import PlacedJob, place_jobs
from clustersim.jobs.request import Wanted, load
from clustersim.parallel.job import MAX_PASSES
from clustersim.preparation import check_names, check_precision, rows
from clustersim.report.jobs_facts import Alone, JobSteps, Shared
from clustersim.report.jobs_summary import summary
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
    found = _together(works, simulator, wanted.steps, starts, fold, progress)
    progress("summarize")
    shared = Shared(cluster, wanted.placement, wanted.steps, _job_steps(placed, alone, found.plans, found.records))
    return JobsResult(summary(shared), shared, wanted.inputs, time.perf_counter() - begun)


def _together(
    works: Sequence[Work],
    simulator: Simulator,
    steps: int,
    starts: Sequence[float],
    fold: bool,
    progress: Progress,
) -> PlayedJobs:
    """Play the jobs on the links that prove to be short: as sums where they seldom slow each other, else all by SimPy."""
    drafted = draft(works, simulator.cluster)
    every = np.ones(len(drafted.demand.links), bool)
    attempts = list(_attempts(works, simulator))

    def told(share: float) -> None:
        progress(f"simulate together {share:.0%}")

    def simulated(cells: Partition, kept: Mask) -> PlayedJobs | None:
        for attempt in attempts:
            plans = bound(drafted._replace(works=tuple(work for work, _ in attempt)), cells, kept)
            jobs = [player.compiled(plan, simulator.graphs) for (_, player), plan in zip(attempt, plans, strict=True)]
            further = [player.steady.further if player.steady else 0 for _, player in attempt]
            records = together(jobs, further, steps, starts, told)
            if records is not None:
                whole = tuple(plan.lengthened(work) for plan, work in zip(plans, works, strict=True))
                return PlayedJobs(whole, records)
        if kept is not every:
            return None
        own = [job.graph for job in jobs], [job.tasks for job in jobs]
        return PlayedJobs(plans, play_all(plans, told, steps, starts, *own))

    found = adapted(drafted, every, simulated, fold)
    assert found is not None  # on all links SimPy tells the times where nobody else does
    return found._replace(records=complete(found.records, steps, starts))


def _attempts(works: Sequence[Work], simulator: Simulator) -> Iterator[list[tuple[Work, Player]]]:
    """Yield what each job does in a step of fewer microbatches, which may stand for its own; in the end, in its own."""
    each = [list(_lengths(work, simulator)) for work in works]
    for turn in range(max(map(len, each))):
        yield [own[min(turn, len(own) - 1)] for own in each]


def _lengths(work: Work, simulator: Simulator) -> Iterator[tuple[Work, Player]]:
    job, graphs, prepared = work.job, simulator.graphs, simulator.preparation
    # in the shortest one all is near its begin, where jobs meet
    for count, steady in islice(prepared.short(job), 1, None):
        yield prepared.work(job, work.gpus, count), Player("auto", graphs, rows(job, count), steady)
    yield work, Player("auto", graphs, rows(job))


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
