"""From two YAML files to a result, in six steps: load, build, predict, plan, simulate, summarize."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.cache import Cache
from clustersim.config.overrides import parted
from clustersim.engine.compile import Plan, Work
from clustersim.engine.draws import execute_draws
from clustersim.engine.memory import RankMemory, memory_by_rank
from clustersim.engine.player import Engine, plan_cache, run_step
from clustersim.engine.record import Record
from clustersim.errors import ClustersimError, InputError
from clustersim.garbage import uncollected
from clustersim.parallel.job import Job
from clustersim.parallel.nearby import Nearby, nearby
from clustersim.preparation import Preparation, check_names, check_precision
from clustersim.report.breakdown import breakdown, critical_path
from clustersim.report.interval import step_kernels
from clustersim.report.summary import Facts, Forecast, fullest, jitter_facts, outline, summary
from clustersim.report.verdicts import SLOWER, slower_overlap, verdict
from clustersim.topology.faults import factors, is_constant
from clustersim.topology.model import Topology

Progress = Callable[[str], None]

PLACED, JOB = 64 << 20, 12_500
"""Bytes of cached placed jobs, and of one of them. A sweep needs each job twice, and again at other clocks."""
TRIED = 12
"""Number of changes that would use more GPUs whose memory is checked, the best first."""


def silent(_: str) -> None:
    """Ignore the progress."""


class StepOptions(TypedDict, total=False):
    """Options of the simulation of a single job's step."""

    fold: bool
    """Whether identical ranks are simulated once (default: True)."""
    ignore_memory: bool
    """Whether to continue if a job does not fit into memory (default: False)."""
    progress: Progress
    """Callback that receives the name of each phase when it starts."""
    full_attention: bool
    """Whether model FLOP count causal attention in full (default: False, half)."""
    engine: Engine
    """Engine of the step (default: SimPy)."""
    check_overlap: bool
    """Whether to also simulate the step without tensor-parallel overlap, to warn if that is faster (default: True)."""


@dataclass(frozen=True)
class StepResult:
    """Result of simulating one training step."""

    summary: dict[str, Any]
    """Content of `summary.json`."""
    topology: Topology
    work: Work
    """Work of the job, with the seconds of every kernel."""
    plan: Plan
    record: Record
    parts: list[dict[str, float]]
    facts: Facts
    seconds: float
    """Wall time of the simulation in seconds."""

    @property
    def job(self) -> Job:
        """The placed job."""
        return self.work.job


def simulate(
    topology: str | Path,
    workload: str | Path,
    overrides: Mapping[str, object] | None = None,
    **options: Unpack[StepOptions],
) -> StepResult:
    """Simulate one training step.

    topology, workload: paths of YAML files. overrides: values by dotted keys of both, such as {"parallelism.tp": 4,
    "cluster.nodes": 64}. Raises InputError for invalid input.
    """
    from clustersim.parallel.load import load as load_workload
    from clustersim.topology.build import load as load_topology

    progress = options.get("progress", silent)
    progress("load")
    of_cluster, of_job = parted(overrides or {})
    job = load_workload(workload, of_job)
    progress("build")
    return run(load_topology(topology, of_cluster), job, **options)


def run(cluster: Topology, job: Job, **options: Unpack[StepOptions]) -> StepResult:
    """Simulate one step of a loaded job on the first GPUs of a built cluster. Raises InputError if it does not fit."""
    return Simulator(cluster).run(job, **options)


