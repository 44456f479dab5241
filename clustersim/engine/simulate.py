"""SimPy plays the graphs of jobs that share a fabric, step after step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL

from clustersim.arrays import Floats
from clustersim.engine.compile import Plan
from clustersim.engine.compiled import FASTER, tell
from clustersim.engine.contention import Contention, LinkUse
from clustersim.engine.fabric import Fabric
from clustersim.engine.graph import StepGraph
from clustersim.engine.instances import build
from clustersim.engine.pattern import JOIN
from clustersim.engine.record import Record
from clustersim.engine.slowing import Done, SlowedFabric, slowing
from clustersim.engine.tasks import Tasks
from clustersim.errors import SimulationError
from clustersim.garbage import uncollected

LONG = 10.0
"""Seconds of a simulation that are told before it begins."""
TRANSFER, LOAD = 27e-6, 0.04e-6
"""Seconds of computer time that a transfer takes, and a solution for each link that transfers under way hold: measured with 0.9
million transfers (gpt3 on leaf_spine_32) and with 15,000 solutions (llama3_70b on oversubscribed_roce_1152)."""


def tell_if_long(links: LinkUse, tasks: Tasks, contention: Contention, starts: Floats, ends: Floats) -> None:
    """Tell about how many seconds of computer time SimPy needs for transfers that share links, if they are many.

    starts, ends: of nodes if nothing slowed them. Each transfer of nodes that contend ends at a time of its own; then rates are
    solved for all that is under way.
    """
    transfers = np.array([sum(flow is not None for flow in one.flows) for one in tasks.activities])[links.slot]
    some, count = np.isin(links.node, contention.node), np.diff(links.row)
    begun, over = links.under_way(tasks.times, starts, ends)

    def before(times: Floats) -> Floats:
        """Return how many links nodes use whose time lies before that of each one that contends."""
        order = np.argsort(times)
        held = np.append(0, np.cumsum(count[order]))
        return held[np.searchsorted(times[order], over[some])]

    under_way = before(begun) - before(over)
    seconds = float(TRANSFER * transfers.sum() + LOAD * (under_way * transfers[some]).sum())
    if seconds > LONG:
        tell(f"simulate transfers that share links by SimPy: about {seconds:.0f} s; {FASTER}")


def simulate(
    plans: Sequence[Plan],
    progress: Callable[[float], None] = lambda _: None,
    steps: int = 1,
    starts: Sequence[float] = (),
    graphs: Sequence[StepGraph] = (),
    tasks: Sequence[Tasks] = (),
    shared: bool = True,
) -> tuple[list[Record], ...]:
    """Play the plans of jobs that share a cluster, and return the complete steps of each job.

    Every job starts at its time of `starts` (seconds; default: all at 0) and repeats its step until each has completed
    `steps` that began when all had started. A step begins when all ranks of the job have ended the one before. progress is
    told the share of the tasks that are done, a hundred times at most. graphs, tasks: of the plans, where they are known.
    shared: whether transfers slow each other on links; else every task takes as long as alone. Raises SimulationError at a
    deadlock.
    """
    env = Environment()
    fabric = Fabric(env, plans[0].network.capacity.tolist())
    graphs = graphs or [build(plan.programs, plan.members) for plan in plans]
    tasks = tasks or [Tasks(graph, graph.found(plan.programs)) for graph, plan in zip(graphs, plans, strict=True)]
    meter = Meter(steps * sum(map(len, graphs)), progress)
    stop = env.event()
    target = _Target(stop, max(starts, default=0.0), dict.fromkeys(range(len(plans)), steps))
    jobs = [
        _Repeated(env, fabric, graph, own, meter, partial(target.reached, number), shared)
        for number, (graph, own) in enumerate(zip(graphs, tasks, strict=True))
    ]
    for job, start in zip(jobs, starts or [0.0] * len(jobs), strict=True):
        env.timeout(start).callbacks.append(job.begin)
    with uncollected():
        try:
            env.run(until=stop)  # not until the queue is empty: timers that were overtaken are still in it
        except RuntimeError as error:
            raise SimulationError(f"deadlock at {env.now} s: {error}") from None
    return tuple([job.record(step, env.events, fabric.solves) for step in job.steps] for job in jobs)


class Environment(simpy.Environment):
    """SimPy's, which also counts events."""

    events = 0

    def schedule(self, event: simpy.Event, priority: Any = NORMAL, delay: float = 0.0) -> None:
        """Schedule and count an event."""
        self.events += 1
        super().schedule(event, priority, delay)


