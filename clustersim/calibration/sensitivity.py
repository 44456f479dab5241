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
"""Least and largest change of a logarithm that a difference is taken over, within which it is the constant's spread: a step of
rates that NCCL takes from rows of a table must not decide."""
NONE = 1e-4
"""Change of the step's logarithm by a slower part below which the part has no share, so that a faster one is not simulated."""


def sensitivities(
    cluster: Document, job: Job, constants: Iterable[Constant], simulator: Simulator | None = None
) -> dict[str, float]:
    """Return {name: d log(step seconds) / d log(constant)} of a job's step. Raises InputError if the job does not fit.

    Central differences over the constant's spread; one-sided where it cannot be larger, or where a slower part changes nothing.
    simulator: of this cluster, if there is one, whose forecasts of kernels and of the job are reused.
    """
    known = simulator or Simulator(build(cluster))
    return slopes(constants, lambda changes: changed_step(cluster, job, changes, known))


def slopes(constants: Iterable[Constant], forecast: Callable[[dict[str, object]], float]) -> dict[str, float]:
    """Return {name: d log(forecast) / d log(constant)} at usual constants. forecast: function of changed keys."""
    usual = log(forecast({}))

    def change(constant: Constant, factor: float) -> float:
        """Return the change of the forecast's logarithm for a constant `factor` times as large."""
        return log(forecast(constant.changes(factor))) - usual

    return {one.name: slope(one, partial(change, one)) for one in constants}


def slope(constant: Constant, change: Callable[[float], float]) -> float:
    """Return d log(forecast) / d log(constant).

    change: function from a factor on the constant to the change of the log of the forecast.
    """
    wide = min(max(constant.spread, NARROW), WIDE)
    slower, faster = (wide, -wide) if constant.slows else (-wide, min(wide, log(constant.most)))
    first = change(exp(slower))
    if abs(first) < NONE or faster == 0:
        return first / slower
    return (change(exp(faster)) - first) / (faster - slower)


def changed_step(cluster: Document, job: Job, changes: dict[str, object], known: Simulator) -> float:
    """Return the seconds of the step with changed keys of the cluster; kernel forecasts are reused."""
    of_cluster, of_job = parted(changes)
    made = known.like(build(overridden(cluster, of_cluster))) if of_cluster else known
    return made.seconds(job.changed(of_job) if of_job else job)
