"""Breakdowns of a step by part, for each rank and for the critical path.

The critical path is a chain of tasks, each of which starts when the previous one ends. Its parts add up to the step time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, repeat

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct, ranges, summed
from clustersim.engine.fabric import HOST, SegmentTimes
from clustersim.engine.program import COMPUTE, UPDATE, Span
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks


class Path:
    """Events of the critical path, from first to last."""

    def __init__(self, record: Record, events: Ints) -> None:
        """Hold `events`, indices into the record from first to last."""
        self.record, self.events = record, events

    @cached_property
    def _spans(self) -> list[Span]:
        """Spans of the path's events, in order."""
        return self.record.spans_of(self.events)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def tasks(self) -> Ints:
        """Index into the shape's tasks of each event of the path (events,)."""
        tasks: Ints = self.record.shape.event_task[self.events]
        return tasks

    def computed(self) -> Floats:
        """Return the seconds of computation on the path of each task of the shape (tasks,)."""
        record, compute = self.record, self.record.tasks.compute
        task, took = self.tasks, (record.ends - record.starts)[self.events]
        seconds = np.minimum(compute[task], took) * record.shape.computing[task]
        return np.bincount(task, seconds, len(compute)).astype(float, copy=False)


def critical_path(record: Record) -> Path:
    """Return the critical path of a record. Among ranks in lock-step, it follows the one that computes longest.

    The path is traced back from the last event: each event started when its cause ended.
    """
    if not record.shape.events:
        return Path(record, np.empty(0, np.int64))
    events, causes, event = list[int](), record.cause.data, int(np.argmax(record.ends))
    while event >= 0:
        events += (event,)
        event = causes[event]
    on_path, longest = np.zeros(len(causes), bool), np.empty(len(causes), np.int64)
    on_path[record.leader[events]] = True
    members = np.flatnonzero(on_path[record.leader])
    compute = record.tasks.compute[record.shape.event_task[members]]
    # the first of several that compute equally long
    order = members[np.lexsort((members, -compute, record.leader[members]))]
    first = order[np.append(True, np.diff(record.leader[order]) != 0)]
    longest[record.leader[first]] = first
    return Path(record, longest[record.leader[events[::-1]]])


PART_OF = {
    "embedding": "dp",
    "edp": "dp",
    "fsdp": "dp",
    "efsdp": "dp",
    "etp": "tp",
    "tp_ep": "ep",
    "amax": "dp",
    "d2h": "offload",
    "h2d": "offload",
    "save": "offload",
    "reload": "offload",
    "update_d2h": "optimizer",
    "update_h2d": "optimizer",
    "cpu": "optimizer",
    "cp_a2a": "cp",
    "cp_ring": "cp",
}
"""{family of flows: family under which it is counted}"""
WHOLE_WAITS = {"receive": "pp", "send": "pp", HOST: HOST}
"""{name of a wait: family under which all of its time is counted}; of other waits, only the time of the transfer counts."""
_ROUNDING = 1e-13  # relative to the step: smaller values are rounding errors of the sums and not bubbles
PARTS = ("compute", "tp", "pp", "dp", "ep", "cp", "optimizer", "bubble")
"""Parts that every breakdown has, in its order; other families of flows follow."""


def breakdown(record: Record) -> list[dict[str, float]]:
    """Return {part: seconds} of each rank cell: `PARTS`, then other families of flows. The parts of a cell add up to the step."""
    ranks = record.shape.ranks
    parts: dict[str, Floats] = {part: np.zeros(ranks) for part in PARTS}
    for name, rank, seconds in (*_computed(record), *_waited(record)):
        parts[name] = parts.get(name, np.zeros(ranks)) + np.bincount(rank, seconds, ranks)
    busy = np.sum(list(parts.values()), axis=0)
    rest = record.end - record.begin - busy
    parts["bubble"] = np.where(rest > _ROUNDING * record.end, rest, 0.0)
    rows = zip(*(values.tolist() for values in parts.values()), strict=True)
    return [dict(zip(parts, row, strict=True)) for row in rows]


def mean_of_ranks(parts: Sequence[dict[str, float]], ranks: Sequence[int]) -> dict[str, float]:
    """Return {part: mean seconds over all ranks}. Cell i represents `ranks[i]` identical ranks; a part that it lacks is 0."""
    names, count = dict.fromkeys(chain.from_iterable(parts)), sum(ranks)
    seconds = np.array([[*map(part.get, names, repeat(0.0))] for part in parts]) * np.array(ranks)[:, None] / count
    return {name: math.fsum(part) for name, part in zip(names, seconds.T.tolist(), strict=True)}


def path_parts(path: Iterable[Span]) -> dict[str, float]:
    """Return {part: seconds} of the path: `PARTS` but bubble, other streams. Messages count as pp, collectives by `PART_OF`."""
    parts = {name: 0.0 for name in PARTS if name != "bubble"}
    for span in path:
        for stream, seconds in by_stream(span).items():
            name = "optimizer" if span.kind in UPDATE else "pp" if span.kind == "send" else stream
            name = PART_OF.get(name, name) if span.stream != COMPUTE else name
            parts[name] = parts.get(name, 0.0) + seconds
    return parts


