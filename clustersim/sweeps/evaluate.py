"""One point of a sweep: the same simulation as `clustersim run`, as one flat row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clustersim import plugins
from clustersim.config.overrides import SourcePlace
from clustersim.config.yaml import read
from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.files import Inputs, keeping_inputs
from clustersim.parallel.job import Job
from clustersim.parallel.load import Unbuilt, unbuilt
from clustersim.parallel.options import NAMES
from clustersim.predictors.base import ROOM
from clustersim.preparation import Newest
from clustersim.simulation import Simulator
from clustersim.sweeps.space import Point
from clustersim.topology.build import load as load_topology

Row = dict[str, Any]
_SPEED = (
    *("step_time_s", "step_time_low_s", "step_time_high_s"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu", "model_tflops_per_gpu", "mfu"),
)

JOBS = 1024
"""Jobs that are kept: each is asked for by the check of the space, by the forecast of all kernels, and by its own row."""


class Files(NamedTuple):
    """The inputs of a sweep, as they were read once: `read` has the bytes of every file."""

    topology: str
    workload: str
    read: Inputs
    engine: Engine = "auto"
    """Who plays the steps."""


@dataclass(frozen=True, slots=True)
class SweepInputs:
    """What all points of a sweep share: the cluster with what is known of it, and the workload before its overrides."""

    simulator: Simulator
    workload: Unbuilt
    engine: Engine = "auto"
    """Who plays the steps."""
    places: Mapping[str, SourcePlace] = field(default_factory=dict)
    """Where overrides are from, by dotted key; those that are not here are from a command line."""

    built: Newest = field(default_factory=lambda: Newest(JOBS), repr=False)
    """The jobs of points that were asked for."""

    def __reduce__(self) -> tuple[object, ...]:
        return SweepInputs, (self.simulator, self.workload, self.engine, self.places)  # another process builds its own

    def job(self, point: Mapping[str, object]) -> Job:
        """Return the job of a point. Raises InputError when it is illegal."""
        return self.built.once(repr(point), lambda: self.workload.job(point, self.places))


def load(files: Files) -> SweepInputs:
    """Return the cluster and the workload of files, each read once. Raises InputError for what is wrong in them."""
    with keeping_inputs(files.read):
        workload = unbuilt(read(Path(files.workload)))
        return SweepInputs(Simulator(load_topology(files.topology)), workload, files.engine)


def learn(case: SweepInputs, points: Iterable[Point]) -> None:
    """Forecast the kernels of points in one call; what is wrong with one of them, its own row says."""
    simulator, jobs = case.simulator, list[Job]()
    for point in points:
        with suppress(ClustersimError):
            job = simulator.placed(case.job(point))
            simulator.preparation.must_fit(job)
            jobs.append(job)
    simulator.preparation.learn(jobs)


def evaluate(case: SweepInputs, point: Point) -> Row:
    """Simulate one point. `status` is ok, illegal or does not fit; `reason` says why a point has no result."""
    row: Row = {NAMES.get(key, key): value for key, value in point.items()}
    try:
        with plugins.answering():
            found = _simulated(case, case.job(point))
    except OutOfMemoryError as error:
        return {**row, "status": "does not fit", "reason": str(error)}
    except InputError as error:
        return {**row, "status": "illegal", "reason": str(error)}
    except ClustersimError as error:
        return {**row, "status": "failed", "reason": str(error)}
    return {**row, "status": "ok", "reason": "", **flat(found)}


def _simulated(case: SweepInputs, job: Job) -> dict[str, Any]:
    """Return the part of a summary that a row shows; a predictor from outside is asked for all that it says in a run."""
    if plugins.outside(ROOM, job.spec.predictor):
        return case.simulator.run(job, engine=case.engine).summary
    return case.simulator.outline(job, case.engine)


def flat(summary: dict[str, Any]) -> Row:
    """Return the figures of a summary that a table of points shows."""
    split = {k: v for k, v in summary["parallelism"].items() if k != "expert_tp"}
    speed = {k: summary[k] for k in _SPEED if summary[k] is not None}
    parts = {f"{k}_s": v for k, v in summary["breakdown_s"].items()}
    counts = {k: summary["simulated"][k] for k in ("gpus", "ranks", "idle_gpus", "rank_classes", "player")}
    return {**split, **speed, **parts, "peak_memory_bytes": summary["memory"]["peak_bytes"], **counts}
