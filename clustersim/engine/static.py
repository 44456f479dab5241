"""The longest path through a graph, by arrays, with the proof that nothing was slowed.

Where no task slows another, the times of a step are sums along its longest path: a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards: with the times found,
the peaks of all that moves bytes over a link at one moment never exceed its capacity, so that no rate is cut. These are the
times that SimPy finds, float for float; where activities hold a link together but move their bytes one after the other, SimPy
goes through them piece by piece, and its sums differ in the last digits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.contention import Holders, Meetings, Met
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import Record
from clustersim.engine.tasks import Tasks

ROUNDS = 6
"""Rounds until all agree, each of which is right for longer than the one before: with more, SimPy plays the step sooner."""
WIDE = 16
"""Nodes of a level, in the mean, from which on arrays are faster than one node after the other."""
MOST = 1.0
"""SimPy's events for tasks that meet, for each node of the graph: with more, it plays the whole step sooner."""


def static(
    capacity: Floats, graph: StepGraph, tasks: Tasks, meeting: bool = False, holders: Holders | None = None
) -> Record | None:
    """Return the step of a job that is alone on its fabric; None where tasks may have slowed each other.

    capacity: bytes/s of each link that can be short. tasks: those of the graph. meeting: let SimPy play those that may have
    slowed each other, and return None only where they are too many. holders: of the graph, where they are known.
    """
    seconds = np.append(tasks.times.idle, 0.0)[graph.arrays[2]]  # the last one is that of joins, slot -1
    ends = longest(graph, seconds)
    holders = holders or Holders(graph, tasks.activities, capacity)
    met = holders.met(tasks.times, _starts(graph, ends), ends)
    found: Agreed | None = Agreed(ends, {}, met, 0, 0)
    if len(met.node):
        found = (
            _agreed(graph, tasks, holders, Meetings(capacity, tasks.activities, graph.slot), ends) if meeting else None
        )
    if found is None:
        return None
    player = "hybrid" if found.events else "static"
    starts, end = _starts(graph, found.ends), float(found.ends.max())
    return Record(
        graph,
        tasks,
        starts,
        found.ends,
        found.segment_ends,
        0.0,
        end,
        found.events,
        found.solves,
        player,
        met=found.met,
    )


def _starts(graph: StepGraph, ends: Floats) -> Floats:
    a, b, _ = graph.arrays
    return np.maximum(ends[a], ends[b])


def longest(graph: StepGraph, seconds: Floats, known: Sequence[float] = (0.0,)) -> Floats:
    """Return when each node ends, in seconds from the begin of the step; seconds: of each node. known: ends of the first ones."""
    first, levels = len(known), graph.levels
    if len(seconds) < WIDE * len(levels):
        return np.array(_node_by_node(graph, seconds, known))
    a, b, _ = graph.arrays
    ends = np.empty(len(seconds))
    ends[:first] = known
    for begin, end in pairwise([first, *levels[bisect_right(levels, first) :]]):
        level = ends[begin:end]
        np.maximum(ends[a[begin:end]], ends[b[begin:end]], out=level)
        level += seconds[begin:end]
    return ends


def _node_by_node(graph: StepGraph, seconds: Floats, known: Sequence[float]) -> list[float]:
    ends, first = list(known), len(known)
    append = ends.append
    for a, b, took in zip(graph.a[first:], graph.b[first:], seconds[first:].tolist(), strict=True):
        one, other = ends[a], ends[b]
        append((one if one > other else other) + took)
    return ends


class Agreed(NamedTuple):
    """Times of a step with which all agree: who meets whom, and what those who meet take."""

    ends: Floats
    segment_ends: Mapping[int, list[float]]
    met: Met
    events: int
    solves: int


def _agreed(graph: StepGraph, tasks: Tasks, holders: Holders, meetings: Meetings, ends: Floats) -> Agreed | None:
    """Return the times with which all agree; None where SimPy would play about as much as the whole step.

    ends: of the nodes, if nobody slowed anybody.
    """
    alone = np.append(tasks.times.idle, 0.0)[graph.arrays[2]]
    took: dict[int, float] = {}
    for _ in range(ROUNDS):
        starts = _starts(graph, ends)
        met = holders.met(tasks.times, starts, ends)
        played = meetings.play(met.together(), starts)
        if played.seconds == took:
            return Agreed(ends, played.segment_ends, met, meetings.events, meetings.solves)
        if meetings.events > MOST * len(graph.slot):
            return None
        nodes = played.seconds.keys() | took.keys()
        changed = min(node for node in nodes if played.seconds.get(node) != took.get(node))
        took, seconds = played.seconds, alone.copy()
        seconds[list(took)] = list(took.values())
        ends = longest(graph, seconds, ends[:changed].tolist())
    return None
