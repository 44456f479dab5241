"""Effect of a constant on a step: differences of simulated steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import exp, log

from clustersim.calibration.constants import Constant
from clustersim.config.overrides import parted
from clustersim.config.yaml import Document
from clustersim.parallel.job import Job
from clustersim.simulation import Simulator
from clustersim.topology.build import build, overridden

NARROW, WIDE = 0.04, 0.15
"""Limits of the change of a constant's logarithm in a difference; within them it is the constant's spread. A small change might
only cross one step of the rates that NCCL takes from rows of a table."""
NONE = 1e-4
"""Change of the step's logarithm below which a slower constant has no effect, so that a faster one is not simulated."""


def sensitivities(
    cluster: Document, job: Job, constants: Iterable[Constant], simulator: Simulator | None = None
) -> dict[str, float]:
    """Return {name: d log(step seconds) / d log(constant)} of a job's step. Raises InputError if the job does not fit.

    Central differences over the constant's spread; one-sided if it cannot be larger, or if a slower constant changes nothing.
    simulator: an existing simulator of this cluster, whose forecasts of kernels and of the job are reused.
    """
    reused = simulator or Simulator(build(cluster))
    return slopes(constants, lambda changes: changed_step(cluster, job, changes, reused))


def slopes(constants: Iterable[Constant], forecast: Callable[[dict[str, object]], float]) -> dict[str, float]:
    """Return {name: d log(forecast) / d log(constant)} at usual constants. forecast: function of {changed key: value}."""
    usual = log(forecast({}))

    def change(constant: Constant, factor: float) -> float:
        """Return the change of the forecast's logarithm for a constant `factor` times as large."""
        return log(forecast(constant.changes(factor))) - usual

    return {constant.name: slope(constant, partial(change, constant)) for constant in constants}


def slope(constant: Constant, change: Callable[[float], float]) -> float:
    """Return d log(forecast) / d log(constant), from one or two differences of about the constant's spread.

    change: function from a factor on the constant to the change of the logarithm of the forecast.
    """
    width = min(max(constant.spread, NARROW), WIDE)
    slower, faster = (width, -width) if constant.slows else (-width, min(width, log(constant.most)))
    first = change(exp(slower))
    if abs(first) < NONE or faster == 0:
        return first / slower
    return (change(exp(faster)) - first) / (faster - slower)


def changed_step(cluster: Document, job: Job, changes: dict[str, object], simulator: Simulator) -> float:
    """Return the step's seconds with changed keys of cluster and job. simulator: of the unchanged cluster, for its caches."""
    cluster_changes, job_changes = parted(changes)
    changed = simulator.with_cluster(build(overridden(cluster, cluster_changes))) if cluster_changes else simulator
    return changed.seconds(job.changed(job_changes) if job_changes else job)
