"""How much longer a step takes where a constant is larger: differences of simulated steps."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

from clustersim.calibration.constants import Constant
from clustersim.config.overrides import parted
from clustersim.config.yaml import Document
from clustersim.parallel.job import Job
from clustersim.simulation import Simulator
from clustersim.topology.build import build
from clustersim.topology.override import override

NARROW, WIDE = 0.04, 0.15
"""Least and largest change of a logarithm that a difference is taken over, within which it is the constant's spread: a step of
rates that NCCL takes from rows of a table must not decide."""
NONE = 1e-4
"""A slower part that changes the step's logarithm by less has no share in it, so that a faster one is not looked at."""


def sensitivities(
    cluster: Document, job: Job, constants: Iterable[Constant], simulator: Simulator | None = None
) -> dict[str, float]:
    """Return {name: d log(step seconds) / d log(constant)} of a job's step on a cluster. Raises InputError.

    Central differences over the constant's spread; one-sided where it cannot be larger, or where a slower part changes nothing.
    simulator: of this cluster, where there is one: what it knows of kernels and of the job is not worked out again.
    """
    known = simulator or Simulator(build(cluster))
    usual = log(known.seconds(job))
    return {one.name: _sensitivity(cluster, job, one, known, usual) for one in constants}


def _sensitivity(cluster: Document, job: Job, constant: Constant, known: Simulator, usual: float) -> float:
    wide = min(max(constant.spread, NARROW), WIDE)

    def change(by: float) -> tuple[float, float]:
        seconds = changed_step(cluster, job, constant.changes(exp(by)), known)
        return by, log(seconds) - usual

    slower, faster = (wide, -wide) if constant.slows else (-wide, min(wide, log(constant.most)))
    first = change(slower)
    if abs(first[1]) < NONE or faster == 0:
        return first[1] / slower
    other = change(faster)
    return (other[1] - first[1]) / (other[0] - first[0])


def changed_step(cluster: Document, job: Job, changes: dict[str, object], known: Simulator) -> float:
    """Return the seconds of the step with keys of the cluster changed; kernels are not forecast again."""
    of_cluster, of_job = parted(changes)
    made = known.like(build(override(cluster, of_cluster))) if of_cluster else known
    return made.seconds(job.changed(of_job) if of_job else job)
