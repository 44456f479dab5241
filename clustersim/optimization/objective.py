"""What a search minimizes: seconds, dollars or energy a token, or the GPUs that reach a speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from clustersim.errors import InputError, option
from clustersim.parallel.job import Job
from clustersim.sweeps.evaluate import SweepCluster

ObjectiveValue = tuple[float, ...]
"""What is minimized: the first number, then the next."""


class Objective(NamedTuple):
    """What is minimized, as a function of a step's seconds that never falls."""

    name: str
    value: Callable[[SweepCluster, Job, float], ObjectiveValue]


def objective(name: str, target: float | None = None) -> Objective:
    """Return what `--objective` names: step, cost, energy or gpus. target: tokens/s that gpus must reach. Raises InputError."""
    asked, speed = option("--objective gpus", "goal='gpus'"), option("--target", "target=")
    if name == "gpus":
        if target is None or not 0 < target < math.inf:
            raise InputError(f"{asked}: needs a speed to reach; add {speed}, in tokens/s above 0")
        return Objective(name, lambda _, job, step: _fewest(job, step, target))
    if name not in _OBJECTIVES:
        raise InputError(f"{option(f'--objective {name}', f'goal={name!r}')}: is none; use step, cost, energy or gpus")
    if target is not None:
        raise InputError(f"{speed}: is the speed that the fewest GPUs must reach; add {asked}, or leave it out")
    return Objective(name, _OBJECTIVES[name])


def _tokens(job: Job) -> float:
    return float(job.training.global_batch * job.training.seq)


def _fewest(job: Job, step: float, target: float) -> ObjectiveValue:
    return (float(job.mesh.size) if _tokens(job) / step >= target else math.inf, step)


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
