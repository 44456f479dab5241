"""The timeline as a Chrome trace, which https://ui.perfetto.dev opens: one process a rank cell, one track a stream.

Times are in microseconds, as the format wants. Moves inside a forward or backward pass are on the track of their own stream,
at the times that they really had (when the activity ran undisturbed, those of its template).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from clustersim.engine.plan import Plan
from clustersim.engine.program import Span
from clustersim.engine.simulate import Record

MAX_SPANS = 100_000  # of some ten slices each: what a browser still moves smoothly


def write_trace(path: Path, record: Record, plan: Plan, width: int) -> None:
    """Write the gzipped trace; the same record gives the same bytes.

    width: ranks of one pipeline rank (tp·dp). When there are more than `MAX_SPANS` spans, whole ranks are left out, those of
    the first pipeline lanes staying.
    """
    write_events(path, _events(_kept(record, plan, width), plan))


def write_events(path: Path, lines: Iterator[str]) -> None:
    """Write the gzipped trace of these events, one a line."""
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=3) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        while batch := ",\n".join(islice(lines, 20_000)):
            file.write(f"{separator}{batch}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def _kept(record: Record, plan: Plan, width: int) -> dict[int, list[Span]]:
    """Return the spans of the ranks that the trace shows, lane by lane."""
    by_rank: dict[int, list[Span]] = {cell: [] for cell in range(len(plan.programs))}
    for span in record.spans:
        by_rank[span.rank].append(span)
    order = sorted(by_rank, key=lambda cell: (int(plan.first[cell]) % width, int(plan.first[cell])))
    kept: dict[int, list[Span]] = {}
    count = 0
    for cell in order:
        count += len(by_rank[cell])
        if kept and count > MAX_SPANS:
            break
        kept[cell] = by_rank[cell]
    return kept


def _events(spans: dict[int, list[Span]], plan: Plan) -> Iterator[str]:
    names = {name for row in spans.values() for span in row for name in streams(span)}
    track = {name: i for i, name in enumerate(["compute", *sorted(names - {"compute"})])}
    for cell, row in spans.items():
        first, size = int(plan.first[cell]), int(plan.size[cell])
        label = f"rank {first}" + (f" (and {size - 1} like it)" if size > 1 else "")
        yield f'{{"ph":"M","pid":{cell},"name":"process_name","args":{{"name":"{label}"}}}}'
        for name, tid in track.items():
            yield f'{{"ph":"M","pid":{cell},"tid":{tid},"name":"thread_name","args":{{"name":"{name}"}}}}'
        for span in row:
            yield from slices(span, cell, track)


def streams(span: Span) -> set[str]:
    """Return the streams that a span is drawn on: its own and those of the moves inside."""
    inner = {segment.move.kind for segment in span.activity.segments if segment.move} if span.activity else set()
    return {span.stream} | (inner if span.stream == "compute" else set())


def slices(span: Span, process: int, track: Mapping[str, int]) -> Iterator[str]:
    """Yield the slices of a span on the tracks of its streams."""
    if span.end > span.start:
        yield _slice(process, track[span.stream], _name(span), span.start, span.end)
    if span.stream != "compute" or span.activity is None:
        return
    marks = span.marks or [span.start + end for end in span.activity.ends]
    for i, segment in enumerate(span.activity.segments):
        if segment.move and marks[2 * i + 1] > marks[2 * i]:
            yield _slice(process, track[segment.move.kind], segment.move.kind, marks[2 * i], marks[2 * i + 1])


def _name(span: Span) -> str:
    if span.stream == "compute" and span.stage >= 0:
        return f"{span.stage}{span.kind}{span.microbatch}"
    return f"{span.kind} {span.microbatch}" if span.microbatch >= 0 else span.kind


def _slice(pid: int, tid: int, name: str, start: float, end: float) -> str:
    """Return a slice cut to whole nanoseconds at both ends, so that slices that meet do not overlap."""
    begin, last = round(start * 1e9), round(end * 1e9)
    times = f'"ts":{begin / 1e3:.3f},"dur":{(last - begin) / 1e3:.3f}'
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"name":"{name}",{times}}}'
