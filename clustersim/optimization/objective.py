"""Objective of a search: time, rent, dollars of owned machines or energy per token, or the GPUs that reach a speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError, option
from clustersim.sweeps.evaluate import SweepCluster

OBJECTIVES = ("soonest", "rent", "owned", "gpus", "energy")
"""Names of objectives, of a step as of a whole run."""
ObjectiveValue = tuple[float, float]
"""(minimized value, seconds per token as tie-breaker)"""


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
        """Return (minimized value, seconds per token) of a step of `seconds`."""
        return float(self.minimized(cluster, load, np.array(seconds))), float(seconds / load.tokens)


def objective(name: str, target: float | None = None) -> Objective:
    """Return one of `OBJECTIVES` by its name. target: tokens/s that `gpus` must reach.

    Raises InputError for an invalid name or target.
    """
    check(name)
    goal, speed = option("--objective gpus", "goal='gpus'"), option("--target", "target=")
    if name == "gpus":
        if target is None or not 0 < target < math.inf:
            raise InputError(f"{goal}: needs a speed to reach; add {speed}, in tokens/s above 0")
        return Objective(name, lambda _, load, step: np.where(load.tokens / step >= target, load.gpus, math.inf))
    if target is not None:
        raise InputError(f"{speed}: is the speed that the fewest GPUs must reach; add {goal}, or leave it out")
    return Objective(name, partial(_per_token, name))


def check(name: str) -> None:
    """Raise InputError unless `name` is one of `OBJECTIVES`."""
    if name not in OBJECTIVES:
        goal = option(f"--objective {name}", f"goal={name!r}")
        raise InputError(f"{goal}: is not an objective; use {', '.join(OBJECTIVES[:-1])} or {OBJECTIVES[-1]}")


def priced(name: str, *clusters: SweepCluster) -> None:
    """Raise InputError if a price that an objective needs is unknown for all clusters."""
    remedy = {
        "rent": f"{option('--price', 'price=')}, in USD per GPU-hour",
        "owned": f"the price of its node by {option('--costs FILE', 'costs=FILE')}",
    }
    if name in remedy and clusters and all(getattr(cluster.rates, name) is None for cluster in clusters):
        goal, gpu = option(f"--objective {name}", f"goal={name!r}"), clusters[0].simulator.cluster.gpu.name
        raise InputError(f"{goal}: the price of {gpu} is unknown; add {remedy[name]}")


def _per_token(name: str, cluster: SweepCluster, load: Load, step: Floats) -> Floats:
    """Return the seconds, USD or J per token (by `name`) of steps of `step` seconds. Raises InputError for an unknown price."""
    priced(name, cluster)
    rates = {"soonest": 1.0, "rent": cluster.rates.rent, "owned": cluster.rates.owned, "energy": cluster.rates.power}
    return (rates[name] or 0.0) * step / load.tokens
