"""Steps of fewer microbatches that are played in the place of long ones, where they prove to be steady."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from clustersim.engine.compile import Plan, Work
from clustersim.engine.player import Engine, Graphs
from clustersim.engine.record import Record
from clustersim.parallel.job import Job
from clustersim.preparation import Preparation, rows

UNSTEADY = 512
"""So many steps that are not steady are remembered."""
PlayedStep = tuple[Work, Plan, Record]
"""What a step does, its plan, and what was played of it."""


class ShorterSteps:
    """Tries shorter steps in the place of those of jobs, and remembers which ones do not stand for them."""

    __slots__ = ("_unsteady", "graphs", "preparation")

    def __init__(self, preparation: Preparation, graphs: Graphs) -> None:
        self.preparation, self.graphs = preparation, graphs
        self._unsteady: dict[Hashable, None] = {}  # structures with numbers of microbatches, the newest last

    def played(self, job: Job, engine: Engine, step: Callable[..., PlayedStep | None]) -> PlayedStep | None:
        """Return a shorter step that stands for a job's; None where none does.

        step: plays a step of so many microbatches with such options of a `Player`.
        """
        for microbatches, steady in self.preparation.short(job):
            if not self._open(job, microbatches):
                continue
            if (found := step(microbatches, engine=engine, steady=steady)) is not None:
                return found
            self._failed(job, microbatches)
        return None

    def _open(self, job: Job, microbatches: int) -> bool:
        """Return whether it is not known that a step of so many microbatches cannot stand for a longer one."""
        return (
            _asked(self.preparation, job, microbatches) not in self._unsteady
            and rows(job, microbatches) not in self.graphs.irregular
        )

    def _failed(self, job: Job, microbatches: int) -> None:
        """Remember that a step of so many microbatches does not stand for a longer one."""
        self._unsteady[_asked(self.preparation, job, microbatches)] = None
        while len(self._unsteady) > UNSTEADY:
            del self._unsteady[next(iter(self._unsteady))]


def _asked(preparation: Preparation, job: Job, microbatches: int) -> Hashable:
    """Return what decides whether a step of so many microbatches stands for longer ones: also the times of kernels."""
    return preparation.structure(job), job.spec.predictor, job.spec.clocks, microbatches
