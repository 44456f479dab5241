"""One point of a sweep: the same simulation as `clustersim run`, as one flat row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from clustersim import plugins
from clustersim.cache import Cache
from clustersim.config.overrides import SourcePlace, parted
from clustersim.config.yaml import Document, read
from clustersim.costs import figures
from clustersim.costs.bill import Rates, rates, step_costs
from clustersim.costs.figures import Figures
from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.files import Inputs, keeping_inputs
from clustersim.parallel.job import Job
from clustersim.parallel.load import Unbuilt, unbuilt
from clustersim.parallel.options import NAMES
from clustersim.predictors.base import ROOM
from clustersim.report.summary import network_warnings
from clustersim.simulation import Simulator
from clustersim.sweeps.space import Point
from clustersim.topology import options as cluster_options
from clustersim.topology.build import build, document_of, overridden
from clustersim.topology.model import Topology

Row = dict[str, Any]
_SPEED = (
    *("step_time_s", "expected_step_time_s", "step_time_low_s", "step_time_high_s"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu", "model_tflops_per_gpu", "mfu"),
)
_MEMORY = {
    "peak_bytes": "peak_memory_bytes",
    "capacity_bytes": "gpu_memory_bytes",
    "verdict": "memory_verdict",
    "ran_share": "memory_ran_share",
}

JOBS, JOB = 32 << 20, 3_000
"""Bytes of cached jobs, and of one job, which is used for the check of the space, the forecast of kernels, and its row."""
CLUSTERS = 16
"""Largest number of cached clusters."""
COLUMNS = NAMES | {option.key: option.name for option in cluster_options.OPTIONS}
"""{dotted key: name of its column}, where the name is shorter."""


class Files(NamedTuple):
    """Input files of a sweep, read once: `read` has the content of every file."""

    topology: str
    workload: str
    read: Inputs
    engine: Engine = "auto"
    """Engine of the steps."""
    costs: Figures | None = None
    """Prices, power and carbon; None: those of `costs/defaults.yaml`."""
    places: Mapping[str, SourcePlace] | None = None
    """Positions of overrides, as in SweepInputs."""


@dataclass(frozen=True, slots=True)
class SweepCluster:
    """One of the clusters of a sweep, with its cost per second."""

    simulator: Simulator
    rates: Rates


@dataclass(frozen=True, slots=True)
class SweepInputs:
    """Inputs that all points of a sweep share: the cluster and the workload before overrides."""

    topology: Document | Topology
    """Description of the cluster, or a built one, which takes no overrides."""
    workload: Unbuilt
    engine: Engine = "auto"
    """Engine of the steps."""
    places: Mapping[str, SourcePlace] = field(default_factory=dict)
    """Source of overrides by dotted key; all others are from a command line."""
    costs: Figures = field(default_factory=figures.load)
    """Prices, power and carbon."""
    unlikely: bool = True
    """Whether points that are unlikely to fit are simulated."""

    built: Cache = field(default_factory=lambda: Cache(JOBS, JOB), repr=False)
    """Cached jobs of points."""
    clusters: Cache = field(default_factory=lambda: Cache(CLUSTERS, 1), repr=False)
    """Cached clusters of points."""

    def __reduce__(self) -> tuple[object, ...]:
        return SweepInputs, (
            self.topology,
            self.workload,
            self.engine,
            self.places,
            self.costs,
            self.unlikely,
        )  # other processes build their own

    def job(self, point: Mapping[str, object]) -> Job:
        """Return the job of a point. Raises InputError if it is illegal."""
        changes = parted(point)[1]
        return self.built.once(repr(changes), lambda: self.workload.job(changes, self.places))

    @property
    def base(self) -> Job:
        """The job of the workload without overrides. Raises InputError if it is illegal."""
        return self.job({})

    def cluster(self, point: Mapping[str, object]) -> SweepCluster:
        """Return the cluster of a point. Raises InputError if it is impossible."""
        changes = parted(point)[0]
        return self.clusters.once(repr(sorted(changes.items())), lambda: self._cluster(changes))

    def _cluster(self, changes: Mapping[str, object]) -> SweepCluster:
        """Return a new cluster with `changes`, values by dotted key. Raises InputError, also if it is built already."""
        if isinstance(self.topology, Document):
            built = build(overridden(self.topology, changes, self.places))
        elif not changes:
            built = self.topology
        else:
            what = "is a key of a cluster that is built already"
            raise InputError(f"{next(iter(changes))}: {what}; give a file, a shipped name or a mapping")
        return SweepCluster(Simulator(built, self.unlikely), rates(built, self.costs))

    def resolved(self, point: Point) -> str | None:
        """Return a key of the complete configuration of a point, equal for equivalent points; None if it is illegal."""
        if not isinstance(self.topology, Document):
            return None
        try:
            parts = overridden(self.topology, parted(point)[0]).data, self.job(point).spec.model_dump(mode="json")
        except InputError:
            return None
        return json.dumps(parts, sort_keys=True)


def load(files: Files, unlikely: bool = True) -> SweepInputs:
    """Return the inputs in `files`. unlikely: as in SweepInputs. Raises InputError for a file that is missing or invalid."""
    with keeping_inputs(files.read):
        workload = unbuilt(read(Path(files.workload)))
        topology = document_of(files.topology)
        return SweepInputs(
            topology, workload, files.engine, files.places or {}, files.costs or figures.load(), unlikely
        )


def learn(case: SweepInputs, points: Iterable[Point]) -> None:
    """Forecast the kernels of points, in one call for clusters of the same GPUs. Errors are left to the row of the point."""
    jobs: dict[tuple[str, ...], tuple[Simulator, list[Job]]] = {}
    for point in points:
        with suppress(ClustersimError):
            simulator = case.cluster(point).simulator
            job = simulator.placed(case.job(point))
            simulator.preparation.must_fit(job)
            jobs.setdefault(simulator.preparation.gpus, (simulator, []))[1].append(job)
    for simulator, placed in jobs.values():
        simulator.preparation.learn(placed)


def named(point: Point) -> Row:
    """Return {column: value} of the overrides of a point; the column is the key if it has no short name."""
    return {COLUMNS.get(key, key): value for key, value in point.items()}


def evaluate(case: SweepInputs, point: Point, keep: bool = True) -> Row:
    """Simulate one point. `status`: ok, illegal, does not fit or failed (`reason`: why); ok rows have `flat`, costs, warnings.

    keep: whether to cache its compiled plan, of some megabytes, for points that differ only in kernel seconds.
    """
    row = named(point)
    try:
        with plugins.answering():
            cluster = case.cluster(point)
            row |= _as_built(cluster.simulator.cluster, row)
            summary = _simulated(case, cluster.simulator, case.job(point), keep)
    except OutOfMemoryError as error:
        return {**row, "status": "does not fit", "reason": str(error)}
    except InputError as error:
        return {**row, "status": "illegal", "reason": str(error)}
    except ClustersimError as error:
        return {**row, "status": "failed", "reason": str(error)}
    step = summary["expected_step_time_s"]
    tokens = summary["tokens_per_s"] * step
    warnings = network_warnings(cluster.simulator.cluster, summary["simulated"]["ranks"])
    row |= {"warnings": "\n".join(warnings)} if warnings else {}
    return {**row, "status": "ok", "reason": "", **flat(summary), **step_costs(cluster.rates, step, tokens)}


def _as_built(cluster: Topology, row: Row) -> Row:
    """Return {`oversubscription`: the actual one} if it differs from the requested, as too few nodes fill the leaves; else {}."""
    requested, built = row.get("oversubscription"), cluster.counts.get("oversubscription")
    if requested is None or built is None or isclose(float(str(requested)), built, rel_tol=1e-4):
        return {}
    return {"oversubscription": f"{built:.4g}" if isinstance(requested, str) else built}


def _simulated(case: SweepInputs, simulator: Simulator, job: Job, keep: bool) -> dict[str, Any]:
    """Return the part of a summary for a row. An outside predictor is called as in `run`, for all statements."""
    if plugins.outside(ROOM, job.spec.predictor):
        simulator.preparation.must_fit(simulator.placed(job), ignorable=False)
        return simulator.run(job, engine=case.engine).summary
    return simulator.outline(job, case.engine, keep)


def flat(summary: dict[str, Any]) -> Row:
    """Return {column: figure} of a summary: degrees but `expert_tp`, known speeds, `PART_s` in s, memory, numbers of ranks."""
    split = {k: v for k, v in summary["parallelism"].items() if k != "expert_tp"}
    speed = {k: summary[k] for k in _SPEED if summary[k] is not None}
    parts = {f"{k}_s": v for k, v in summary["breakdown_s"].items()}
    counts = {k: summary["simulated"][k] for k in ("gpus", "ranks", "idle_gpus", "rank_classes", "player")}
    memory = {column: summary["memory"][key] for key, column in _MEMORY.items()}
    return {**split, **speed, **parts, **memory, **counts}
