"""The timeline of a page: activities of each class of ranks, the steady state once, and the kernels of each pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.program import COMPUTE, READY, Span
from clustersim.figures.timeline import band
from clustersim.model.kernel import Kernel
from clustersim.report.folded_time import NOT_FOLDED, FoldedTime, folded_time
from clustersim.report.result import ranks_per_stage
from clustersim.report.step_trace import pass_parts
from clustersim.report.trace import cells_that_fit
from clustersim.simulation import StepResult

MOST_SPANS, MOST_PARTS = 40_000, 60_000
"""Largest number of spans, and of parts of distinct passes, about 30 bytes each. Further ones are left out."""
TICK = 1e-9
"""Seconds per unit of the page's times."""
ABOVE = {COMPUTE: 0, HOST: 1}
"""{stream: its drawing order}; communication is below computation and launches."""
Numbers = dict[str, int]
"""{text: its number in the order of appearance}"""


def timeline(result: StepResult) -> dict[str, object]:
    """Return the timeline as JSON data. Times are in ns. Columns have a value per span, sorted by row, stream and start.

    `start` is relative to the previous span of the stream. `parts` is an index into the distinct passes, whose times count from
    their own start. `bands` is the vertical extent of each kind of pass.
    """
    record, plan = result.record, result.plan
    fold = folded_time(record, result.job.parallelism.pp)
    spans, critical = _spans(result, fold)
    count = np.bincount([span.rank for span in spans], minlength=len(plan.first))
    order = cells_that_fit(plan, count, ranks_per_stage(result.summary), MOST_SPANS)
    row_of = {cell: row for row, cell in enumerate(order)}
    kept = [(span, count) for span, count in zip(spans, critical, strict=True) if span.rank in row_of]

    def place(span: Span) -> tuple[int, int, str, float, float]:
        return row_of[span.rank], ABOVE.get(span.stream, 2), span.stream, span.start, span.end

    kept.sort(key=lambda drawn: place(drawn[0]))
    streams, kinds = Numbers(), Numbers()
    passes = _Passes(result)
    lanes, columns = [], _columns(kept, kinds, passes)
    for (rank, stream), spans_of_lane in groupby(kept, lambda drawn: (drawn[0].rank, drawn[0].stream)):
        lanes.append([row_of[rank], streams.setdefault(stream, len(streams)), len(list(spans_of_lane))])
    return {
        "step": _ticks(record.end),
        "fold": _fold(fold),
        "rows": [{"cell": cell, "rank": int(plan.first[cell]), "ranks": int(plan.size[cell])} for cell in order],
        "left_out": len(plan.first) - len(order),
        "streams": list(streams),
        "kinds": list(kinds),
        "bands": [band(kind) for kind in kinds],
        "lanes": lanes,
        **columns,
        "passes": passes.found,
        "inside": list(passes.words),
    }


def _fold(fold: FoldedTime) -> dict[str, object] | None:
    """Return {`cut`, `period`: ns, `count`, `microbatches`} of the periods that are left out; None without any."""
    if fold == NOT_FOLDED:
        return None
    return {
        "cut": _ticks(fold.cut),
        "period": fold.period / TICK,
        "count": fold.periods,
        "microbatches": fold.microbatches,
    }


def _spans(result: StepResult, fold: FoldedTime) -> tuple[list[Span], list[int]]:
    """Return the spans to draw at their folded times, and for each how often it is on the critical path.

    `asked` is the start of a span in the step that is not folded.
    """
    record = result.record
    done = record.spans_of(np.arange(record.shape.events))
    every = [*done, *(span for span in record.spans if span.stream == "wait")]
    critical = np.zeros(len(every), np.int64)
    critical[result.facts.path.events] = 1
    start = np.array([span.start for span in every])
    drawn: Mask = fold.shown(start) & np.array([span.end > span.start and span.kind != READY for span in every], bool)
    moved = (start - fold.folded(start)).tolist()
    shown = [(every[i], moved[i]) for i in np.flatnonzero(drawn).tolist()]
    earlier = [span._replace(start=span.start - by, end=span.end - by, requested=span.start) for span, by in shown]
    return earlier, critical[drawn].tolist()


def _columns(kept: Sequence[tuple[Span, int]], kinds: Numbers, passes: _Passes) -> dict[str, list[int]]:
    """Return the columns of `timeline` over the drawn spans (span, times on the critical path), ordered by rank and stream.

    Starts are ticks since the start before on the same stream, and since 0 for its first. kinds, passes: are extended.
    """
    starts = [_ticks(span.start) for span, _ in kept]
    tracks = [(span.rank, span.stream) for span, _ in kept]
    before = [start if a == b else 0 for start, a, b in zip(starts, tracks, tracks[1:], strict=False)]
    return {
        "start": [start - last for start, last in zip(starts, [0, *before], strict=False)],
        "took": [_ticks(span.end) - start for (span, _), start in zip(kept, starts, strict=True)],
        "kind": [kinds.setdefault(span.kind or "-", len(kinds)) for span, _ in kept],
        "stage": [span.stage for span, _ in kept],
        "microbatch": [span.microbatch for span, _ in kept],
        "critical": [count for _, count in kept],
        "parts": [passes.number(span) for span, _ in kept],
    }


class _Passes:
    """Distinct contents of passes, each a list of numbers."""

    def __init__(self, result: StepResult) -> None:
        self.seconds = result.work.seconds
        self.words = Numbers()
        self.found: list[list[int]] = []
        self.numbers: dict[tuple[int, ...], int] = {}
        self.known: dict[int, int] = {}
        self.parts = 0

    def number(self, span: Span) -> int:
        """Return the index of a span's content; -1 if there is none."""
        activity = span.activity
        if activity is None or span.stream != COMPUTE or not activity.segments:
            return -1
        if span.segment_ends is not None:
            begun = span.requested  # when it began in the step
            return self._add(activity, [end - begun for end in span.segment_ends])
        if id(activity) not in self.known:
            self.known[id(activity)] = self._add(activity, None)
        return self.known[id(activity)]

    def _add(self, activity: Activity, ends: Sequence[float] | None) -> int:
        """Return the index of a content: triples of (word, start after the previous start, length)."""
        flat: list[int] = []
        last = 0
        for part in pass_parts(activity, activity.timing.source, self.seconds, ends):
            start, end = _ticks(part.start), _ticks(part.end)
            if end > start:
                word = self.words.setdefault(part_name(part.what), len(self.words))
                flat += (word, start - last, end - start)
                last = start
        key = tuple(flat)
        if key not in self.numbers:
            if self.parts + len(flat) > 3 * MOST_PARTS:
                return -1
            self.numbers[key] = len(self.found)
            self.found.append(flat)
            self.parts += len(flat)
        return self.numbers[key]


def part_name(what: Kernel | str) -> str:
    """Return a kernel or a family of flows in words: `linear forward 2048×4608×12288 bf16`."""
    if isinstance(what, str):
        return what
    sizes = "×".join(str(size) for size in (what.batch if what.batch > 1 else 0, what.m, what.n, what.k) if size)
    name = what.op if what.op == what.kind else f"{what.kind.replace('_', ' ')} {what.op}"
    return f"{name} {sizes} {what.dtype}"


def _ticks(seconds: float) -> int:
    """Return a time in units of the page."""
    return round(seconds / TICK)
