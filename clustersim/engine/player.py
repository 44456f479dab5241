"""Who plays the graph of a step: SimPy; or the longest path where that is proved to be the same, and else the compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from clustersim.cache import Cache
from clustersim.engine.compile import Plan, Work
from clustersim.engine.contention import Holders
from clustersim.engine.form import Form, Rebinding
from clustersim.engine.graph import StepGraph, structure
from clustersim.engine.instances import build
from clustersim.engine.launching import Seconds
from clustersim.engine.loop import loop
from clustersim.engine.loop_state import LoopJob
from clustersim.engine.network import Network
from clustersim.engine.parts import Drift
from clustersim.engine.program import Program
from clustersim.engine.record import Record
from clustersim.engine.simulate import simulate
from clustersim.engine.slowing import slowing
from clustersim.engine.static import played, static
from clustersim.engine.steady import Periods, periods, steady
from clustersim.engine.tasks import Retimed, TaskKinds, Tasks

Engine = Literal["simpy", "auto", "static"]
"""Who plays a step: SimPy; the longest path where that is proved to be exact, and the compiled loop where tasks slow each
other; or the longest path alone."""
ROOM = 384 << 20
"""Bytes of all graphs that are kept, with what was compiled with them."""
NODE, TASK = 230, 1_500
"""Bytes of a node of a graph with what is known of its periods, and of a compiled task with its activity."""


class Steady(NamedTuple):
    """A short step that stands for a longer one: the microbatches of a period, and how many more periods that has."""

    period: int
    further: int


@dataclass(frozen=True)
class Compiled:
    """A plan and its graph, which serve all jobs that differ in the times of their kernels alone."""

    plan: Plan
    graph: StepGraph
    tasks: Tasks
    periods: Periods | None
    """Where the graph repeats itself, if that was asked."""
    holders: Holders
    form: Form | None = None
    """That of the job it was compiled for first, if others of it may come."""
    asked: Hashable = None
    """What its graph is kept by."""

    @cached_property
    def kinds(self) -> TaskKinds:
        """Which tasks take as long as each other, whatever the job."""
        return self.tasks.kinds if isinstance(self.tasks, Retimed) else TaskKinds(self.plan, self.tasks)

    def rebound(self, rebinding: Rebinding) -> Compiled:
        """Return the same for another job of one form: it loads links at the same peaks."""
        return replace(self, plan=rebinding.plan, tasks=self.kinds.rebound(rebinding.plan, rebinding).made)

    def steady(self, record: Record, further: int) -> Record | None:
        """Return the record of a step with so many further periods; None when it was not steady."""
        if self.periods is None:
            return None
        return steady(record, self.periods, further, self.holders, lambda: self.drift)

    @cached_property
    def drift(self) -> Drift:
        """How parts of the graph drift apart in further periods."""
        assert self.periods is not None
        return Drift(self.graph, self.periods.part, self.periods.later, self.holders)


class KeptGraph(NamedTuple):
    """A graph, with what was worked out of it."""

    graph: StepGraph
    known: dict[int, Periods | None]
    """Where it repeats itself every so many microbatches."""
    compiled: Cache
    """What was compiled with it, by structure."""

    def periods(self, period: int, program: Program) -> Periods | None:
        """Return where the graph repeats itself every `period` microbatches; program: of its first rank."""
        if period not in self.known:
            middle = int(self.graph.labels.microbatch.max()) // 2
            passes = sum(middle <= action.microbatch < middle + period for _, action in program.turns())
            self.known[period] = periods(self.graph, period, passes)
        return self.known[period]


class Graphs:
    """The graphs of the jobs of a sweep, the newest, each with all that was compiled with it: both go together."""

    __slots__ = ("_most", "compiled", "forms", "graphs")

    def __init__(self, most: float = ROOM) -> None:
        self._most = most
        self.graphs = Cache(most, lambda kept: NODE * len(kept.graph) + kept.compiled.weight)
        self.compiled: WeakValueDictionary[Hashable, Compiled] = WeakValueDictionary()
        """What was compiled, by structure; its graph keeps it."""
        self.forms: WeakValueDictionary[Hashable, Compiled] = WeakValueDictionary()
        """What was compiled for the first job of a form."""

    def asked(self, plan: Plan, rows: Hashable) -> Hashable:
        """Return what the graph of a plan is kept by; rows: what tells its schedule from others."""
        return rows, structure(plan.programs), tuple(plan.members.items())

    def graph(self, plan: Plan, asked: Hashable) -> KeptGraph:
        """Return the graph of a plan."""

        def built() -> KeptGraph:
            tasks = Cache(self._most, lambda compiled: TASK * len(compiled.tasks))
            return KeptGraph(build(plan.programs, plan.members), {}, tasks)

        return self.graphs.once(asked, built)

    def keep(self, structure: Hashable, compiled: Compiled) -> None:
        """Keep what was compiled for jobs of a structure as long as its graph, which is the newest again."""
        kept = self.graphs.get(compiled.asked)
        if kept is None:  # gone, while a record still has what was compiled
            return
        kept.compiled.keep(structure, compiled)
        self.graphs.keep(compiled.asked, kept)
        self.compiled[structure] = compiled


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the steps of one job."""

    engine: Engine = "simpy"
    graphs: Graphs | None = None
    """Where graphs are kept for other jobs; None: they are not."""
    rows: Hashable = None
    """What tells the schedule of the job from others of the same programs."""
    steady: Steady | None = None
    """The step is a short one; then the static player alone can tell the whole."""
    structure: Hashable = None
    """What tells the job from those that differ in the times of their kernels alone; None: nothing compiled is kept."""

    def again(self, seconds: Sequence[Seconds]) -> tuple[Plan, Record] | None:
        """Play what was compiled for another job of the structure; None where there is none, or no proof."""
        found = None if self.graphs is None or self.engine == "simpy" else self.graphs.compiled.get(self.structure)
        if found is None:
            return None
        record = self.played(found, found.kinds.timed(seconds))
        return None if record is None else (found.plan, record)

    def step(
        self, plan: Plan, progress: Callable[[float], None] = lambda _: None, own: Form | None = None
    ) -> Record | None:
        """Return one step of a plan that is alone on its fabric; None where the player cannot prove its times.

        own: the form of the job, if others of it may come.
        """
        graphs = self.graphs or Graphs()
        compiled = self.compiled(plan, graphs, own)
        record = self.played(compiled, compiled.tasks, progress)
        if self.structure is not None and record is not None:
            graphs.keep(self.structure, compiled)
            if own is not None:
                graphs.forms[self.rows, self.steady and self.steady.period, own.key] = compiled
        return record

    def alike(self, work: Work, network: Network, own: Form | None) -> tuple[Plan, Record] | None:
        """Play what was compiled for another job of the form of this one; None where there is none, or no proof."""
        if own is None or self.graphs is None or self.engine == "simpy":
            return None
        found = self.graphs.forms.get((self.rows, self.steady and self.steady.period, own.key))
        if found is None or found.form is None:
            return None
        rebinding = Rebinding(found.plan, found.form, work, network, own)
        compiled = found.rebound(rebinding)
        record = self.played(compiled, compiled.tasks) if rebinding.fits else None
        if record is None:
            return None
        self.graphs.keep(self.structure, compiled)
        return compiled.plan, record

    def compiled(self, plan: Plan, graphs: Graphs, own: Form | None = None) -> Compiled:
        """Return a plan with its graph; own: as in `step`."""
        asked = graphs.asked(plan, self.rows)
        kept = graphs.graph(plan, asked)
        repeats = kept.periods(self.steady.period, plan.programs[0]) if self.steady else None
        tasks = Tasks(kept.graph, kept.graph.found(plan.programs))
        holders = Holders(kept.graph, tasks.activities, plan.network.capacity)
        return Compiled(plan, kept.graph, tasks, repeats, holders, own, asked)

    def played(
        self, compiled: Compiled, tasks: Tasks, progress: Callable[[float], None] = lambda _: None
    ) -> Record | None:
        """Return the step by the first player that can tell it; where a short one is to stand for it, if it is steady."""
        graph = compiled.graph
        if self.engine == "simpy":
            [[record]] = simulate([compiled.plan], progress, graphs=[graph], tasks=[tasks])
            return record
        if self.steady is not None and compiled.periods is None:
            return None
        capacity, meeting = compiled.plan.network.capacity, self.engine == "auto"
        found = static(capacity, graph, tasks, compiled.holders, meeting)
        return found if found is None or self.steady is None else compiled.steady(found, self.steady.further)


def together(
    jobs: Sequence[Compiled], steps: int, starts: Sequence[float], progress: Callable[[float], None]
) -> tuple[list[Record], ...]:
    """Return the complete steps of jobs that share a fabric, played by the loop; the arguments are those of `loop`."""
    own = [LoopJob.of(job.graph, job.tasks, job.holders, slowing(job.graph, job.tasks)) for job in jobs]
    lines = loop(jobs[0].plan.network.capacity, own, steps, starts, progress)
    return tuple([played(job.graph, job.tasks, step) for step in line] for job, line in zip(jobs, lines, strict=True))


SIMPY = Player()
