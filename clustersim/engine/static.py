"""The longest path through a graph, by arrays, with the proof that nothing was slowed.

Where no task slows another, the times of a step are sums along its longest path, and a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards: with the times found,
the peaks of all that hold a link at one moment never exceed its capacity. That is the very test by which the fabric lets an
activity pass as one time-out, so the times are those that SimPy finds, float for float.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats, Ints, entries
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import Record


def static(plan: Plan, graph: StepGraph) -> Record | None:
    """Return the step of a plan that is alone on its fabric; None where tasks may have slowed each other."""
    tasks = graph.found(plan.programs)
    activities = graph.activities(tasks)
    ends = longest(graph, activities)
    times = np.array(ends)
    starts = np.maximum(times[graph.a], times[graph.b])
    if not fits(graph, activities, starts, times, plan.network.capacity):
        return None
    return Record(graph, tasks, starts, times, {}, 0.0, float(times.max()), player="static")


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
    """Return whether all that holds a link at one moment asks for no more than its capacity, in bytes/s."""
    asked = [activity.asked for activity in activities]
    count = np.array([len(one.links) for one in asked] or [0])
    if not count.any():
        return True
    first = np.append(0, np.cumsum(count))
    link = np.concatenate([one.links for one in asked])
    share = np.concatenate([one.peaks for one in asked]) / capacity[link]
    slot = np.array(graph.slot)
    node = np.flatnonzero((slot >= 0) & (count[slot] > 0))
    held = entries(first, slot[node])
    node = np.repeat(node, count[slot[node]])
    return not (peaks(link[held], starts[node], ends[node], share[held]) > FITS).any()


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
