"""Who plays the graph of a step: SimPy, or the longest path where that is proved to be the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clustersim.engine.compile import Plan
from clustersim.engine.graph import StepGraph, build, structure
from clustersim.engine.record import Record
from clustersim.engine.simulate import simulate
from clustersim.engine.static import static
from clustersim.engine.steady import Periods, periods

Engine = Literal["simpy", "auto", "static"]
"""Who plays a step: SimPy; the static player where it is proved to be exact, else SimPy; or the static player alone."""
NODES = 2_000_000
"""Nodes of all graphs that are kept, of some hundred bytes each."""


class Steady(NamedTuple):
    """A short step that stands for a longer one: the microbatches of a period, and how many more periods that has."""

    period: int
    further: int


class Graphs:
    """The graphs of the jobs of a sweep, and where they repeat themselves: those asked last, up to a number of nodes."""

    def __init__(self, most: int = NODES) -> None:
        self.most = most
        self.graphs: dict[Hashable, StepGraph] = {}
        self.periods: dict[Hashable, dict[int, Periods | None]] = {}

    def graph(self, plan: Plan, rows: Hashable) -> tuple[Hashable, StepGraph]:
        """Return the graph of a plan, and its key; rows: what tells its schedule from others."""
        key = rows, structure(plan.programs), tuple(plan.members.items())
        found = self.graphs.pop(key) if key in self.graphs else build(plan.programs, plan.members)
        self.graphs[key] = found  # as the newest
        while len(self.graphs) > 1 and sum(len(graph.slot) for graph in self.graphs.values()) > self.most:
            oldest = next(iter(self.graphs))
            del self.graphs[oldest]
            self.periods.pop(oldest, None)
        return key, found

    def repeats(self, key: Hashable, graph: StepGraph, period: int) -> Periods | None:
        """Return where a graph that is kept repeats itself every `period` microbatches."""
        known = self.periods.setdefault(key, {})
        if period not in known:
            known[period] = periods(graph, period)
        return known[period]


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

    def step(self, plan: Plan, progress: Callable[[float], None] = lambda _: None) -> Record | None:
        """Return one step of a plan that is alone on its fabric; None where the player cannot prove its times."""
        graphs = self.graphs or Graphs()
        key, graph = graphs.graph(plan, self.rows)
        record = None
        if self.engine != "simpy":
            record = self._static(plan, graphs, key, graph)
        if record is None and self.engine != "static" and self.steady is None:
            [[record]] = simulate([plan], progress, graphs=[graph])
        return record

    def _static(self, plan: Plan, graphs: Graphs, key: Hashable, graph: StepGraph) -> Record | None:
        if self.steady is None:
            return static(plan, graph)
        found = graphs.repeats(key, graph, self.steady.period)
        return None if found is None else static(plan, graph, found, self.steady.further)


SIMPY = Player()
