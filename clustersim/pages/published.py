"""The published runs most similar to a job, with the errors of their forecasts.

The distance of a run is the sum of doublings of GPUs, model width and depth, and parallel degrees. A different GPU, precision or
use of experts counts as a fixed number of doublings. No figure of a result depends on this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import log2

from clustersim.hardware import gpus
from clustersim.parallel.job import Job
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.space import Point
from clustersim.topology.model import Topology
from clustersim.units import duration
from clustersim.validate.runs import PUBLISHED, REQUIRED, Run, by_column, read, table

SHOWN = 5
"""Number of runs in the list."""
OTHER_ARCHITECTURE, OTHER_GPU, OTHER_PRECISION, EXPERTS = 6.0, 1.0, 2.0, 4.0
"""Doublings that each difference counts as."""


def nearest(topology: Topology, job: Job, count: int = SHOWN) -> list[dict[str, object]]:
    """Return the `count` published runs nearest to a job, with measured and forecast seconds per step."""
    apart = [(run, forecast, dict(_distances(topology, job, run))) for run, forecast in _forecasts()]
    apart.sort(key=lambda entry: sum(entry[2].values()))
    return [_row(*entry) for entry in apart[:count]]


def nearest_to(case: SweepInputs, point: Point) -> dict[str, object]:
    """Return the published run nearest to a point, as a row of `nearest`."""
    simulator = case.cluster(point).simulator
    return nearest(simulator.cluster, simulator.placed(case.job(point)), 1)[0]


@cache
def _forecasts() -> list[tuple[Run, float]]:
    """Return all published runs, each with the seconds per step that this release forecasts."""
    rows = (by_column(PUBLISHED, *row) for row in table(PUBLISHED, (*REQUIRED, "predicted_s")))
    seconds = {cells["id"]: float(cells["predicted_s"]) for cells in rows}
    return [(run, seconds[run.id]) for run in read(PUBLISHED)]


def _row(run: Run, predicted: float, apart: Mapping[str, float]) -> dict[str, object]:
    """Return a run as a row of the page. predicted: forecast in s. apart: {property: doublings by which it differs}."""
    measured = run.sec_per_iter or predicted
    degrees = {name: getattr(run, name) or 1 for name in ("tp", "pp", "dp", "cp", "ep")}
    split = " × ".join(f"{name} {n}" for name, n in degrees.items() if n > 1 or name in ("tp", "pp", "dp"))
    tokens = (run.global_batch or 0) * (run.seq or 0) / measured / (run.num_gpus or 1)
    speed = f"{tokens:,.0f} tokens/s per GPU, " if tokens else ""
    took = f"{speed}{duration(measured)} a step, forecast {predicted / measured - 1:+.1%}"
    return {
        "id": run.id,
        "source": run.source or run.publisher,
        "model": run.model,
        "gpu": run.gpu,
        "gpus": run.num_gpus,
        "precision": run.precision,
        "split": split,
        "said": f"nearest published run: {run.model} on {run.num_gpus:,} {run.gpu}, {split}, {run.precision}: {took} ({run.id})",
        "measured_s": measured,
        "predicted_s": predicted,
        "error": predicted / measured - 1,
        "differs": [name for name, doublings in sorted(apart.items(), key=lambda pair: -pair[1]) if doublings > 0.5],
    }


def _distances(topology: Topology, job: Job, run: Run) -> Iterator[tuple[str, float]]:
    """Yield (property, doublings by which a run differs from a job in it)."""
    same_architecture = _architecture(run.gpu) == topology.gpu.architecture
    yield "GPU", 0.0 if run.gpu == topology.gpu.name else OTHER_GPU if same_architecture else OTHER_ARCHITECTURE
    wide = job.training.precision
    same = wide == run.precision or {wide, run.precision} <= {"fp16", "bf16"}
    yield "precision", 0.0 if same else OTHER_PRECISION
    yield "experts", EXPERTS * ((job.model.experts is not None) != bool(run.experts))
    yield "number of GPUs", _ratio(job.mesh.size, run.num_gpus)
    yield "model", _ratio(job.model.layers, run.layers) + 2 * _ratio(job.model.hidden, run.hidden)
    split = job.parallelism
    for name, degree in (("tp", split.tp), ("pp", split.pp), ("cp", split.cp)):
        yield name, 0.5 * _ratio(degree, getattr(run, name))
    tokens = (run.micro_batch or 1) * (run.seq or 1)
    yield "microbatch", 0.5 * _ratio(job.training.micro_batch * job.training.seq, tokens)


@cache
def _architecture(gpu: str) -> str:
    """Return the architecture of a GPU by its name; empty if it is unknown."""
    return gpus.load(gpu).architecture if gpu in gpus.names() else ""


def _ratio(size: int, other_size: int | None) -> float:
    """Return the number of doublings between two sizes. An unknown one counts as 1."""
    return abs(log2(size / (other_size or 1)))
