"""The critical path: the chain of tasks, each begun when the one before it ended, that the step time is the sum of."""

from __future__ import annotations

import numpy as np

from clustersim.engine.pattern import JOIN
from clustersim.engine.program import Span
from clustersim.engine.record import Record

Path = list[tuple[Span, int]]
"""The spans of tasks, first to last, and how often each occurs: in a step whose periods were skipped, often."""


def critical_path(record: Record) -> Path:
    """Return the spans of the critical path; of ranks in lock-step, that of the one that computes longest.

    From the last node backwards: of the two that a node needs, the one that ended later is the one it waited for; of two that
    ended at one time, what the rank asked first.
    """
    nodes, times = _nodes(record)
    order, start = record.graph.by_node
    rows = order[start[nodes]]
    several = np.flatnonzero(start[np.array(nodes) + 1] - start[nodes] > 1) if nodes else ()
    for i in several:
        own = order[start[nodes[i]] : start[nodes[i] + 1]]
        rows[i] = max(own, key=lambda row: record.tasks[int(record.graph.occurrences.task[row])].activity.compute)
    return list(zip(record.done(rows), times, strict=True))


def _nodes(record: Record) -> tuple[list[int], list[int]]:
    """Return the nodes of the path, first to last, and how often each occurs.

    Before the periods that were skipped stands what stands before those that were not, one period earlier: so a node of an
    earlier period is replaced by its like in the kept one, until all skipped periods are passed. Where a node comes again,
    all that stood between comes again as often as periods are left.
    """
    graph, ends = record.graph, record.ends.tolist()
    a, b, slot = graph.a, graph.b, graph.slot
    skipped = record.skipped
    left = skipped.periods if skipped else 0
    node = int(np.argmax(record.ends))
    nodes: list[int] = []
    times: list[int] = []
    seen: dict[int, tuple[int, int]] = {}
    while node:
        if slot[node] != JOIN:
            nodes.append(node)
            times.append(1)
        node = a[node] if ends[a[node]] >= ends[b[node]] else b[node]
        if not left or skipped is None or not skipped.before(node):
            continue
        while left and skipped.before(node):
            node, left = skipped.later[node], left - 1
        if node in seen:
            first, then = seen[node]
            often = left // (then - left)
            times[first:] = [count + often for count in times[first:]]
            left -= often * (then - left)
            seen.clear()
        else:
            seen[node] = len(nodes), left
    return nodes[::-1], times[::-1]
