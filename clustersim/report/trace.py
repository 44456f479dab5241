"""Arrows of a trace: from a message to the pass that waits for it, and along the ranks of a collective or of passes in lock-step.

Where one rank stands for all that are alike, they join the ranks that stand for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.compile import Plan
from clustersim.engine.program import COMPUTE, READY, GroupCell, Span, Task, computing
from clustersim.engine.record import Record
from clustersim.report.trace_events import FIRST, arrow_of, slice_of

Arrow = tuple[str, list[tuple[int, int, float]]]
"""Its kind, and its ends: process, thread, and when the slice there begins, in seconds."""


@dataclass(frozen=True)
class Arrows:
    """The dependencies among the ranks that are drawn."""

    record: Record
    plan: Plan
    drawn: Sequence[DrawnRank]
    families: Mapping[str, Ints]
    """Where single ranks are drawn and not one of each kind: the ranks of all groups by family (groups, n)."""
    tracks: Mapping[str, int]
    """The thread of each stream."""

    def events(self) -> Iterator[str]:
        """Yield every arrow."""
        for number, (kind, ends) in enumerate(chain(self._messages(), self._together()), 1):
            yield arrow_of(kind, number, ends)

    @property
    def ends(self) -> Ints:
        """How often arrows begin, end or pass at a rank of each cell, about: those of its messages, and of its collectives."""
        parts, waits = self.record.graph.occurrences, self.record.graph.waits
        together = parts.rank[self.record.tasks.once(_grouped)[parts.task]]
        ranks = self.record.graph.ranks
        return np.bincount(together, minlength=ranks) + 2 * np.bincount(waits.rank[waits.stage >= 0], minlength=ranks)

    @cached_property
    def _of_cell(self) -> dict[int, list[DrawnRank]]:
        """By rank cell, the ranks that are drawn of it."""
        found: dict[int, list[DrawnRank]] = {}
        for one in self.drawn:
            found.setdefault(one.cell, []).append(one)
        return found

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """The process of each rank that is drawn."""
        return {one.rank: one.number for one in self.drawn}

    def _messages(self) -> Iterator[Arrow]:
        """Yield an arrow from each message to the pass that waits for it."""
        record, waits = self.record, self.record.graph.waits
        order, start = record.graph.by_node
        parts, begins, computation = record.graph.occurrences, self._begins(), self.tracks[COMPUTE]
        ready = np.maximum(record.ends[waits.asked], record.ends[waits.awaited])
        for i in np.flatnonzero(waits.stage >= 0).tolist():
            row, receiver = int(order[start[waits.awaited[i]]]), int(waits.rank[i])
            sent, sender = float(record.starts[parts.node[row]]), int(parts.rank[row])
            if receiver not in begins or record.ends[parts.node[row]] <= sent:
                continue
            place = int(np.searchsorted(begins[receiver], ready[i]))
            stream = record.tasks[int(parts.task[row])].stream
            for one, other in self._pairs(sender, receiver, stream) if place < len(begins[receiver]) else ():
                ends = [(one, self.tracks[stream], sent), (other, computation, float(begins[receiver][place]))]
                yield "message", ends

    def _pairs(self, sender: int, receiver: int, stream: str) -> Iterator[tuple[int, int]]:
        """Yield the processes of sender and receiver of a message between rank cells, of all ranks that are drawn."""
        if not self.families:
            if sender in self._of_cell and receiver in self._of_cell:
                yield self._of_cell[sender][0].number, self._of_cell[receiver][0].number
            return
        senders = self._senders(stream)
        for one in self._of_cell.get(receiver, ()):
            for rank in senders.get(one.rank, ()):
                if rank in self._numbers:
                    yield self._numbers[rank], one.number

    def _senders(self, stream: str) -> Mapping[int, Sequence[int]]:
        """Return the ranks that send to each rank on a stream."""
        found = self._known.setdefault(stream, {})
        for sender, receiver in self.families[stream].tolist() if not found else ():
            found.setdefault(receiver, []).append(sender)
        return found

    @cached_property
    def _known(self) -> dict[str, dict[int, list[int]]]:
        return {}

    def _begins(self) -> dict[int, Floats]:
        """Return when the computations of each rank cell begin, ascending."""
        parts, tasks, record = self.record.graph.occurrences, self.record.tasks, self.record
        some = tasks.once(computing)[parts.task] & (record.ends[parts.node] > record.starts[parts.node])
        rank, begun = parts.rank[some], record.starts[parts.node[some]]
        order = np.lexsort((begun, rank))
        cells = np.array(list(self._of_cell))
        first, last = (np.searchsorted(rank[order], cells, side=side) for side in ("left", "right"))
        ends = zip(cells.tolist(), first.tolist(), last.tolist(), strict=True)
        return {cell: begun[order[low:high]] for cell, low, high in ends}

    def _together(self) -> Iterator[Arrow]:
        """Yield arrows along the ranks of each collective, and of passes in lock-step."""
        record = self.record
        order, start = record.graph.by_node
        parts, starts = record.graph.occurrences, record.starts.tolist()
        for node in np.flatnonzero(record.ends > record.starts).tolist():
            rows = order[start[node] : start[node + 1]]
            tasks = [record.tasks[int(task)] for task in parts.task[rows].tolist()]
            group = tasks[0].group if tasks else None
            if group is None:
                continue
            kind = "collective" if len(tasks[0].kind) > 1 else "lock-step"
            for ranks in self._groups(group, parts.rank[rows].tolist()):
                if len(ranks) > 1:
                    ends = [(one, self.tracks[tasks[0].stream], starts[node]) for one in sorted(ranks)]
                    yield kind, ends

    def _groups(self, group: GroupCell, cells: Sequence[int]) -> Iterator[list[int]]:
        """Yield the processes of each group of a cell that are drawn; cells: the rank cells of its first group."""
        if not self.families:
            yield [self._of_cell[cell][0].number for cell in cells if cell in self._of_cell]
            return
        family, own = group
        of = self.plan.network.cells.groups[family].of
        for ranks in self.families[family][np.flatnonzero(of == own)].tolist():
            yield [self._numbers[rank] for rank in ranks if rank in self._numbers]


def _grouped(tasks: Sequence[Task]) -> Mask:
    """Return which tasks several ranks do together."""
    return np.array([task.group is not None for task in tasks], bool)


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
    """Return the name of a span's slice: a pass by PyTorch's notation."""
    if span.stream == "compute" and span.stage >= 0:
        return f"{span.stage}{span.kind}{span.microbatch}"
    return f"{span.kind} {span.microbatch}" if span.microbatch >= 0 else span.kind
