"""The longest path through a graph, by arrays, with the proof that nothing was slowed.

Where no task slows another, the times of a step are sums along its longest path: a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards: with the times found,
the peaks of all that moves bytes over a link at one moment never exceed its capacity, so that no rate is cut. These are the
times that SimPy finds, float for float. Where a few tasks slow each other, `contention` finds what they need; where many do,
all of them go through the compiled loop of `hybrid`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compiled import Loop, paid_off
from clustersim.engine.contention import MOST, Holders, Meetings, Met
from clustersim.engine.graph import StepGraph
from clustersim.engine.hybrid import MetPart, hybrid
from clustersim.engine.record import Record
from clustersim.engine.slowing import slowing
from clustersim.engine.tasks import Tasks
from clustersim.engine.world import slot_flows

ROUNDS = 2
"""Rounds until all agree, each of which is right for longer than the one before: with more, event after event is sooner."""
WIDE = 16
"""Nodes of a level, in the mean, from which on arrays are faster than one node after the other."""


def static(
    capacity: Floats,
    graph: StepGraph,
    tasks: Tasks,
    holders: Holders,
    meeting: bool = False,
    worth: Callable[[Met], bool] = lambda _: True,
) -> Record | None:
    """Return the step of a job that is alone on its fabric; None where tasks may have slowed each other.

    capacity: bytes/s of each link that can be short. tasks, holders: those of the graph. meeting: play tasks that may have
    slowed each other. worth: whether it is of use to go through all of them, given who would meet.
    """
    seconds = np.append(tasks.times.idle, 0.0)[graph.arrays[2]]  # the last one is that of joins, slot -1
    losses = slowing(graph, tasks)
    if not losses:
        ends = longest(graph, seconds)
        met = holders.met(tasks.times, graph.starts(ends), ends)
        if not len(met.node):
            return _record(graph, tasks, ends, met, "static", MetPart({}, 0, 0))
        if not meeting:
            return None
        alone = Uncontended(seconds, ends, met)
        meetings = Meetings(capacity, tasks.activities, MOST)
        agreed = _agreed(graph, tasks, holders, meetings, alone)
        if agreed is not None:
            return _record(graph, tasks, agreed.ends, agreed.met, "hybrid", agreed.played)
        if not worth(met):
            return None
    elif not meeting:
        return None
    flows = tasks.once_of_slots(slot_flows)
    ends, played = hybrid(capacity, graph, tasks.slot_kinds, flows, holders, seconds, losses)
    return _record(graph, tasks, ends, None, "hybrid", played)


def _record(
    graph: StepGraph,
    tasks: Tasks,
    ends: Floats,
    met: Met | None,
    player: str,
    played: MetPart,
) -> Record:
    starts, end = graph.starts(ends), float(ends.max())
    counted = played.events, played.solves
    return Record(
        graph, tasks, starts, ends, played.segment_ends, 0.0, end, *counted, player, met=met, slowed=played.slowed
    )


_BEGIN = np.zeros(1)


def longest(graph: StepGraph, seconds: Floats, known: Floats = _BEGIN) -> Floats:
    """Return when each node ends, in seconds from the begin of the step; seconds: of each node. known: ends of the first ones."""
    first, (a, b, _) = len(known), graph.arrays
    ends = np.empty(len(seconds))
    ends[:first] = known
    if paid_off() or len(seconds) < WIDE * len(graph.levels):
        _node_by_node(a[first:], b[first:], seconds[first:], ends)
        return ends
    levels = graph.levels
    for begin, end in pairwise([first, *levels[bisect_right(levels, first) :]]):
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


class Uncontended(NamedTuple):
    """A step if nobody slows anybody: what nodes take, when they end, and who would meet."""

    seconds: Floats
    ends: Floats
    met: Met


class Agreed(NamedTuple):
    """Times of a step with which all agree: who meets whom, and what those who meet take."""

    ends: Floats
    met: Met
    played: MetPart


def _agreed(graph: StepGraph, tasks: Tasks, holders: Holders, meetings: Meetings, alone: Uncontended) -> Agreed | None:
    """Return the times with which all agree; None where too many different ones meet, or all others shift again and again."""
    ends, met, took = alone.ends, alone.met, dict[int, float]()
    for _ in range(ROUNDS):
        played = meetings.play(met.together(), graph, graph.starts(ends))
        if played is None:
            return None
        if played.seconds == took:
            return Agreed(ends, met, MetPart(played.segment_ends, meetings.events, meetings.solves))
        nodes = played.seconds.keys() | took.keys()
        changed = min(node for node in nodes if played.seconds.get(node) != took.get(node))
        took, seconds = played.seconds, alone.seconds.copy()
        seconds[list(took)] = list(took.values())
        ends = longest(graph, seconds, ends[:changed])
        met = holders.met(tasks.times, graph.starts(ends), ends)
    return None
