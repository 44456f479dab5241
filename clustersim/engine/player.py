"""Who plays the graph of a step: SimPy; or the longest path where that is proved to be the same, and else the compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from clustersim.cache import Cache
from clustersim.engine.compile import Plan
from clustersim.engine.contention import LinkUse, StreamUse
from clustersim.engine.expand_periods import expanded
from clustersim.engine.graph import StepGraph, structure
from clustersim.engine.instances import build
from clustersim.engine.launching import Seconds
from clustersim.engine.loop import LoopStep, loop
from clustersim.engine.loop_state import LoopJob
from clustersim.engine.program import Program
from clustersim.engine.record import Period, Record
from clustersim.engine.simulate import simulate, tell_if_long
from clustersim.engine.slowing import slowing
from clustersim.engine.static import longest
from clustersim.engine.steady_state import Periods, periods, steady
from clustersim.engine.tasks import TaskKinds, Tasks

Engine = Literal["simpy", "auto", "static"]
"""Who plays a step: SimPy; the longest path where that is proved to be exact, and the compiled loop where tasks slow each
other; or the longest path alone."""
ROOM = 640 << 20
"""Bytes of all graphs that are kept, with what was compiled with them."""
NODE, ROW, TASK = 96, 28, 1_100
"""Bytes of a node of a graph with what is known of its periods, of a node and link that it holds, and of a compiled task with
its activity."""


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
    links: LinkUse
    graph_key: Hashable = None
    """What its graph is kept by."""

    @property
    def microbatches(self) -> int:
        """Those of the graph."""
        return int(self.graph.labels.microbatch.max()) + 1

    @cached_property
    def streams(self) -> StreamUse:
        """The links that each stream of a rank uses."""
        return StreamUse.of(self.graph, self.tasks, self.links)

    @cached_property
    def kinds(self) -> TaskKinds:
        """Which tasks take as long as each other, whatever the job."""
        return TaskKinds(self.plan, self.tasks)


class KeptGraph(NamedTuple):
    """A graph, and where it repeats itself every so many microbatches, if that was asked."""

    graph: StepGraph
    known: dict[int, Periods | None]

    def periods(self, period: int, passes: int) -> Periods | None:
        """Return where the graph repeats itself every `period` microbatches; passes: those of a rank in a period."""
        if period not in self.known:
            self.known[period] = periods(self.graph, period, passes)
        return self.known[period]


class PlanCache:
    """The graphs of the jobs of a sweep and the plans that were compiled for them, up to a bound in bytes."""

    __slots__ = ("kept",)

    def __init__(self, most: float = ROOM) -> None:
        self.kept = Cache(most, _bytes)

    def graph(self, plan: Plan, key: Hashable) -> KeptGraph:
        """Return the graph of a plan; key: as `graph_key` has it."""
        return self.kept.once(("graph", key), lambda: KeptGraph(build(plan.programs, plan.members), {}))

    def longer(self, graph: StepGraph, period: Period, more: int, key: Hashable) -> KeptGraph:
        """Return a graph lengthened by `more` copies of its last whole period; key: of the longer graph."""
        return self.kept.once(("graph", key), lambda: KeptGraph(expanded(graph, period, more), {}))

    def get(self, structure: Hashable, more: int = 0) -> Compiled | None:
        """Return the compiled plan of a structure, lengthened by `more` periods, if the cache still has it."""
        found = cast(Compiled | None, self.kept.get((f"job + {more}" if more else "job", structure)))
        if found is not None:
            self.kept.get(("graph", found.graph_key))  # last, so that no graph goes before what was compiled with it
        return found

    def keep(self, structure: Hashable, compiled: Compiled, more: int = 0) -> None:
        """Keep what was compiled for a job; more: as in `get`."""
        self.kept.keep((f"job + {more}" if more else "job", structure), compiled)
        self.kept.get(("graph", compiled.graph_key))  # as in `get`

    def all(self, kind: str) -> list[Any]:
        """Return all that is kept of a kind, the least recently used first."""
        return [one for (of, _), one in cast(list[tuple[tuple[str, Hashable], Any]], self.kept.items()) if of == kind]


def _bytes(kept: KeptGraph | Compiled) -> float:
    if isinstance(kept, Compiled):
        return TASK * len(kept.tasks) + ROW * len(kept.links.user)
    return NODE * len(kept.graph)


def _passes(program: Program, period: int) -> int:
    """Return how many passes a rank has in a period."""
    turns = program.turns()
    middle = max(action.microbatch for _, action in turns) // 2
    return sum(middle <= action.microbatch < middle + period for _, action in turns)


def graph_key(plan: Plan, rows: Hashable) -> Hashable:
    """Return what tells the graph of a plan from others; rows: what tells its schedule from others."""
    return rows, structure(plan.programs), tuple(plan.members.items())


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the steps of one job."""

    engine: Engine = "simpy"
    cache: PlanCache | None = None
    """Where graphs and plans are kept for other jobs; None: they are not."""
    rows: Hashable = None
    """What tells the schedule of the job from others of the same programs."""
    steady: Steady | None = None
    """The step is a short one that stands for the whole, if it proves to be steady."""
    structure: Hashable = None
    """What tells the job from those that differ in the times of their kernels alone; None: nothing compiled is kept."""

    def replay_cached(self, seconds: Sequence[Seconds]) -> tuple[Plan, Record] | None:
        """Play what was compiled for another job of the structure; None where there is none, or no proof."""
        found = None if self.cache is None or self.engine == "simpy" else self.cache.get(self.structure)
        if found is None:
            return None
        record = self.shortest(found, found.kinds.timed(seconds))
        return None if record is None else (found.plan, record)

    def step(self, plan: Plan, progress: Callable[[float], None] = lambda _: None) -> Record | None:
        """Return one step of a plan that is alone on its fabric; None where the player cannot prove its times."""
        compiled = self.compiled(plan)
        record = self.shortest(compiled, compiled.tasks, progress)
        if self.structure is not None and self.cache is not None and record is not None:
            self.cache.keep(self.structure, compiled)
        return record

    def compiled(self, plan: Plan) -> Compiled:
        """Return a plan with its graph."""
        key = graph_key(plan, self.rows)
        kept = (self.cache or PlanCache()).graph(plan, key)
        repeats = (
            kept.periods(self.steady.period, _passes(plan.programs[0], self.steady.period)) if self.steady else None
        )
        tasks = Tasks(kept.graph, kept.graph.found(plan.programs))
        links = LinkUse(kept.graph, tasks.activities, plan.network.capacity)
        return Compiled(plan, kept.graph, tasks, repeats, links, key)

    def shortest(
        self, compiled: Compiled, tasks: Tasks, progress: Callable[[float], None] = lambda _: None
    ) -> Record | None:
        """Return the step, played with as few of its periods as prove it to be steady, or with all; else as `simulate`."""
        if self.steady is None:
            return self.simulate(compiled, tasks, progress)
        if compiled.periods is None:
            return None
        further, known = self.steady.further, compiled.microbatches // self.steady.period
        for more in (*(some for some in (0, 2 * known, 5 * known) if some < further), further):
            own = self.extended(compiled, more)
            record = self.simulate(own, tasks.on(own.graph), progress, further - more)
            if record is not None:
                return record
        return None

    def extended(self, compiled: Compiled, more: int) -> Compiled:
        """Return a compiled plan whose graph is longer by `more` periods."""
        cache, key, repeated = self.cache or PlanCache(), (compiled.graph_key, more), compiled.periods
        if not more or repeated is None or self.steady is None:
            return compiled
        if self.structure is not None and (known := cache.get(self.structure, more)) is not None:
            return known
        kept = cache.longer(compiled.graph, repeated.last, more, key)
        tasks = compiled.tasks.on(kept.graph)
        repeats = kept.periods(self.steady.period, repeated.last.passes)
        links = LinkUse(kept.graph, tasks.activities, compiled.plan.network.capacity)
        found = Compiled(compiled.plan, kept.graph, tasks, repeats, links, key)
        if self.structure is not None:
            cache.keep(self.structure, found, more)
        return found

    def simulate(
        self,
        compiled: Compiled,
        tasks: Tasks,
        progress: Callable[[float], None] = lambda _: None,
        further: int = 0,
    ) -> Record | None:
        """Return the record of a step, lengthened by `further` periods if it is steady; None where its times cannot be proved.

        Here it is decided who plays. Nothing slows a step if, with the times of its longest path, no link is asked for more than
        it has and no computation has communication beside it that takes from it: then the longest path is the step. SimPy needs
        no fabric for such a step. The loop plays all others, unless only what is proved was asked for.
        """
        graph, links, losses = compiled.graph, compiled.links, slowing(compiled.graph, tasks)
        ends = longest(graph, tasks.seconds)
        starts = graph.starts(ends)
        contention = links.contention(tasks.times, starts, ends, compiled.streams)
        quiet = not losses and not len(contention.node)
        if self.engine == "simpy":
            if not quiet:
                tell_if_long(links, tasks, contention, starts, ends)
            [[record]] = simulate([compiled.plan], progress, graphs=[graph], tasks=[tasks], shared=not quiet)
            return record
        if further and compiled.periods is None:
            return None
        if quiet:
            record = Record(graph, tasks, starts, ends, {}, 0.0, float(ends.max()), player="static")
        elif self.engine == "static" or (
            self.steady is not None and compiled.microbatches > further * self.steady.period > 0
        ):
            return None  # to play more than half of a step is not worth it, which may prove not to be steady
        else:
            job = LoopJob.of(graph, tasks, links, losses)
            [[step]] = loop(compiled.plan.network.capacity, [job])
            record = _played(graph, tasks, step)
            contention = links.contention(tasks.times, record.starts, record.ends, compiled.streams)
        if not further or compiled.periods is None:
            return record
        return steady(record, losses, contention, compiled.periods, further, links)


def together(
    jobs: Sequence[Compiled], steps: int, starts: Sequence[float], progress: Callable[[float], None]
) -> tuple[list[Record], ...]:
    """Return the complete steps of jobs that share a fabric, played by the loop; the arguments are those of `loop`."""
    own = [LoopJob.of(job.graph, job.tasks, job.links, slowing(job.graph, job.tasks)) for job in jobs]
    lines = loop(jobs[0].plan.network.capacity, own, steps, starts, progress)
    return tuple([_played(job.graph, job.tasks, step) for step in line] for job, line in zip(jobs, lines, strict=True))


def _played(graph: StepGraph, tasks: Tasks, step: LoopStep) -> Record:
    """Return the record of a step that the loop has played."""
    times = graph.starts(step.ends), step.ends, step.segment_ends, step.begin, float(step.ends.max())
    return Record(graph, tasks, *times, step.events, step.solves, "loop", slowed=step.slowed)


SIMPY = Player()
