"""The timeline of a step as one SVG: a row a rank cell, passes above, communication below in a thin lane.

What is blank is bubble. Passes are labelled with their microbatch where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from clustersim.engine.compile import Plan
from clustersim.engine.program import Span
from clustersim.engine.record import Record
from clustersim.units import seconds
from clustersim.writing import save

ROWS = 64
"""Rank cells drawn at most; the rest is named in the last line."""

WIDTH, LEFT, RIGHT, TOP = 1000.0, 130.0, 16.0, 34.0
ROW, PASS, LANE = 32.0, 20.0, 5.0
COLOURS = {  # Okabe and Ito (2008), which colour-blind readers can tell apart
    "forward": "#56b4e9",
    "backward": "#e69f00",
    "weight gradients": "#f0e442",
    "optimizer": "#999999",
    "tensor parallel": "#cc79a7",
    "pipeline": "#0072b2",
    "data parallel": "#009e73",
    "expert parallel": "#d55e00",
}
PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight gradients"}
LANES = {
    "tp": "tensor parallel",
    "etp": "tensor parallel",
    "ep": "expert parallel",
    "tp_ep": "expert parallel",
    "dp": "data parallel",
    "edp": "data parallel",
    "embedding": "data parallel",
    "model": "optimizer",
}


class Bar(NamedTuple):
    """From `start` to `end` seconds, something of the kind `kind`."""

    kind: str
    start: float
    end: float
    label: str = ""


def svg(record: Record, plan: Plan, title: str = "") -> str:
    """Return the drawing of a record; the same record gives the same text.

    record, plan: what was simulated. title: stands above, with the step time.
    """
    rows = min(len(plan.programs), ROWS)
    scale = (WIDTH - LEFT - RIGHT) / (record.end or 1.0)
    spans: list[list[Span]] = [[] for _ in plan.programs]
    for span in record.spans:
        spans[span.rank].append(span)
    kinds: dict[str, None] = {}
    body: list[str] = [*_axis(record.end, scale, TOP + rows * ROW)]
    for row in range(rows):
        passes, lane = _merged(_passes(spans[row]), 0.1 / scale), _merged(_flows(spans[row]), 1.0 / scale)
        kinds |= dict.fromkeys(bar.kind for bar in (*passes, *lane))
        body += _row(row, _name(plan, row), passes, lane, scale)
    left_out = len(plan.programs) - rows
    height = TOP + rows * ROW + 52
    head = _text(LEFT, 20, f"{escape(title)}{': ' if title else ''}{seconds(record.end)}", size=14)
    foot = _legend(kinds, height - 10, left_out)
    return "\n".join([_open(height), head, *body, *foot, "</svg>\n"])


def write(path: Path, record: Record, plan: Plan, title: str = "") -> None:
    """Write the drawing. Raises InputError when the place cannot be written, DiskFullError when no space is left."""
    save(path, svg(record, plan, title))


def _name(plan: Plan, cell: int) -> str:
    others = int(plan.size[cell]) - 1
    return f"rank {plan.first[cell]}" + (f" +{others:,}" if others else "")


def _passes(spans: Iterable[Span]) -> Iterator[Bar]:
    """Yield what the compute stream ran; passes that are cut by buckets come in pieces."""
    yield from (
        Bar(PASSES.get(s.kind, "optimizer"), s.start, s.end, str(s.microbatch) if s.microbatch >= 0 else "")
        for s in spans
        if s.stream == "compute"
    )


def _flows(spans: Iterable[Span]) -> Iterator[Bar]:
    """Yield what the links carried for a rank: messages and collectives, those inside its passes included."""
    for span in spans:
        if span.activity is None:
            continue
        if span.stream != "compute":
            yield Bar(LANES.get(span.stream, "pipeline"), span.start, span.end)
            continue
        ends = span.segment_ends or [span.start + end for end in span.activity.ends]
        for i, segment in enumerate(span.activity.segments):
            if segment.flow:
                yield Bar(LANES.get(segment.flow.family, segment.flow.family), ends[2 * i], ends[2 * i + 1])


def _merged(bars: Iterable[Bar], gap: float) -> list[Bar]:
    """Join bars of one kind and label that are less than `gap` seconds apart, which no reader could tell."""
    result: list[Bar] = []
    for bar in sorted(bars, key=lambda b: (b.kind, b.start, b.end)):
        last = result[-1] if result else None
        if last and (last.kind, last.label) == (bar.kind, bar.label) and bar.start - last.end <= gap:
            result[-1] = last._replace(end=max(last.end, bar.end))
        else:
            result.append(bar)
    return result


def _row(row: int, name: str, passes: Iterable[Bar], lane: Iterable[Bar], scale: float) -> Iterator[str]:
    y = TOP + row * ROW
    yield _text(LEFT - 8, y + 14, escape(name), anchor="end")
    size = f'width="{WIDTH - LEFT - RIGHT:g}" height="{PASS + 1 + LANE:g}"'
    yield f'<rect x="{LEFT:g}" y="{y:g}" {size} fill="#888" fill-opacity="0.1"/>'
    for bar in passes:
        yield _box(bar, y, PASS, scale)
        if (bar.end - bar.start) * scale > 7 * len(bar.label) + 2 and bar.label:
            yield _text(LEFT + (bar.start + bar.end) / 2 * scale, y + 14, bar.label, anchor="middle")
    for bar in lane:
        yield _box(bar, y + PASS + 1, LANE, scale)


def _box(bar: Bar, y: float, height: float, scale: float) -> str:
    x, width = LEFT + bar.start * scale, max((bar.end - bar.start) * scale, 0.2)
    line = ' stroke="#fff" stroke-width="0.6"' if height == PASS and width > 2 else ""
    return (
        f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}" fill="{COLOURS.get(bar.kind, "#000")}"{line}>'
        f"<title>{bar.kind} {bar.label}: {seconds(bar.start)} to {seconds(bar.end)}</title></rect>"
    )


def _axis(end: float, scale: float, y: float) -> Iterator[str]:
    """Yield ticks at round times, five to twelve of them."""
    power = 10.0 ** math.floor(math.log10(end or 1.0))
    step = next(power * k for k in (0.1, 0.2, 0.5, 1) if end / (power * k) <= 12)
    for i in range(int(end / step + 1e-9) + 1):
        x = LEFT + i * step * scale
        yield f'<line x1="{x:.2f}" y1="{TOP:g}" x2="{x:.2f}" y2="{y:g}" stroke="#000" stroke-opacity="0.12"/>'
        yield _text(x, y + 12, seconds(i * step), anchor="middle")


def _legend(kinds: Iterable[str], y: float, left_out: int) -> Iterator[str]:
    x = LEFT
    present = set(kinds)
    for kind in (k for k in COLOURS if k in present):
        yield f'<rect x="{x:g}" y="{y - 10:g}" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield _text(x + 17, y, kind)
        x += 34 + 6.6 * len(kind)
    yield _text(x, y, "blank: bubble" + (f"; {left_out:,} more classes of ranks are not drawn" if left_out else ""))


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{text}</text>'


def _open(height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}" '
        f'font-family="system-ui, sans-serif" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>'
    )
