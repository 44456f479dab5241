"""The timeline as a Chrome trace, which https://ui.perfetto.dev opens: one process a rank cell, one track a stream.

Times are in microseconds, as the format wants. Moves inside a forward or backward pass are on the track of their own stream,
at the times that they really had (when the activity ran undisturbed, those of its template).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from clustersim.engine.plan import Plan
from clustersim.engine.program import Span
from clustersim.engine.simulate import Record

MAX_EVENTS = 2_000_000


def write_trace(path: Path, record: Record, plan: Plan) -> None:
    """Write the gzipped trace; the same record gives the same bytes. Beyond `MAX_EVENTS` events the rest is left out."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=path.open("wb"), mtime=0, compresslevel=5) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        for number, line in enumerate(_events(record, plan)):
            if number >= MAX_EVENTS:
                break
            file.write(f"{separator}{line}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def _events(record: Record, plan: Plan) -> Iterator[str]:
    streams = ["compute", *sorted({name for span in record.spans for name in _streams(span)} - {"compute"})]
    track = {name: i for i, name in enumerate(streams)}
    for cell, (first, size) in enumerate(zip(plan.first.tolist(), plan.size.tolist(), strict=True)):
        label = f"rank {first}" + (f" (and {size - 1} like it)" if size > 1 else "")
        yield f'{{"ph":"M","pid":{cell},"name":"process_name","args":{{"name":"{label}"}}}}'
        for name, tid in track.items():
            yield f'{{"ph":"M","pid":{cell},"tid":{tid},"name":"thread_name","args":{{"name":"{name}"}}}}'
    for span in record.spans:
        yield from _slices(span, track)


def _streams(span: Span) -> set[str]:
    inner = {segment.move.kind for segment in span.activity.segments if segment.move} if span.activity else set()
    return {span.stream} | (inner if span.stream == "compute" else set())


def _slices(span: Span, track: dict[str, int]) -> Iterator[str]:
    if span.end > span.start:
        yield _slice(span.rank, track[span.stream], _name(span), span.start, span.end)
    if span.stream != "compute" or span.activity is None:
        return
    marks = span.marks or [span.start + end for end in span.activity.ends]
    for i, segment in enumerate(span.activity.segments):
        if segment.move and marks[2 * i + 1] > marks[2 * i]:
            yield _slice(span.rank, track[segment.move.kind], segment.move.kind, marks[2 * i], marks[2 * i + 1])


def _name(span: Span) -> str:
    if span.stream == "compute" and span.stage >= 0:
        return f"{span.stage}{span.kind}{span.microbatch}"
    return f"{span.kind} {span.microbatch}" if span.microbatch >= 0 else span.kind


def _slice(pid: int, tid: int, name: str, start: float, end: float) -> str:
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"name":"{name}","ts":{start * 1e6:.4f},"dur":{(end - start) * 1e6:.4f}}}'
    )
