"""Jobs that were simulated together: what their summary, tables and trace are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan
from clustersim.engine.memory import RankMemory
from clustersim.engine.record import Record
from clustersim.parallel.job import Job
from clustersim.report.links import link_bytes
from clustersim.report.summary import Forecast
from clustersim.report.trace import chosen
from clustersim.topology.model import Topology


class Alone(NamedTuple):
    """One step of a job on its nodes with no other on the cluster."""

    plan: Plan
    record: Record
    memory: list[RankMemory]
    """Of each pipeline rank."""
    forecast: Forecast
    """What is known of the times of its kernels."""


class JobSteps(NamedTuple):
    """One of the jobs: its nodes, the GPU of every rank, its step alone, and its steps beside the others."""

    name: str
    job: Job
    nodes: Ints
    gpus: Ints
    start: float
    alone: Alone
    plan: Plan
    steps: tuple[Record, ...]
    """All complete ones."""
    counted: tuple[Record, ...]
    """Those that began when every job had started."""

    @property
    def mean(self) -> float:
        """Mean seconds of a step beside the others."""
        return float(np.mean([step.end - step.begin for step in self.counted]))

    def traced(self, jobs: int) -> list[int]:
        """Return the rank cells of this job that the trace of so many jobs shows, whole and with all their steps."""
        return chosen(self.steps, self.plan, self.job.mesh.size // self.job.parallelism.pp, jobs)


@dataclass(frozen=True)
class Shared:
    """Jobs that were simulated together on one cluster."""

    cluster: Topology
    placement: str
    steps: int
    jobs: tuple[JobSteps, ...]

    @cached_property
    def rates(self) -> Floats:
        """Mean bytes/s that each job puts on each link, (jobs, links): the bytes of a step over its mean time."""
        return np.stack([link_bytes(t.plan) / t.mean for t in self.jobs])

    @property
    def window(self) -> tuple[float, float]:
        """The seconds between which the counted steps of every job are on record."""
        return max(t.counted[0].begin for t in self.jobs), min(t.counted[-1].end for t in self.jobs)
