"""The critical path: the chain of tasks, each begun when the one before it ended, that the step time is the sum of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries, summed
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.pattern import JOIN
from clustersim.engine.program import COMPUTE, UPDATE, Span, Task, computing
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


PART_OF = {
    "embedding": "dp",
    "edp": "dp",
    "fsdp": "dp",
    "efsdp": "dp",
    "etp": "tp",
    "tp_ep": "ep",
    "amax": "dp",
    "cp_a2a": "cp",
    "cp_ring": "cp",
}
"""Families that count with another."""
_ROUNDING = 1e-13  # of the step: less is what the sums of its parts are off, and no bubble
PARTS = ("compute", "tp", "pp", "dp", "ep", "cp", "optimizer", "bubble")


def breakdown(record: Record) -> list[dict[str, float]]:
    """Return {part: seconds} of every rank cell."""
    ranks = record.graph.ranks
    found: dict[str, Floats] = {part: np.zeros(ranks) for part in PARTS}
    for name, rank, seconds in (*_computed(record), *_waited(record)):
        found[name] = found.get(name, np.zeros(ranks)) + np.bincount(rank, seconds, ranks)
    busy = np.sum(list(found.values()), axis=0)
    rest = record.end - record.begin - busy
    found["bubble"] = np.where(rest > _ROUNDING * record.end, rest, 0.0)
    rows = zip(*(values.tolist() for values in found.values()), strict=True)
    return [dict(zip(found, row, strict=True)) for row in rows]


def mean(parts: Sequence[dict[str, float]], ranks: Sequence[int]) -> dict[str, float]:
    """Return the mean of {part: seconds} over all ranks, cell i standing for `ranks[i]` of them."""
    names, count = dict.fromkeys(name for part in parts for name in part), sum(ranks)
    return {
        name: math.fsum(part.get(name, 0.0) * size for part, size in zip(parts, ranks, strict=True)) / count
        for name in names
    }


def of_path(path: Iterable[tuple[Span, int]]) -> dict[str, float]:
    """Return {part: seconds} of the critical path; a message counts as pp, a collective on its own stream as its kind.

    path: spans, and how often each occurs.
    """
    parts = {name: 0.0 for name in PARTS if name != "bubble"}
    for span, times in path:
        took = (span.end - span.start) * times
        if span.stream != COMPUTE or span.kind in UPDATE:
            name = "optimizer" if span.kind in UPDATE else "pp" if span.kind == "send" else span.stream
            name = PART_OF.get(name, name)
            parts[name] = parts.get(name, 0.0) + took
            continue
        shares = _shares(span.activity) if span.activity else {}
        work = min(span.activity.compute * times, took) if shares and span.activity else took
        parts["compute"] += work
        for name, share in shares.items():
            parts[name] = parts.get(name, 0.0) + (took - work) * share
    return parts


Part = tuple[str, Ints, Floats]
"""A part, and rank cells with the seconds that each spends on it, in rows."""


def _computed(record: Record) -> Iterable[Part]:
    """Yield the time of what runs on compute streams: computation, the communication inside it, and the optimizer."""
    parts, tasks = record.graph.occurrences, record.tasks
    rows = np.flatnonzero(tasks.once(computing)[parts.task])
    task, rank, node = parts.task[rows], parts.rank[rows], parts.node[rows]
    times = record.counts(rank, parts.place[rows])
    took = record.ends[node] - record.starts[node]
    update, inside = tasks.once(_updates)[task], _inside(tasks) if tasks.once(_launched) else tasks.once(_inside)
    most = np.where(inside.any, tasks.compute, np.inf)
    alone = most[task] if record.slowed is None else most[task] + record.slowed[node]
    work: Floats = np.minimum(alone, took)
    yield "optimizer", rank[update], (took * times)[update]
    rank, task, busy, rest = rank[~update], task[~update], (work * times)[~update], ((took - work) * times)[~update]
    yield "compute", rank, busy
    for name, share in inside.shares.items():
        yield name, rank, rest * share[task]


class _Inside(NamedTuple):
    """The communication inside computations, by task."""

    any: Mask
    """Whether there is some."""
    shares: dict[str, Floats]
    """By kind, as in `_shares`."""


def _updates(tasks: Sequence[Task]) -> Mask:
    """Return which tasks are part of the update of parameters."""
    return np.array([task.kind in UPDATE for task in tasks], bool)


def _launched(tasks: Sequence[Task]) -> bool:
    """Return whether some wait for the host, which shares out what is no computation by how long kernels take."""
    return any(one.launched for one in {task.activity.times for task in tasks})


def _inside(tasks: Sequence[Task]) -> _Inside:
    known = {times: _shares(times) for times in {task.activity.times for task in tasks}}
    found = [known[one.activity.times] if one.stream == COMPUTE and one.kind not in UPDATE else {} for one in tasks]
    names = dict.fromkeys(name for share in found for name in share)
    shares = {name: np.array([share.get(name, 0.0) for share in found]) for name in names}
    return _Inside(np.array([bool(share) for share in found], bool), shares)


def _shares(activity: Activity) -> dict[str, float]:
    """Divide the communication inside a computation by the family of its flows, in proportion to their idle times."""
    idle = activity.moving
    if len(idle) < 2:
        return dict.fromkeys(idle, 1.0)
    total = math.fsum(idle.values()) or 1.0
    return {name: value / total for name, value in idle.items()}


def _waited(record: Record) -> Iterable[Part]:
    """Yield the exposed part of communication that compute streams wait for; the rest is waiting for other ranks."""
    waits = record.graph.waits
    asked, end = record.ended(waits.asked, waits.awaited), record.ends[waits.awaited]
    times = record.counts(waits.rank, waits.place)
    message = waits.stage >= 0
    begun = np.where(
        message, np.maximum(asked, record.ended(waits.sent, waits.awaited)), asked
    )  # before that no rank sends
    long = np.maximum(end - np.minimum(begun, end), 0.0) * times
    sends = message | np.array([kind == "send" for kind in waits.kinds], bool)[waits.kind]
    yield "pp", waits.rank[sends], long[sends]
    hosts = np.array([kind == HOST for kind in waits.kinds], bool)[waits.kind]
    if hosts.any():
        yield HOST, waits.rank[hosts], long[hosts]
    rows = np.flatnonzero(~sends & ~hosts & (end > asked))
    moved = _moved(record, waits.kind[rows], waits.rank[rows], asked[rows], end[rows]) * times[rows]
    for number, kind in enumerate(waits.kinds):
        own = waits.kind[rows] == number
        if own.any():
            yield PART_OF.get(kind, kind), waits.rank[rows[own]], moved[own]


def _moved(record: Record, kind: Ints, rank: Ints, begin: Floats, end: Floats) -> Floats:
    """Return for how many seconds of waits, from `begin` to `end`, a collective that was waited for really moved.

    The rest was waiting for peers. kind, rank: of each wait. The collectives of a stream run one after the other, so that those
    that may have moved meanwhile stand in a row; one more on either side makes up for the rounding of where that begins.
    """
    parts, (names, stream) = record.graph.occurrences, record.tasks.once(_streams)
    asked = np.array([names.get(name, -1) for name in record.graph.waits.kinds], np.int64)[kind]
    rows = np.flatnonzero(np.isin(stream, asked)[parts.task])
    starts, ends = record.starts[parts.node[rows]], record.ends[parts.node[rows]]
    own, wanted = parts.rank[rows] * len(names) + stream[parts.task[rows]], rank * len(names) + asked
    order = np.lexsort((ends, own))
    own, starts, ends = own[order], starts[order], ends[order]
    share = 0.5 / record.ends.max()
    first = np.maximum(np.searchsorted(own + share * ends, wanted + share * begin) - 1, 0)
    last = np.minimum(np.searchsorted(own + share * starts, wanted + share * end) + 1, len(own))
    count = last - first
    wait = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(wait)) + np.repeat(first - np.cumsum(count) + count, count)
    moved = np.minimum(ends[place], end[wait]) - np.maximum(starts[place], begin[wait])
    return summed(wait, np.maximum(moved, 0.0) * (own[place] == wanted[wait]), len(count))


def _streams(tasks: Sequence[Task]) -> tuple[dict[str, int], Ints]:
    """Return the numbers of streams by name, and which one each task is on."""
    names: dict[str, int] = {}
    found = [names.setdefault(task.stream, len(names)) for task in tasks]
    return names, np.array(found, np.int64)