def by_stream(span: Span) -> dict[str, float]:
    """Return {stream: seconds} of a span. Communication inside a pass counts for the families of its collectives."""
    took, activity = span.end - span.start, span.activity
    if span.stream != COMPUTE or activity is None or not activity.timing.exposed:
        return {span.stream: took}
    work = min(activity.timing.compute, took)
    return {COMPUTE: work, **{name: (took - work) * share for name, share in _shares(activity.timing).items()}}


Part = tuple[str, Ints, Floats]
"""Name of a part, rank cells, and the seconds of each cell."""


def _computed(record: Record) -> Iterable[Part]:
    """Yield the time on compute streams: computation, the communication inside it, and the optimizer."""
    tasks, shape = record.tasks, record.shape
    took = record.ends - record.starts
    # with launches of the host, time without computation is divided by kernel times
    launched = any(timing.launched for timing in tasks.timings)
    moves, shares = _inside(tasks) if launched else tasks.once("inside", lambda: _inside(tasks))
    work = np.where(moves, tasks.compute, np.inf).take(shape.event_task)
    if record.slowed is not None:
        work += record.slowed
    np.minimum(work, took, out=work)
    # a task has one rank, so the sums of tasks are those of ranks and kinds
    busy, total = (summed(shape.event_task, seconds, len(shape.op)) for seconds in (work, took))
    update = shape.computing & shape.updating
    yield "optimizer", shape.task_rank[update], total[update]
    passes = shape.computing & ~update
    rank, busy, rest = shape.task_rank[passes], busy[passes], (total - busy)[passes]
    yield "compute", rank, busy
    for name, share in shares.items():
        yield name, rank, rest * share[passes]


def _inside(tasks: Tasks) -> tuple[Mask, dict[str, Floats]]:
    """Return the communication inside passes: a mask of tasks that have some (tasks,), and {family: its share of it (tasks,)}."""
    of_kind = [_shares(timing) for timing in tasks.timed]
    group_shares = [of_kind[group] for group in tasks.group.tolist()]
    passes = tasks.shape.computing & ~tasks.shape.updating
    kind = tasks.of_task
    names = dict.fromkeys(name for group in distinct(kind[passes]).tolist() for name in group_shares[group])
    shares = {name: np.array([share.get(name, 0.0) for share in group_shares])[kind] * passes for name in names}
    return np.array([bool(share) for share in group_shares], bool)[kind] & passes, shares


def _shares(timing: SegmentTimes) -> dict[str, float]:
    """Return {family: share of the communication inside a computation}, in proportion to its time on an idle fabric."""
    idle = timing.exposed
    if len(idle) < 2:
        return dict.fromkeys(idle, 1.0)
    total = math.fsum(idle.values()) or 1.0
    return {name: value / total for name, value in idle.items()}


def _waited(record: Record) -> Iterable[Part]:
    """Yield the exposed communication that compute streams wait for. The rest of the waits is for other ranks."""
    shape, wait, begin = record.shape, record.shape.executed_wait, record.wait_begin
    event = record.wait_event.astype(np.int64)  # as numpy would for each use below
    names, kind = record.wait_kinds
    # until a message is sent, its receiver waits for another rank
    sent = np.where((shape.wait_stage >= 0).take(wait), record.requested.take(event), -np.inf)
    end = record.ends.take(event)
    long = np.where(event >= 0, np.maximum(end - np.maximum(begin, sent), 0.0), 0.0)
    seconds, rank = summed(wait, long, len(kind)), shape.wait_rank
    transfers = np.array([bool(name) and name not in WHOLE_WAITS for name in names], bool)[kind]
    places = np.flatnonzero(transfers.take(wait) & (long > 0.0))
    for number, name in enumerate(names):
        if name in WHOLE_WAITS:
            of_kind = kind == number
            yield WHOLE_WAITS[name], rank[of_kind], seconds[of_kind]
        elif len(rows := places[kind[wait[places]] == number]):
            moved = _moved(record, name, rank[wait[rows]], begin[rows], end[rows])
            yield PART_OF.get(name, name), rank[wait[rows]], moved


def _moved(record: Record, name: str, rank: Ints, begin: Floats, end: Floats) -> Floats:
    """Return the seconds of each wait (waits,), from `begin` to `end`, in which the awaited collective transferred data.

    The rest is waiting for peers. name: stream that all waits are for. rank: rank cell of each wait (waits,). The collectives
    of a stream run one after the other, so those that may transfer during a wait are consecutive. One more on either side
    covers rounding of the start.
    """
    shape = record.shape
    on_stream = shape.stream == shape.streams.index(name) if name in shape.streams else np.zeros(len(shape.op), bool)
    events = np.flatnonzero(on_stream[shape.event_task])
    starts, ends, track = record.starts[events], record.ends[events], shape.event_rank[events]
    order = np.lexsort((ends, track))
    track, starts, ends = track[order], starts[order], ends[order]
    share = 0.5 / record.ends.max()
    first = np.maximum(np.searchsorted(track + share * ends, rank + share * begin) - 1, 0)
    last = np.minimum(np.searchsorted(track + share * starts, rank + share * end) + 1, len(track))
    count = last - first
    wait, place = np.repeat(np.arange(len(count)), count), ranges(first, last)
    moved = np.minimum(ends[place], end[wait]) - np.maximum(starts[place], begin[wait])
    return summed(wait, np.maximum(moved, 0.0) * (track[place] == rank[wait]), len(count))
