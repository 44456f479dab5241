"""Arrows of a trace: from a message to the pass that waits for it, and along ranks of a collective or in lock-step.

If one rank represents identical ones, arrows join the representatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.compile import Plan
from clustersim.engine.flows import Flow
from clustersim.engine.program import COMPUTE, READY, GroupCell, Span
from clustersim.engine.record import Record
from clustersim.engine.shape import Shape
from clustersim.report.trace_events import FIRST, Process, arrow_events, inner_flows, slice_event

Arrow = tuple[str, list[tuple[int, int, float]]]
"""Kind of an arrow, and its ends: (process, thread, start of the slice there in seconds)."""


@dataclass(frozen=True)
class Arrows:
    """Dependencies between the drawn ranks."""

    record: Record
    drawn: Sequence[DrawnRank]
    families: Mapping[str, Ints]
    """{family: ranks of all its groups (groups, n)} if single ranks are drawn instead of one of each class."""
    tracks: Mapping[str, int]
    """{stream: thread}"""

    def events(self) -> Iterator[str]:
        """Yield the events of each arrow as one text in the Trace Event Format."""
        for number, (kind, ends) in enumerate(chain(self._messages(), self._together()), 1):
            yield arrow_events(kind, number, ends)

    @property
    def ends(self) -> Ints:
        """Approximate number of arrow ends at the ranks of each rank cell (cells,), from messages and collectives."""
        shape, waits = self.record.shape, self.record.waits
        together = shape.event_rank[_grouped(shape)[shape.event_task]]
        ranks = shape.ranks
        return np.bincount(together, minlength=ranks) + 2 * np.bincount(waits.rank[waits.stage >= 0], minlength=ranks)

    @cached_property
    def _of_cell(self) -> dict[int, list[DrawnRank]]:
        """{rank cell: drawn ranks}"""
        ranks: dict[int, list[DrawnRank]] = {}
        for rank in self.drawn:
            ranks.setdefault(rank.cell, []).append(rank)
        return ranks

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """{drawn rank: process}"""
        return {rank.rank: rank.number for rank in self.drawn}

    def _messages(self) -> Iterator[Arrow]:
        """Yield an arrow from each message to the pass that waits for it."""
        record, waits, shape = self.record, self.record.waits, self.record.shape
        begins, computation = self._begins(), self.tracks[COMPUTE]
        ready = np.maximum(waits.begin, waits.end)
        for i in np.flatnonzero(waits.stage >= 0).tolist():
            event, receiver = int(waits.event[i]), int(waits.rank[i])
            sent, sender = float(record.starts[event]), int(shape.event_rank[event])
            if receiver not in begins or record.ends[event] <= sent:
                continue
            place = int(np.searchsorted(begins[receiver], ready[i]))
            stream = shape.task(int(shape.event_task[event])).stream
            for sending, receiving in self._pairs(sender, receiver, stream) if place < len(begins[receiver]) else ():
                ends = [(sending, self.tracks[stream], sent), (receiving, computation, float(begins[receiver][place]))]
                yield "message", ends

    def _pairs(self, sender: int, receiver: int, stream: str) -> Iterator[tuple[int, int]]:
        """Yield (sender, receiver) processes of the messages on `stream` from one rank cell to another, for all drawn ranks."""
        if not self.families:
            if sender in self._of_cell and receiver in self._of_cell:
                yield self._of_cell[sender][0].number, self._of_cell[receiver][0].number
            return
        for rank in self._of_cell.get(receiver, ()):
            for source in self._senders[stream][rank.rank]:
                if source in self._numbers:
                    yield self._numbers[source], rank.number

    @cached_property
    def _senders(self) -> dict[str, defaultdict[int, list[int]]]:
        """{stream of messages: {rank: ranks that send to it}}"""
        senders = defaultdict[str, defaultdict[int, list[int]]](lambda: defaultdict(list))
        for stream, pairs in self.families.items():
            for sender, receiver in pairs.tolist() if stream.startswith("p2p") else ():
                senders[stream][receiver].append(sender)
        return senders

    def _begins(self) -> dict[int, Floats]:
        """{rank cell: starts of its computations, ascending}"""
        shape, record = self.record.shape, self.record
        computes = shape.computing[shape.event_task] & (record.ends > record.starts)
        rank, begun = shape.event_rank[computes], record.starts[computes]
        order = np.lexsort((begun, rank))
        cells = np.array(list(self._of_cell))
        first, last = (np.searchsorted(rank[order], cells, side=side) for side in ("left", "right"))
        ends = zip(cells.tolist(), first.tolist(), last.tolist(), strict=True)
        return {cell: begun[order[low:high]] for cell, low, high in ends}

    def _together(self) -> Iterator[Arrow]:
        """Yield arrows along the ranks of each collective, and of passes in lock-step."""
        record, shape = self.record, self.record.shape
        grouped = _grouped(shape)[shape.event_task] & (record.ends > record.starts)
        events = np.flatnonzero(grouped)
        events = events[np.argsort(record.leader[events], kind="stable")]
        for members in np.split(events, np.flatnonzero(np.diff(record.leader[events])) + 1) if len(events) else ():
            task, start = shape.task(int(shape.event_task[members[0]])), float(record.starts[members[0]])
            if task.family is None:
                continue
            kind, cells = "collective" if len(task.kind) > 1 else "lock-step", shape.event_rank[members].tolist()
            for ranks in self._groups((task.family, self.record.plan.group(cells[0], task.family)), cells):
                if len(ranks) > 1:
                    yield kind, [(process, self.tracks[task.stream], start) for process in sorted(ranks)]

    def _groups(self, group: GroupCell, cells: Sequence[int]) -> Iterator[list[int]]:
        """Yield the processes of each drawn group of a group cell. cells: rank cells of its first group."""
        if not self.families:
            yield [self._of_cell[cell][0].number for cell in cells if cell in self._of_cell]
            return
        family, group_cell = group
        cell_of = self.record.plan.network.cells.groups[family].of
        for ranks in self.families[family][np.flatnonzero(cell_of == group_cell)].tolist():
            yield [self._numbers[rank] for rank in ranks if rank in self._numbers]


def _grouped(shape: Shape) -> Mask:
    """Return a mask of the tasks that several ranks run together."""
    return np.array([task.family is not None for task in shape.lines], bool)[shape.line]


MAX_EVENTS = 2_000_000
"""Largest number of slices in a trace that a browser handles smoothly. Beyond it, classes of ranks are left out."""

ALL = "; `clustersim trace RESULT --ranks all` cuts nothing"
Spans = dict[int, list[Span]]
"""{rank cell: spans}"""


class DrawnRank(NamedTuple):
    """A rank in a trace."""

    rank: int
    cell: int
    ranks: int
    """Number of ranks that it represents."""

    @property
    def number(self) -> int:
        """Number of its process in the trace."""
        return self.rank + FIRST


def first_ranks(plan: Plan, spans: Spans) -> tuple[DrawnRank, ...]:
    """Return the first rank of each rank cell in `spans`, which represents all ranks of the cell."""
    return tuple(DrawnRank(int(plan.first[cell]), cell, int(plan.size[cell])) for cell in spans)


def cells_that_fit(plan: Plan, items: Ints, width: int, most: int | None = None) -> list[int]:
    """Return the rank cells of a picture with room for `most` items (default MAX_EVENTS), in ascending order.

    They are chosen lane by lane: first one tensor- and data-parallel position through the whole pipeline, so that dependencies
    are visible, then the next, until the room is used. The first cell is always included. `items` are the numbers of items of
    the cells (cells,), `width` is the ranks per pipeline rank.
    """
    order = np.lexsort((plan.first, plan.first % width))
    fits = np.append(True, np.cumsum(items[order])[1:] <= (MAX_EVENTS if most is None else most))
    cells: list[int] = np.sort(order[fits]).tolist()
    return cells


def slice_counts(steps: Sequence[Record]) -> Ints:
    """Return the number of slices of each rank cell (cells,) in a trace of `steps`: one per span and one per flow inside."""
    counts = np.zeros(steps[0].shape.ranks, np.int64)
    for record in steps:
        shape, tasks = record.shape, record.tasks
        flows = np.array([sum(place >= 0 for place in timing.order) for timing in tasks.timed] or [0])
        pieces = 1 + flows[tasks.group[tasks.of_task]] * shape.computing
        counts += np.bincount(shape.event_rank, pieces[shape.event_task], len(counts)).astype(np.int64)
        counts += np.bincount(record.waits.rank[record.waited], minlength=len(counts))
    return counts


def spans_of_cells(spans: Iterable[Span], cells: Iterable[int]) -> Spans:
    """Return {rank cell: its spans} of `cells`, also for a cell without spans."""
    of_cell: Spans = {cell: [] for cell in cells}
    for span in spans:
        if span.rank in of_cell:
            of_cell[span.rank].append(span)
    return of_cell


def shown_counts(kept: Sequence[int], plan: Plan) -> dict[str, int]:
    """Return {`rank_classes`, `rank_classes_shown`, `ranks`, `ranks_shown`: count}. kept: rank cells that are shown."""
    size = plan.size
    return {
        "rank_classes": len(plan.first),
        "rank_classes_shown": len(kept),
        "ranks": int(size.sum()),
        "ranks_shown": int(size[kept].sum()),
    }


def left_out(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each trace, of a step or of a job on a shared cluster, that does not show every class of ranks."""
    traces = [(f" of {job['name']}", job["trace"]) for job in summary.get("jobs", ())] or [("", summary["trace"])]
    return [
        f"trace.json.gz shows {facts['rank_classes_shown']:,} of {facts['rank_classes']:,} classes of ranks{whose}, each "
        f"of them whole: more than {MAX_EVENTS:,} events would be too many for a browser{ALL if not whose else ''}"
        for whose, facts in traces
        if facts["rank_classes_shown"] < facts["rank_classes"]
    ]


