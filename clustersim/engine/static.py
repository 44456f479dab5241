"""The longest path through a graph, by arrays, with the proof that nothing was slowed.

Where no task slows another, the times of a step are sums along its longest path: a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards: with the times found,
the peaks of all that moves bytes over a link at one moment never exceed its capacity, so that no rate is cut. These are the
times that SimPy finds, float for float; where activities hold a link together but move their bytes one after the other, SimPy
goes through them piece by piece, and its sums differ in the last digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats, Ints, entries
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.program import Tasks
from clustersim.engine.record import Record
from clustersim.engine.steady import Periods


def static(
    capacity: Floats, graph: StepGraph, tasks: Tasks, periods: Periods | None = None, further: int = 0
) -> Record | None:
    """Return the step of a job that is alone on its fabric; None where tasks may have slowed each other.

    capacity: bytes/s of each link that can be short. tasks: those of the graph. periods, further: where the graph repeats
    itself, and how many more times the step does; None too when it was not steady.
    """
    activities = graph.activities(tasks)
    ends = np.array(longest(graph, activities))
    a, b, _ = graph.arrays
    starts = np.maximum(ends[a], ends[b])
    if not fits(graph, activities, starts, ends, capacity):
        return None
    end, skipped = float(ends.max()), None
    if periods is not None:
        skipped = periods.skipped(ends, further)
        if skipped is None:
            return None
        end += further * skipped.seconds
    return Record(graph, tasks, starts, ends, {}, 0.0, end, player="static", skipped=skipped)


def longest(graph: StepGraph, activities: Sequence[Activity]) -> list[float]:
    """Return when each node ends, in seconds from the begin of the step, if nothing slows it."""
    seconds = [*(activity.idle for activity in activities), 0.0]  # the last one is that of joins, slot -1
    ends = [0.0]
    append = ends.append
    for a, b, slot in zip(graph.a[1:], graph.b[1:], graph.slot[1:], strict=True):
        one, other = ends[a], ends[b]
        append((one if one > other else other) + seconds[slot])
    return ends


def fits(graph: StepGraph, activities: Sequence[Activity], starts: Floats, ends: Floats, capacity: Floats) -> bool:
    """Return whether all that moves bytes over a link at one moment asks for no more than its capacity, in bytes/s."""
    asked = [activity.asked for activity in activities]
    count = np.array([len(one.links) for one in asked] or [0])
    if not count.any():
        return True
    first = np.append(0, np.cumsum(count))
    link = np.concatenate([one.links for one in asked])
    share = np.concatenate([one.peaks for one in asked]) / capacity[link]
    _, _, slot = graph.arrays
    node = np.flatnonzero((slot >= 0) & (count[slot] > 0))
    idle = np.array([_around(activity) for activity in activities])[slot[node]]
    begun, over = starts[node] + idle[:, 0], ends[node] - idle[:, 1]
    held, again = entries(first, slot[node]), count[slot[node]]
    return not (peaks(link[held], np.repeat(begun, again), np.repeat(over, again), share[held]) > FITS).any()


def _around(activity: Activity) -> tuple[float, float]:
    """Return the seconds of an activity before its first byte moves, and after its last one has."""
    first, last = activity.segments[0], activity.segments[-1]
    return first.compute + (first.flow.latency if first.flow else 0.0), 0.0 if last.flow else last.compute


def peaks(row: Ints, begun: Floats, over: Floats, share: Floats) -> Floats:
    """Return the most of `share` that each row has at one time, by row; what ends makes room for what begins then."""
    most = np.zeros(int(row.max(initial=-1)) + 1)
    change, time, row = np.concatenate([share, -share]), np.concatenate([begun, over]), np.concatenate([row, row])
    order = np.lexsort((change, time, row))
    level, row = np.cumsum(change[order]), row[order]
    start = np.flatnonzero(np.diff(row, prepend=-1))
    if len(start):
        most[row[start]] = np.maximum.reduceat(level, start) - np.append(0.0, level)[start]
    return most
