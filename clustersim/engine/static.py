"""The longest path through a graph, by arrays, with the proof that nothing was slowed.

Where no task slows another, the times of a step are sums along its longest path: a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards: with the times found,
the peaks of all that moves bytes over a link at one moment never exceed its capacity, so that no rate is cut. These are the
times that SimPy finds, float for float. Where some tasks slow each other, all go through the compiled loop (`loop.py`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compiled import Loop, paid_off
from clustersim.engine.contention import Holders
from clustersim.engine.graph import StepGraph
from clustersim.engine.loop import LoopStep, loop
from clustersim.engine.loop_state import LoopJob
from clustersim.engine.record import Record
from clustersim.engine.slowing import slowing
from clustersim.engine.tasks import Tasks

WIDE = 16
"""Nodes of a level, in the mean, from which on arrays are faster than one node after the other."""


def static(
    capacity: Floats,
    graph: StepGraph,
    tasks: Tasks,
    holders: Holders,
    meeting: bool = False,
) -> Record | None:
    """Return the step of a job that is alone on its fabric; None where tasks may have slowed each other.

    capacity: bytes/s of each link that can be short. tasks, holders: those of the graph. meeting: play tasks that may have
    slowed each other.
    """
    losses = slowing(graph, tasks)
    if not losses:
        ends = longest(graph, tasks.seconds)
        met = holders.met(tasks.times, graph.starts(ends), ends)
        if not len(met.node):
            return Record(graph, tasks, graph.starts(ends), ends, {}, 0.0, float(ends.max()), player="static", met=met)
    if not meeting:
        return None
    [[step]] = loop(capacity, [LoopJob.of(graph, tasks, holders, losses)])
    return played(graph, tasks, step)


def played(graph: StepGraph, tasks: Tasks, step: LoopStep) -> Record:
    """Return the record of a step that the loop has played."""
    times = graph.starts(step.ends), step.ends, step.segment_ends, step.begin, float(step.ends.max())
    return Record(graph, tasks, *times, step.events, step.solves, "loop", slowed=step.slowed)


def longest(graph: StepGraph, seconds: Floats) -> Floats:
    """Return when each node ends, in seconds from the begin of the step; seconds: of each node."""
    a, b, _ = graph.arrays
    ends = np.zeros(len(seconds))
    if paid_off() or len(seconds) < WIDE * len(graph.levels):
        _node_by_node(a[1:], b[1:], seconds[1:], ends)
        return ends
    for begin, end in pairwise(graph.levels[1:]):
        level = ends[begin:end]
        np.maximum(ends[a[begin:end]], ends[b[begin:end]], out=level)
        level += seconds[begin:end]
    return ends


@Loop
def _node_by_node(a: Ints, b: Ints, seconds: Floats, ends: Floats) -> None:
    first = len(ends) - len(a)
    for row in range(len(a)):
        one, other = ends[a[row]], ends[b[row]]
        ends[first + row] = (one if one > other else other) + seconds[row]