def numbered_tracks(spans: Iterable[Span], first: int = FIRST) -> dict[str, int]:
    """Return {stream, or family of flows inside passes: thread} of what `spans` draw: computation is `first`, then by name."""
    names = {name for span in spans for name in (span.stream, *(flow.family for _, flow, _, _ in inner_flows(span)))}
    return {name: i for i, name in enumerate([COMPUTE, *sorted(names - {COMPUTE})], first)}


def slices(
    span: Span, process: Process, track: Mapping[str, int], details: Callable[[Span, Flow | None], str] = lambda *_: ""
) -> Iterator[str]:
    """Yield the events of a span's slice and of the flows inside it; nothing for READY, a mark of the host.

    track: {stream or family of flows: thread}. details: returns the arguments of a slice as JSON without braces, from its span
    and the flow, or None for the span's own slice.
    """
    if span.kind == READY:
        return
    if span.end > span.start:
        yield slice_event(process, track[span.stream], _name(span), span.start, span.end, details(span, None))
    for _, flow, start, end in inner_flows(span):
        yield slice_event(process, track[flow.family], flow.family, start, end, details(span, flow))


def _name(span: Span) -> str:
    """Return the name of a span's slice; a pass in PyTorch's notation."""
    if span.stream == COMPUTE and span.stage >= 0:
        return f"{span.stage}{span.kind}{span.microbatch}"
    return f"{span.kind} {span.microbatch}" if span.microbatch >= 0 else span.kind
