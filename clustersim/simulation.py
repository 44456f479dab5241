"""From two YAML files to a result, in six steps: load, build, predict, plan, simulate, summarize."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clustersim import plugins
from clustersim.arrays import Ints
from clustersim.collectives.plan import NCCL
from clustersim.engine.compile import Plan, Work
from clustersim.engine.memory import Held, held_by_ranks
from clustersim.engine.script import kernels, scripts
from clustersim.engine.simulate import Record
from clustersim.errors import ClustersimError, ConfigError, DataError, InputError, OutOfMemoryError
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory
from clustersim.parallel.nearby import Nearby, nearby
from clustersim.parallel.stages import Stage
from clustersim.report.breakdown import breakdown
from clustersim.report.critical_path import critical_path
from clustersim.report.interval import step_kernels
from clustersim.report.summary import Facts, Forecast, summary
from clustersim.report.verdicts import verdict
from clustersim.topology.model import Topology

Progress = Callable[[str], None]
TRIED = 12
"""Ways to use more GPUs whose memory is looked at, the best first."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """All that one simulation found; `summary` is what `summary.json` holds, `seconds` the wall time it took."""

    summary: dict[str, Any]
    topology: Topology
    job: Job
    plan: Plan
    record: Record
    parts: list[dict[str, float]]
    facts: Facts
    seconds: float


def simulate(
    topology: str | Path,
    workload: str | Path,
    overrides: Mapping[str, object] | None = None,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    full_attention: bool = False,
    progress: Progress = lambda _: None,
) -> StepResult:
    """Simulate one training step.

    topology, workload: paths of YAML files. overrides: dotted keys of the workload, such as {"parallelism.tp": 4}. fold:
    simulate alike ranks once. ignore_memory: go on when the job does not fit. full_attention: count all of causal attention
    in the model FLOP. progress is told the name of each step. Raises InputError for bad input.
    """
    from clustersim.parallel.load import load as load_workload
    from clustersim.topology.build import load as load_topology

    progress("load")
    job = load_workload(workload, overrides)
    progress("build")
    cluster = load_topology(topology)
    return run(cluster, job, fold=fold, ignore_memory=ignore_memory, full_attention=full_attention, progress=progress)


def run(
    cluster: Topology,
    job: Job,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    full_attention: bool = False,
    progress: Progress = lambda _: None,
) -> StepResult:
    """Simulate one step of a loaded job, on the first GPUs of a built cluster; arguments as in `simulate`."""
    from clustersim.engine.fold.adaptive import play

    begun = time.perf_counter()
    check_names(job)
    job = job.place(cluster.gpus, cluster.gpus_per_node)
    progress("predict")
    work, memory, predicted = prepare(cluster, job, np.arange(job.mesh.size), ignore_memory=ignore_memory)
    progress("plan")
    planned, record = play(work, cluster, fold, lambda share: progress(f"simulate {share:.0%}"))
    progress("summarize")
    parts = breakdown(record.spans, len(planned.programs), record.end)
    path = critical_path(record.spans)
    kernels = step_kernels(work, planned, path, record.end, predicted.bounds)
    facts = Facts(memory, predicted, kernels, path, _nearby(cluster, job), full_attention)
    found = summary(cluster, work, planned, record, parts, facts)
    return StepResult(found, cluster, job, planned, record, parts, facts, time.perf_counter() - begun)


def prepare(
    cluster: Topology, job: Job, gpus: Ints, *, ignore_memory: bool = False
) -> tuple[Work, list[Held], Forecast]:
    """Return what a placed job does on `gpus` (one a rank), the memory of each pipeline rank, and what is known of its times.

    Raises OutOfMemoryError when it does not fit, unless that is to be ignored.
    """
    work, stages, predicted = _predict(cluster, job, gpus)
    memory = held_by_ranks(job, stages, tuple(script.row for script in work.scripts[:: len(stages)]))
    if not ignore_memory:
        _must_fit(cluster, job, [one.peak for one in memory])
    return work, memory, predicted


def _predict(cluster: Topology, job: Job, gpus: Ints) -> tuple[Work, list[tuple[Stage, ...]], Forecast]:
    """Return the work, the stages by position in the ep group, and what is known of kernel times.

    That is the predictor's error, and what was assumed of the clocks.
    """
    from clustersim.parallel.stages import stages
    from clustersim.predictors.clocks import applied, derate, shares_of
    from clustersim.predictors.clocks import statement as said
    from clustersim.predictors.load import get
    from clustersim.predictors.uncertainty import bounds
    from clustersim.schedules.check import load as load_schedule

    split = job.parallelism
    with _blaming(job, "parallelism.schedule", "clustersim.schedules", split.schedule):
        schedule = load_schedule(split.schedule, split.pp, job.microbatches, split.vpp)
    parts = [stages(job, position) for position in range(job.positions)]
    alike = zip(*(scripts(job, part, schedule) for part in parts), strict=True)
    written = tuple(script for lane in alike for script in lane)
    distinct = kernels(written)
    with _blaming(job, "predictor", "clustersim.predictors", job.spec.predictor):
        predictor = get(job.spec.predictor)
        clocks = applied(predictor, job.spec.clocks)
        bursts = predictor.predict(distinct, cluster.gpu)
        times = derate(distinct, bursts, cluster.gpu, clocks)
        statement = [str(scope) for scope in predictor.statement(distinct, cluster.gpu)]
        off = bounds(predictor, distinct, cluster.gpu, bursts)
    known = dict(zip(distinct, times.tolist(), strict=True))
    forecast = Forecast(statement, said(distinct, cluster.gpu, clocks), shares_of(distinct, cluster.gpu, clocks), off)
    return Work(job, written, known, gpus), parts, forecast


def check_names(job: Job) -> None:
    """Raise ConfigError, at its place in the workload, for the first name that no predictor, schedule or algorithm has."""
    split = job.parallelism
    wanted = [("parallelism.schedule", "clustersim.schedules", split.schedule, "build")]
    wanted += [
        (f"parallelism.algorithms.{g}", "clustersim.collectives", a, "phases") for g, a in split.algorithms if a != NCCL
    ]
    for key, room, name, attribute in (*wanted, ("predictor", "clustersim.predictors", job.spec.predictor, "load")):
        with _blaming(job, key, room, name):
            plugins.load(room, name, attribute)


@contextmanager
def _blaming(job: Job, key: str, room: str, name: str) -> Iterator[None]:
    """Say where in the workload stands what could not be done, also when a plugin from outside fails in its own way."""
    try:
        with plugins.blaming(room, name):
            yield
    except (ConfigError, DataError):
        raise
    except InputError as error:
        raise job.error(key, str(error)) from error


def _nearby(cluster: Topology, job: Job) -> Nearby | None:
    """Return the nearest batch or split that uses more GPUs of the cluster, is legal and fits; None without any, or none idle."""
    if job.mesh.size == cluster.gpus:
        return None
    found = nearby(job, cluster.gpus, cluster.gpus_per_node)[:TRIED]
    return next((one for one in found if _fits(cluster, one.job)), None)


def _fits(cluster: Topology, job: Job) -> bool:
    from clustersim.parallel.stages import stages
    from clustersim.schedules.check import load as load_schedule

    split = job.parallelism
    try:
        schedule = load_schedule(split.schedule, split.pp, job.microbatches, split.vpp)
    except ClustersimError:
        return False
    memory = held_by_ranks(job, [stages(job, position) for position in range(job.positions)], schedule)
    return max(one.peak.total for one in memory) <= cluster.gpu.memory


def _must_fit(cluster: Topology, job: Job, memory: list[Memory]) -> None:
    worst = max(range(len(memory)), key=lambda rank: memory[rank].total)
    need, have = memory[worst].total, cluster.gpu.memory
    if verdict(need, have) == "does not fit":
        degrees = "tp, pp or ep" if (job.model.experts or 1) > job.parallelism.ep else "tp or pp"
        what = (
            f"pipeline rank {worst} needs {need / 2**30:.1f} GiB and {cluster.gpu.name} has {have / 2**30:.1f} GiB "
            f"({_largest(memory[worst])}); raise {degrees}, lower micro_batch, recompute activations, or pass --ignore-memory"
        )
        raise OutOfMemoryError(str(job.error("parallelism", what)))


def _largest(memory: Memory) -> str:
    kinds = sorted(zip(memory._fields, memory, strict=True), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {value / 2**30:.1f} GiB" for name, value in kinds)