class Meter:
    """Counts nodes and reports every hundredth of all."""

    def __init__(self, total: int, report: Callable[[float], None]) -> None:
        self.total, self.report, self.done, self.next = total or 1, report, 0, 0

    def tick(self, nodes: int) -> None:
        """Count nodes."""
        self.done += nodes
        if self.done >= self.next:
            self.next += self.total // 100 + 1
            self.report(min(self.done / self.total, 1.0))


class _Target:
    """Stops the simulation when no job has steps left to do; those that began before `since` do not count: not all ran yet."""

    def __init__(self, stop: simpy.Event, since: float, left: dict[int, int]) -> None:
        self.stop, self.since, self.left = stop, since, left

    def reached(self, job: int, begin: float) -> bool:
        """Count a step of a job; return whether every job has its steps."""
        if begin >= self.since:
            self.left[job] -= 1
        over = max(self.left.values()) <= 0
        if over and not self.stop.triggered:  # others may end at the same moment
            self.stop.succeed()
        return over


class _Step:
    """One step under way: when nodes began and ended, and how many of their predecessors are not over."""

    __slots__ = ("begin", "ends", "left", "missing", "segment_ends", "slowed", "starts")

    def __init__(self, nodes: int, begin: float) -> None:
        self.begin, self.left = begin, nodes
        self.starts, self.ends = [begin] * nodes, [begin] * nodes
        self.missing = [2] * nodes
        self.segment_ends: dict[int, list[float]] = {}
        self.slowed: dict[int, float] = {}


class _Repeated:
    """A job that plays its step again and again."""

    def __init__(
        self,
        env: simpy.Environment,
        fabric: Fabric,
        graph: StepGraph,
        tasks: Tasks,
        meter: Meter,
        enough: Callable[[float], bool],
        shared: bool,
    ) -> None:
        self.env, self.fabric, self.graph, self.meter, self.enough = env, fabric, graph, meter, enough
        self.tasks, self.activities = tasks, tasks.activities
        losses = slowing(graph, tasks)
        self.slowed = SlowedFabric(env, losses) if losses else None
        self.slots: list[int] = graph.arrays[2].tolist()
        self.fluid = [shared and len(one.peak_link_demand.links) > 0 for one in self.activities]
        """By slot, whether others may slow its transfers."""
        self.steps: list[_Step] = []
        self.step = _Step(0, 0.0)

    def begin(self, _: object = None) -> None:
        """Begin a step."""
        self.step = _Step(len(self.graph), self.env.now)
        self.over(0)

    def over(self, node: int) -> None:
        """End a node: those that waited for it alone begin, and end at once where they take no time."""
        step, now, after = self.step, self.env.now, self.graph.after
        ended = [node]
        for one in ended:  # grows while it is read
            step.ends[one] = now
            for following in after[one]:
                step.missing[following] -= 1
                if step.missing[following]:
                    continue
                step.starts[following] = now
                if self.slots[following] == JOIN:
                    ended.append(following)
                else:
                    self.start(following)
        self.meter.tick(len(ended))
        step.left -= len(ended)
        if not step.left:
            self.steps.append(step)
            if not self.enough(step.begin):
                self.begin()

    def start(self, node: int) -> None:
        """Start the task of a node."""
        slot = self.slots[node]
        done: Done = partial(self.done, node)
        if self.slowed is not None:
            done = self.slowed.begin(node, done)
        if self.fluid[slot]:
            self.fabric.start(self.activities[slot], done)
        else:
            self.env.timeout(self.activities[slot].idle).callbacks.append(lambda _: done(None))

    def done(self, node: int, segment_ends: list[float] | None) -> None:
        """End a task; segment_ends: the ends of its half segments where it shared a link."""
        if segment_ends is not None:
            self.step.segment_ends[node] = segment_ends
        if self.slowed is not None and node in self.slowed.more:
            self.step.slowed[node] = self.slowed.more.pop(node)
        self.over(node)

    def record(self, step: _Step, events: int, solves: int) -> Record:
        """Return what a complete step leaves behind."""
        ends, slowed = np.array(step.ends), None
        if self.slowed is not None:
            slowed = np.zeros(len(ends))
            slowed[list(step.slowed)] = list(step.slowed.values())
        return Record(
            self.graph,
            self.tasks,
            np.array(step.starts),
            ends,
            step.segment_ends,
            step.begin,
            float(ends.max()),
            events,
            solves,
            slowed=slowed,
        )
