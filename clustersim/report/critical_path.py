"""The critical path: the chain of tasks, each begun when the one before it ended, that the step time is the sum of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np

from clustersim.arrays import Floats, Ints, entries
from clustersim.engine.pattern import JOIN
from clustersim.engine.program import Span, computing
from clustersim.engine.record import Record


class Path(Sequence[tuple[Span, int]]):
    """The spans of tasks, first to last, and how often each occurs: in a step whose periods were skipped, often."""

    def __init__(self, record: Record, rows: Ints, times: Ints) -> None:
        """rows: of the graph's occurrences. times: how often each occurs."""
        self.record, self.rows, self.times = record, rows, times

    @cached_property
    def spans(self) -> list[tuple[Span, int]]:
        """All of them."""
        return list(zip(self.record.done(self.rows), self.times.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> tuple[Span, int]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[Span, int]]: ...
    def __getitem__(self, place: int | slice) -> tuple[Span, int] | Sequence[tuple[Span, int]]:
        return self.spans[place]

    def of_stream(self, stream: str) -> list[tuple[int, int]]:
        """Return the tasks of a stream that are on the path, and how often each time."""
        tasks = self.record.graph.occurrences.task[self.rows].tolist()
        own = zip(tasks, self.times.tolist(), strict=True)
        return [(task, times) for task, times in own if self.record.tasks.alike[task].stream == stream]

    def computed(self) -> Floats:
        """Return, by task, the seconds of computation on the path."""
        record, parts, compute = self.record, self.record.graph.occurrences, self.record.tasks.compute
        task, node = parts.task[self.rows], parts.node[self.rows]
        seconds = np.minimum(compute[task], record.ends[node] - record.starts[node]) * self.times
        found: Floats = np.bincount(task, seconds * record.tasks.once(computing)[task], len(compute)).astype(
            float, copy=False
        )
        return found


def critical_path(record: Record) -> Path:
    """Return the spans of the critical path; of ranks in lock-step, that of the one that computes longest.

    From the last node backwards: of the two that a node needs, the one that ended later is the one it waited for; of two that
    ended at one time, what the rank asked first.
    """
    nodes, times = _nodes(record)
    order, start = record.graph.by_node
    rows = order[entries(start, nodes)]
    of = np.repeat(np.arange(len(nodes)), start[nodes + 1] - start[nodes])
    longest = np.lexsort((-record.tasks.compute[record.graph.occurrences.task[rows]], of))  # the first of equals
    return Path(record, rows[longest[np.searchsorted(of, np.arange(len(nodes)))]], times)


def _nodes(record: Record) -> tuple[Ints, Ints]:
    """Return the nodes of the path, first to last, and how often each occurs.

    Before the periods that were skipped stands what stands before those that were not, one period earlier: so a node of an
    earlier period is replaced by its like in the kept one, until all skipped periods are passed. Where a node comes again,
    all that stood between comes again as often as periods are left.
    """
    before, slot, skipped = record.before.data, record.graph.slot, record.skipped
    left = skipped.periods if skipped else 0
    node = record.last
    nodes: list[int] = []
    times: list[int] = []
    seen: dict[int, tuple[int, int]] = {}
    while node:
        if slot[node] != JOIN:
            nodes.append(node)
            times.append(1)
        node = before[node]
        if not left or skipped is None or not skipped.period.before(node):
            continue
        while left and skipped.period.before(node) and skipped.period.later[node] >= 0:
            node, left = skipped.period.later[node], left - 1
        if node in seen:
            first, then = seen[node]
            often = left // (then - left)
            times[first:] = [count + often for count in times[first:]]
            left -= often * (then - left)
            seen.clear()
        else:
            seen[node] = len(nodes), left
    return np.array(nodes[::-1], np.int64), np.array(times[::-1], np.int64)
