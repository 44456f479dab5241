"""Objective of a search: seconds, dollars or energy per token, or the GPUs that reach a speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError, option
from clustersim.sweeps.evaluate import SweepCluster

ObjectiveValue = tuple[float, float]
"""(minimized value, seconds of a step as tie-breaker)"""


class Load(NamedTuple):
    """Load of steps for the objective: numbers, or columns of them."""

    tokens: Floats | float
    """Tokens per step."""
    gpus: Floats | float
    """Number of GPUs that have a rank."""
    replicas: Floats | float
    """Number of data-parallel replicas."""


class Objective(NamedTuple):
    """The minimized quantity, a non-decreasing function of a step's seconds."""

    name: str
    minimized: Callable[[SweepCluster, Load, Floats], Floats]

    def value(self, cluster: SweepCluster, load: Load, seconds: float) -> ObjectiveValue:
        """Return (minimized value of a step of `seconds`, `seconds`)."""
        return float(self.minimized(cluster, load, np.array(seconds))), seconds


def objective(name: str, target: float | None = None) -> Objective:
    """Return the objective `name`. target: tokens/s that `gpus` must reach. Raises InputError for unknown names or targets."""
    asked, speed = option("--objective gpus", "goal='gpus'"), option("--target", "target=")
    if name == "gpus":
        if target is None or not 0 < target < math.inf:
            raise InputError(f"{asked}: needs a speed to reach; add {speed}, in tokens/s above 0")
        return Objective(name, lambda _, load, step: np.where(load.tokens / step >= target, load.gpus, math.inf))
    if name not in _OBJECTIVES:
        raise InputError(f"{option(f'--objective {name}', f'goal={name!r}')}: is none; use step, cost, energy or gpus")
    if target is not None:
        raise InputError(f"{speed}: is the speed that the fewest GPUs must reach; add {asked}, or leave it out")
    return Objective(name, _OBJECTIVES[name])


def _cost(cluster: SweepCluster, load: Load, step: Floats) -> Floats:
    if cluster.rates.rent is None:
        gpu = cluster.simulator.cluster.gpu.name
        asked, remedy = option("--objective cost", "goal='cost'"), option("--price", "price=")
        raise InputError(f"{asked}: nobody says what {gpu} costs; add {remedy}, in USD a GPU-hour")
    return cluster.rates.rent * step / load.tokens


_OBJECTIVES: dict[str, Callable[[SweepCluster, Load, Floats], Floats]] = {
    "step": lambda _, load, step: step / load.tokens,
    "cost": _cost,
    "energy": lambda cluster, load, step: cluster.rates.power * step / load.tokens,
}
