"""One point of a sweep: the same simulation as `clustersim run`, as one flat row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clustersim import plugins
from clustersim.config.yaml import Document, read
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.files import Inputs, held
from clustersim.parallel.options import NAMES
from clustersim.sweeps.space import Point
from clustersim.topology.model import Topology

if TYPE_CHECKING:
    from clustersim.parallel.job import Job
    from clustersim.parallel.load import SourcePlace

Row = dict[str, Any]
_SPEED = (
    *("step_time_s", "step_time_low_s", "step_time_high_s"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu", "model_tflops_per_gpu", "mfu"),
)


class Files(NamedTuple):
    """The inputs of a sweep, as they were read once: `read` has the bytes of every file."""

    topology: str
    workload: str
    read: Inputs


@dataclass(frozen=True, slots=True)
class SweepInputs:
    """What all points of a sweep share: the cluster, and the workload before its overrides."""

    cluster: Topology
    workload: Document
    places: Mapping[str, SourcePlace] = field(default_factory=dict)
    """Where overrides are from, by dotted key; those that are not here are from a command line."""

    def job(self, point: Mapping[str, object]) -> Job:
        """Return the job of a point. Raises InputError when it is illegal."""
        from clustersim.parallel.load import build

        return build(self.workload, point, self.places)


def load(files: Files) -> SweepInputs:
    """Return the cluster and the workload of files, each read once. Raises InputError for what is wrong in them."""
    from clustersim.topology.build import load as load_topology

    with held(files.read):
        workload = read(Path(files.workload))
        return SweepInputs(load_topology(files.topology), workload)


def evaluate(case: SweepInputs, point: Point) -> Row:
    """Simulate one point. `status` is ok, illegal or does not fit; `reason` says why a point has no result."""
    from clustersim.simulation import run

    row: Row = {NAMES.get(key, key): value for key, value in point.items()}
    try:
        with plugins.answering():
            summary = run(case.cluster, case.job(point)).summary
    except OutOfMemoryError as error:
        return {**row, "status": "does not fit", "reason": str(error)}
    except InputError as error:
        return {**row, "status": "illegal", "reason": str(error)}
    except ClustersimError as error:
        return {**row, "status": "failed", "reason": str(error)}
    return {**row, "status": "ok", "reason": "", **flat(summary)}


def flat(summary: dict[str, Any]) -> Row:
    """Return the figures of a summary that a table of points shows."""
    split = {k: v for k, v in summary["parallelism"].items() if k != "expert_tp"}
    speed = {k: summary[k] for k in _SPEED if summary[k] is not None}
    parts = {f"{k}_s": v for k, v in summary["breakdown_s"].items()}
    counts = {k: summary["simulated"][k] for k in ("gpus", "ranks", "idle_gpus", "rank_classes", "events")}
    return {**split, **speed, **parts, "peak_memory_bytes": summary["memory"]["peak_bytes"], **counts}
