"""Timelines as traces: which spans are shown, and their slices on tracks of streams.

Moves inside a forward or backward pass are on the track of their own stream,
at the times that they really had (when the activity ran undisturbed, those of its template).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.engine.compile import Plan
from clustersim.engine.program import COMPUTE, READY, Span, Task
from clustersim.engine.record import Record
from clustersim.report.trace_events import FIRST, slice_of

MAX_EVENTS = 2_000_000
"""Slices of one trace at most: what a browser still moves smoothly. Beyond, whole rank classes are left out."""

ALL = "; `clustersim trace RESULT --ranks all` cuts nothing"
Spans = dict[int, list[Span]]
"""Spans by rank cell."""


class DrawnRank(NamedTuple):
    """A rank as a trace draws it."""

    rank: int
    cell: int
    ranks: int
    """So many it stands for."""

    @property
    def number(self) -> int:
        """Its number among the processes of the trace."""
        return self.rank + FIRST


def by_class(plan: Plan, spans: Spans) -> tuple[DrawnRank, ...]:
    """Return one rank for each rank cell that has spans: its first."""
    return tuple(DrawnRank(int(plan.first[cell]), cell, int(plan.size[cell])) for cell in spans)


def of_ranks(plan: Plan, ranks: Sequence[int]) -> tuple[DrawnRank, ...]:
    """Return each of some ranks, in order."""
    of = plan.network.cells.ranks.of
    return tuple(DrawnRank(rank, int(of[rank]), 1) for rank in ranks)


def chosen(steps: Sequence[Record], plan: Plan, width: int, share: int = 1) -> list[int]:
    """Return the rank cells of which a trace of steps shows all, ascending.

    They are taken lane by lane: first one tensor- and data-parallel position through the whole pipeline, so that what waits
    for what can be seen, then the next, until `MAX_EVENTS` slices (a `share`-th of them where jobs share a trace) are
    full. The first cell is always there.
    """
    order = np.lexsort((plan.first, plan.first % width))
    slices = np.cumsum(sum(map(_slices, steps), np.zeros(len(order), np.int64))[order])
    fits = np.append(True, slices[1:] <= MAX_EVENTS // share)
    found: list[int] = np.sort(order[fits]).tolist()
    return found


def _slices(record: Record) -> Ints:
    """Return how many slices each rank cell has: one a span, and one a flow inside."""
    parts, waits = record.graph.occurrences, record.graph.waits
    each = np.bincount(
        parts.rank, record.counts(parts.rank, parts.place) * record.tasks.once(_pieces)[parts.task], record.graph.ranks
    )
    rank = waits.rank[record.waited]
    found: Ints = (each + np.bincount(rank, record.counts(rank, waits.place[record.waited]), len(each))).astype(
        np.int64
    )
    return found


def _pieces(tasks: Sequence[Task]) -> Ints:
    """Return, by task, the slice of its span and those of the flows inside."""
    flows = {
        one: sum(segment.flow is not None for segment in one.segments) for one in {t.activity.times for t in tasks}
    }
    return np.array([1 + flows[task.activity.times] * (task.stream == COMPUTE) for task in tasks], np.int64)


def by_cell(spans: Iterable[Span], cells: Iterable[int]) -> Spans:
    """Return the spans of some rank cells."""
    found: Spans = {cell: [] for cell in cells}
    for span in spans:
        if span.rank in found:
            found[span.rank].append(span)
    return found


def shown(kept: Sequence[int], plan: Plan) -> dict[str, int]:
    """Return how much of a step a trace shows: classes of ranks that are alike, and ranks they stand for, of how many.

    kept: the rank cells that it shows.
    """
    size = plan.size
    return {
        "rank_classes": len(plan.programs),
        "rank_classes_shown": len(kept),
        "ranks": int(size.sum()),
        "ranks_shown": int(size[kept].sum()),
    }


def left_out(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each trace, of a step or of a job that shares a cluster, that does not show every rank class."""
    traces = [(f" of {job['name']}", job["trace"]) for job in summary.get("jobs", ())] or [("", summary["trace"])]
    return [
        f"trace.json.gz shows {facts['rank_classes_shown']:,} of {facts['rank_classes']:,} classes of ranks{whose}, each "
        f"of them whole: more than {MAX_EVENTS:,} events would be too many for a browser{ALL if not whose else ''}"
        for whose, facts in traces
        if facts["rank_classes_shown"] < facts["rank_classes"]
    ]


def streams(span: Span) -> set[str]:
    """Return the streams that a span is drawn on: its own and those of the flows inside."""
    inner = {segment.flow.family for segment in span.activity.segments if segment.flow} if span.activity else set()
    return {span.stream} | (inner if span.stream == "compute" else set())


def slices(span: Span, process: int, track: Mapping[str, int]) -> Iterator[str]:
    """Yield the slices of a span on the tracks of its streams; a mark of the host lies on its launches."""
    if span.kind == READY:
        return
    if span.end > span.start:
        yield slice_of(process, track[span.stream], name_of(span), span.start, span.end)
    if span.stream != "compute" or span.activity is None:
        return
    ends = span.segment_ends or [span.start + end for end in span.activity.ends]
    for i, segment in enumerate(span.activity.segments):
        if segment.flow and ends[2 * i + 1] > ends[2 * i]:
            family = segment.flow.family
            yield slice_of(process, track[family], family, ends[2 * i], ends[2 * i + 1])


def name_of(span: Span) -> str:
    """Return what a slice of a span is called: a pass by PyTorch's notation."""
    if span.stream == "compute" and span.stage >= 0:
        return f"{span.stage}{span.kind}{span.microbatch}"
    return f"{span.kind} {span.microbatch}" if span.microbatch >= 0 else span.kind
