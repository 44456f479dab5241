"""Exact branch and bound over the points of a space: the best in order, and proof that none that was left out is better.

Every point has a lower bound of what is minimized (`bound.py`). Points are simulated from the lowest bound upwards, and the
search ends when the next bound is worse than the worst of the best that are asked for: so is every point behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import NamedTuple

from clustersim.config.overrides import parted
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError, option
from clustersim.model.kernel import Kernel
from clustersim.optimization.bound import LowerBounds
from clustersim.parallel.job import Job
from clustersim.parallel.options import KEYS
from clustersim.report.verdicts import verdict
from clustersim.sweeps.evaluate import Row, SweepCluster, SweepInputs, evaluate
from clustersim.sweeps.space import Point

ObjectiveValue = tuple[float, ...]
"""What is minimized: the first number, then the next."""
SearchProgress = Callable[[int, int], None]
"""Is told how many points were simulated, and how many more could be better than what is known."""


FREE = tuple(KEYS[name] for name in ("tp", "pp", "ep", "micro_batch", "recompute", "schedule", "vpp", "zero"))
"""Keys of which all legal values are tried where nobody gives any."""


def free(given: Collection[str]) -> list[str]:
    """Return the keys of which all legal values are tried; given: keys that have values."""
    return [key for key in FREE if key not in given]


class Objective(NamedTuple):
    """What is minimized, as a function of a step's seconds that never falls."""

    name: str
    value: Callable[[SweepCluster, Job, float], ObjectiveValue]


class Candidate(NamedTuple):
    """A point that may fit, and what bounds it from below."""

    value: ObjectiveValue
    place: int
    point: Point
    job: Job


_Kept = tuple[int, Point, Job, SweepCluster, LowerBounds]


class Best(NamedTuple):
    """One of the best points."""

    value: ObjectiveValue
    point: Point
    row: Row


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search came to."""

    best: list[Best]
    """Best first."""
    points: int
    """Of the space."""
    simulated: int
    """How many were simulated."""
    bounded: int
    """How many no simulation needs, as their lower bound is no better than the best."""
    reasons: Mapping[str, int]
    """Points that were out before or when they would have been simulated: illegal, does not fit, failed."""


def objective(name: str, target: float | None = None) -> Objective:
    """Return what `--objective` names: step, cost, energy or gpus. target: tokens/s that gpus must reach. Raises InputError."""
    if name == "gpus":
        if target is None or target <= 0:
            asked = option("--objective gpus", "goal='gpus'")
            raise InputError(
                f"{asked}: needs a speed to reach; add {option('--target', 'target=')}, in tokens/s above 0"
            )
        return Objective(name, lambda _, job, step: _fewest(job, step, target))
    if name not in _OBJECTIVES:
        raise InputError(f"{option(f'--objective {name}', f'goal={name!r}')}: is none; use step, cost, energy or gpus")
    return Objective(name, _OBJECTIVES[name])


def _tokens(job: Job) -> float:
    return float(job.training.global_batch * job.training.seq)


def _fewest(job: Job, step: float, target: float) -> ObjectiveValue:
    return (float(job.mesh.size) if _tokens(job) / step >= target else float("inf"), step)


def _cost(cluster: SweepCluster, job: Job, step: float) -> ObjectiveValue:
    if cluster.rates.rent is None:
        gpu = cluster.simulator.cluster.gpu.name
        asked, remedy = option("--objective cost", "goal='cost'"), option("--price", "price=")
        raise InputError(f"{asked}: nobody says what {gpu} costs; add {remedy}, in USD a GPU-hour")
    return (cluster.rates.rent * step / _tokens(job), step)


_OBJECTIVES: dict[str, Callable[[SweepCluster, Job, float], ObjectiveValue]] = {
    "step": lambda _, job, step: (step / _tokens(job),),
    "cost": _cost,
    "energy": lambda cluster, job, step: (cluster.rates.power * step / _tokens(job), step),
}


def search(
    case: SweepInputs, points: Sequence[Point], wanted: Objective, top: int = 5, show: SearchProgress = lambda *_: None
) -> SearchResult:
    """Return the `top` points that minimize an objective, in order; ties go to the one that comes first in the space.

    Raises InputError where the objective cannot be told.
    """
    out: dict[str, int] = {}
    heap = list(_candidates(case, points, wanted, out))
    heapify(heap)
    best: list[tuple[ObjectiveValue, int, Best]] = []
    simulated = 0
    while heap and (len(best) < top or heap[0].value <= best[top - 1][0]):
        if heap[0].value[0] == float("inf"):
            break
        one = heappop(heap)
        show(simulated, len(heap))
        row = _simulated(case, one, out)
        if row is None:
            continue
        simulated += 1
        value = wanted.value(case.cluster(one.point), one.job, row["step_time_s"])
        best = sorted([*best, (value, one.place, Best(value, one.point, row))])[:top]
    reached = [found for value, _, found in best if value[0] < float("inf")]
    return SearchResult(reached, len(points), simulated, len(heap), out)


def _simulated(case: SweepInputs, one: Candidate, out: dict[str, int]) -> Row | None:
    """Return the row of a candidate, None where it does not fit, which is known before anything is simulated."""
    row = evaluate(case, one.point)
    if row["status"] == "ok":
        return row
    out[row["status"]] = out.get(row["status"], 0) + 1
    return None


def _candidates(
    case: SweepInputs, points: Sequence[Point], wanted: Objective, out: dict[str, int]
) -> Iterator[Candidate]:
    """Yield the points that are legal and may fit, with their bounds."""
    bounds: dict[str, LowerBounds] = {}
    kept: list[_Kept] = []
    for place, point in enumerate(points):
        try:
            cluster = case.cluster(point)
            job = cluster.simulator.placed(case.job(point))
            key = repr(parted(point)[0])
            if key not in bounds:
                bounds[key] = LowerBounds(cluster.simulator.preparation)
            may_fit(bounds[key], job, cluster)
        except OutOfMemoryError:
            out["does not fit"] = out.get("does not fit", 0) + 1
        except InputError:
            out["illegal"] = out.get("illegal", 0) + 1
        else:
            kept.append((place, point, job, cluster, bounds[key]))
    _learn(kept)
    for place, point, job, cluster, own in kept:
        yield Candidate(wanted.value(cluster, job, own.step(job)), place, point, job)


def may_fit(bounds: LowerBounds, job: Job, cluster: SweepCluster) -> None:
    """Raise OutOfMemoryError where a lower bound of a job's memory is more than the GPU has."""
    if verdict(bounds.memory(job), cluster.simulator.cluster.memory) == "does not fit":
        raise OutOfMemoryError("a lower bound of its memory is more than the GPU has")


def _learn(kept: Sequence[_Kept]) -> None:
    """Forecast the kernels of all candidates of a cluster in one call a predictor and clocks."""
    asked: dict[tuple[int, str, object], tuple[LowerBounds, Job, dict[Kernel, None]]] = {}
    for _, _, job, _, own in kept:
        key = id(own), job.spec.predictor, job.spec.clocks
        asked.setdefault(key, (own, job, {}))[2].update(own.kernels(job))
    for own, job, kernels in asked.values():
        with suppress(ClustersimError):
            own.preparation.seconds(job, tuple(kernels))
