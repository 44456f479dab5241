"""Steps of fewer microbatches that are played in the place of long ones, where they prove to be steady."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from clustersim.engine.common_begin import meets_too
from clustersim.engine.compile import Plan, Work
from clustersim.engine.groups import roles
from clustersim.engine.player import Compiled, Engine, Graphs
from clustersim.engine.record import Record
from clustersim.engine.script import lines
from clustersim.engine.tasks import Tasks
from clustersim.memo import Memo
from clustersim.parallel.job import Job
from clustersim.preparation import Preparation, rows

PAYS = 4
"""A step so many times shorter is worth it to play tasks that meet: it may prove not to be steady."""
UNSTEADY = 512
"""So many steps that are not steady are remembered, and of so many kinds of jobs whether tasks of the last one met."""
PlayedStep = tuple[Work, Plan, Record]
"""What a step does, its plan, and what was played of it."""


class ShorterSteps:
    """Tries shorter steps in the place of those of jobs, and remembers which ones do not stand for them."""

    __slots__ = ("_met", "_unsteady", "graphs", "preparation")

    def __init__(self, preparation: Preparation, graphs: Graphs) -> None:
        self.preparation, self.graphs = preparation, graphs
        self._unsteady: dict[Hashable, None] = {}  # structures with numbers of microbatches, the newest last
        self._met = Memo(UNSTEADY)

    def played(self, job: Job, engine: Engine, step: Callable[..., PlayedStep | None]) -> PlayedStep | None:
        """Return a shorter step that stands for a job's; None where none does.

        It may be the job's whole step: where that is played to see whether shorter ones are of use, and they are not.
        step: plays a step of so many microbatches with such options of a `Player`. Where tasks of jobs of a kind meet, the whole
        step is looked at first: what it begins with is that of shorter ones too, which are of no use if tasks meet there.
        """
        kind, doubted = (job.mesh, job.parallelism.schedule, job.parallelism.zero), False
        short = [one for one in self.preparation.short(job) if self._open(job, one[0])]
        for place, (microbatches, steady) in enumerate(short):
            one = engine if self._pays(job, microbatches) else "static"
            if one != engine and not doubted and self._met.get(kind):
                rest = [number for number, _ in short[place:]]
                if (found := step(engine=engine, doubt=partial(self._may_not_meet, job, rest))) is not None:
                    self._failed(job, rest)
                    return found
                doubted = True
            if (found := step(microbatches, engine=one, steady=steady)) is not None:
                self._met.keep(kind, False)
                return found
            self._failed(job, [microbatches])
            if one != engine:
                self._met.keep(kind, not doubted)
        return None

    def _open(self, job: Job, microbatches: int) -> bool:
        """Return whether it is not known that a step of so many microbatches cannot stand for a longer one."""
        return (
            _asked(self.preparation, job, microbatches) not in self._unsteady
            and rows(job, microbatches) not in self.graphs.irregular
        )

    def _failed(self, job: Job, numbers: Iterable[int]) -> None:
        """Remember that steps of such numbers of microbatches do not stand for longer ones."""
        self._unsteady |= {_asked(self.preparation, job, microbatches): None for microbatches in numbers}
        while len(self._unsteady) > UNSTEADY:
            del self._unsteady[next(iter(self._unsteady))]

    def _pays(self, job: Job, microbatches: int) -> bool:
        """Return whether a step of so many microbatches is worth it to play tasks that meet."""
        once, each = lines(self.preparation.written(job, microbatches).scripts)
        return PAYS * (once + each * microbatches) < once + each * job.microbatches

    def _may_not_meet(self, job: Job, numbers: Iterable[int], whole: Compiled, tasks: Tasks) -> bool:
        """Return whether no tasks may meet in a step of one of these numbers of microbatches, as far as the whole one shows."""
        schedules = [self.preparation.schedule(job, number).schedule for number in numbers]
        return not all(meets_too(whole, tasks, roles(job) // job.positions, one) for one in schedules)


def _asked(preparation: Preparation, job: Job, microbatches: int) -> Hashable:
    """Return what decides whether a step of so many microbatches stands for longer ones: also the times of kernels."""
    return preparation.structure(job), job.spec.predictor, job.spec.clocks, microbatches