class Simulator:
    """Simulates jobs on one cluster, and caches what they share, so that repeated queries are faster."""

    __slots__ = ("_placed", "cluster", "plans", "preparation", "unlikely")

    def __init__(self, cluster: Topology, unlikely: bool = True) -> None:
        """Simulate on `cluster`; with `unlikely`, also jobs that are unlikely to fit into memory."""
        self.cluster, self.unlikely = cluster, unlikely
        self.preparation, self.plans = Preparation(cluster, unlikely), plan_cache()
        self._placed = Cache(PLACED, JOB)

    def __reduce__(self) -> tuple[type[Simulator], tuple[Topology, bool]]:
        return Simulator, (self.cluster, self.unlikely)  # another process rebuilds its own caches

    def with_cluster(self, cluster: Topology) -> Simulator:
        """Return a simulator for another cluster that shares this one's caches of jobs if the nodes have the same sizes."""
        simulator = Simulator(cluster, self.unlikely)
        if np.array_equal(cluster.numbering.first, self.cluster.numbering.first):
            simulator.preparation, simulator._placed = self.preparation.for_cluster(cluster), self._placed
        return simulator

    @uncollected()
    def seconds(self, job: Job) -> float:
        """Return only the seconds of a step of a loaded job, whether or not it fits into memory. Raises InputError for an invalid
        job."""
        return self._simulate_cached(self.placed(job), "auto")[1].end

    @uncollected()
    def run(
        self,
        job: Job,
        *,
        fold: bool = True,
        ignore_memory: bool = False,
        full_attention: bool = False,
        engine: Engine = "simpy",
        check_overlap: bool = True,
        progress: Progress = silent,
    ) -> StepResult:
        """Simulate one step of a loaded job on the first GPUs of the cluster. Other options are those of StepOptions."""
        begun = time.perf_counter()
        unplaced, job = job, self.placed(job)
        progress("predict")
        work, memory, forecast = self.prepare(job, np.arange(job.mesh.size), ignore_memory=ignore_memory)
        progress("plan")
        record = self.simulate(work, engine, fold, progress)
        progress("summarize")
        plan, parts = record.plan, breakdown(record)
        path = critical_path(record)
        kernels = step_kernels(work, path, forecast.bounds)
        facts = Facts(memory, forecast, kernels, path, self._nearby(job), full_attention)
        cluster = plan.network.topology  # including the links to hosts if the job offloads
        content = summary(cluster, work, plan, record, parts, facts)
        if check_overlap:
            content["warnings"] += self._slower_overlap(unplaced, record.end)
        if self.cluster.jitter is not None:
            content["jitter"] = jitter_facts(self.cluster.jitter, self.draw(job, progress=progress))
        return StepResult(content, cluster, work, plan, record, parts, facts, time.perf_counter() - begun)

    def simulate(self, work: Work, engine: Engine, fold: bool = True, progress: Progress = silent) -> Record:
        """Simulate one step of a job that has the cluster to itself. progress: receives `simulate 40%` and the like."""
        return run_step(work, self.cluster, fold, engine, lambda share: progress(f"simulate {share:.0%}"))

    def draw(self, job: Job, draws: int | None = None, engine: Engine = "auto", progress: Progress = silent) -> Floats:
        """Return the seconds of random steps of a loaded job whose GPU speeds vary by the cluster's `jitter` (draws,).

        draws: number of steps; None: the number in `jitter`. Raises InputError if the cluster has no jitter.
        """
        jitter = self.cluster.jitter
        if jitter is None or not jitter.model_fields_set & {"cv", "stragglers"}:
            how = "cluster.jitter.cv=0.03, or cluster.jitter.stragglers"
            raise InputError(f"cluster.jitter: nothing says how steps differ; add {how}")
        job, count = self.placed(job), draws or jitter.draws
        work = self.preparation.work(job, np.arange(job.mesh.size))
        if is_constant(jitter):
            return np.full(count, run_step(work, self.cluster, engine=engine).end)
        drawn_factors = (factors(jitter, self.cluster.gpus, number) for number in range(count))
        steps = np.empty(count)
        recompiled = self.preparation.runs_on(job)
        for number, record in enumerate(execute_draws(work, self.cluster, drawn_factors, engine, recompiled)):
            steps[number] = record.end
            progress(f"draw {(number + 1) / count:.0%}")
        return steps

    def outline(self, job: Job, engine: Engine = "simpy", keep: bool = True) -> dict[str, Any]:
        """Simulate one step of a loaded job. Return `report.summary.outline`, which tables of many jobs show.

        keep: whether to cache its compiled plan, of some megabytes, for jobs that differ only in kernel seconds.
        """
        job = self.placed(job)
        self.preparation.must_fit(job, ignorable=False)
        work, record = self._simulate_cached(job, engine, keep)
        plan, parts = record.plan, breakdown(record)
        path = critical_path(record)
        kernels = step_kernels(work, path, self.preparation.bounds(work))
        return outline(self.cluster, work, plan, record, parts, kernels, self.preparation.peaks(job))

    def _simulate_cached(self, job: Job, engine: Engine, keep: bool = True) -> tuple[Work, Record]:
        """Simulate a step of a placed job on the first GPUs, with the compiled plan of a job of equal structure, if cached."""
        # if the host launches ahead, times decide what waits for it, so a plan holds only for its own times
        structure = self.preparation.structure(job) if keep and not self.preparation.runs_on(job) else None
        work = self.preparation.work(job, np.arange(job.mesh.size))
        return work, run_step(work, self.cluster, engine=engine, cache=self.plans, structure=structure)

    def placed(self, job: Job) -> Job:
        """Return a job with dp resolved for the cluster. Raises ConfigError, also for unknown names of plug-ins."""

        def place() -> tuple[Job, Job]:
            check_names(job)
            dp = job.parallelism.dp
            used = None if dp == "auto" else job.parallelism.lanes * dp
            placed = job.place(self.cluster.gpus, self.cluster.numbering.common_width(used))
            check_precision(placed, self.cluster, np.arange(placed.mesh.size))
            return job, placed

        return self._placed.once(id(job), place)[1]

    def prepare(self, job: Job, gpus: Ints, *, ignore_memory: bool = False) -> tuple[Work, list[RankMemory], Forecast]:
        """Return the scripts of a placed job on `gpus` (one per rank), each pipeline rank's memory, and the uncertainty of its
        times.

        Raises OutOfMemoryError if it does not fit, unless `ignore_memory`.
        """
        if not ignore_memory:
            self.preparation.must_fit(job, gpus)
        work = self.preparation.work(job, gpus)
        schedule = tuple(script.row for script in work.scripts[:: job.positions])
        return work, memory_by_rank(job, self.preparation.parts(job), schedule), self.preparation.forecast(work)

    def _nearby(self, job: Job) -> Nearby | None:
        """Return the nearest legal batch or split that uses more GPUs and likely fits; None without one, or without idle GPUs."""
        if job.mesh.size == self.cluster.gpus:
            return None
        candidates = nearby(job, self.cluster.gpus, self.cluster.gpus_per_node)[:TRIED]
        return next((candidate for candidate in candidates if self._fits(candidate.job)), None)

    def _slower_overlap(self, job: Job, step: float) -> list[str]:
        """Return a warning if tensor-parallel overlap makes the step, of `step` seconds, longer than without it."""
        how = job.parallelism.overlap.tp
        if how == "none":
            return []
        plain = self._simulate_cached(self.placed(job.changed({"parallelism.overlap.tp": "none"})), "auto")[1].end
        return [slower_overlap(how, step, plain)] if step > (1 + SLOWER) * plain else []

    def _fits(self, job: Job) -> bool:
        """Return whether a placed job likely fits into the memory of the cluster's first GPUs."""
        try:
            _, need, have = fullest(self.cluster, np.arange(job.mesh.size), self.preparation.peaks(job))
        except ClustersimError:
            return False
        return verdict(need, have) == "likely"
