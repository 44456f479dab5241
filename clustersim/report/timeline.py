"""The timeline of a step as a picture: a row a rank cell, passes above, communication below in a thin lane.

What is blank is bubble. Passes are labelled with their microbatch where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from clustersim.drawing import picture as pictures
from clustersim.drawing.canvas import Canvas, Coordinates
from clustersim.drawing.svg import text
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import Span
from clustersim.engine.record import Record
from clustersim.report.breakdown import PART_OF
from clustersim.units import seconds

ROWS = 64
"""Rank cells drawn at most; the rest is named in the last line."""

WIDTH, LEFT, RIGHT, TOP = 1000.0, 130.0, 16.0, 34.0
ROW, PASS, LANE = 32.0, 20.0, 5.0
GROUND = "#f3f3f3"
COLOURS = {  # Okabe and Ito (2008), which colour-blind readers can tell apart
    "forward": "#56b4e9",
    "backward": "#e69f00",
    "weight gradients": "#f0e442",
    "optimizer": "#999999",
    "tensor parallel": "#cc79a7",
    "pipeline": "#0072b2",
    "data parallel": "#009e73",
    "expert parallel": "#d55e00",
    "context parallel": "#b59a5b",
}
PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight gradients"}
LANES = {
    "tp": "tensor parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    "cp": "context parallel",
    "model": "optimizer",
}
"""By part of the step, as in a breakdown; messages between stages are what has none."""


class Bar(NamedTuple):
    """From `start` to `end` seconds, something of the kind `kind`."""

    kind: str
    start: float
    end: float
    label: str = ""


def svg(record: Record, plan: Plan, title: str = "") -> str:
    """Return the drawing of a record as SVG; the same record gives the same text."""
    return text(picture(record, plan, title))


def picture(record: Record, plan: Plan, title: str = "") -> Canvas:
    """Return the drawing of a record.

    record, plan: what was simulated. title: stands above, with the step time.
    """
    rows = min(len(plan.programs), ROWS)
    scale = (WIDTH - LEFT - RIGHT) / (record.end or 1.0)
    spans: list[list[Span]] = [[] for _ in plan.programs]
    for span in record.spans:
        spans[span.rank].append(span)
    kinds: dict[str, None] = {}
    height = TOP + rows * ROW + 52
    canvas = Canvas(WIDTH, height, title)
    canvas.text((LEFT, 16), f"{title}{': ' if title else ''}{seconds(record.end)}", 14, anchor="start")
    _axis(canvas, record.end, scale, TOP + rows * ROW)
    for row in range(rows):
        passes, lane = _merged(_passes(spans[row]), 0.1 / scale), _merged(_flows(spans[row]), 1.0 / scale)
        kinds |= dict.fromkeys(bar.kind for bar in (*passes, *lane))
        _row(canvas, row, _name(plan, row), passes, lane, scale)
    _legend(canvas, kinds, height - 14, len(plan.programs) - rows)
    return canvas


def write(path: Path, record: Record, plan: Plan, title: str = "") -> None:
    """Write the drawing in the form of the ending.

    Raises InputError when the place cannot be written, DiskFullError when no space is left.
    """
    pictures.write(path, picture(record, plan, title))


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
        if span.activity is None or span.stream == HOST:
            continue
        if span.stream != "compute":
            yield Bar(_lane(span.stream), span.start, span.end)
            continue
        ends = span.segment_ends or [span.start + end for end in span.activity.ends]
        for i, segment in enumerate(span.activity.segments):
            if segment.flow:
                yield Bar(_lane(segment.flow.family), ends[2 * i], ends[2 * i + 1])


def _lane(family: str) -> str:
    return LANES.get(PART_OF.get(family, family), "pipeline")


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


def _row(canvas: Canvas, row: int, name: str, passes: Iterable[Bar], lane: Iterable[Bar], scale: float) -> None:
    y = TOP + row * ROW
    canvas.text((LEFT - 8, y + 10), name, 11, anchor="end")
    canvas.bar((LEFT, y), (WIDTH - LEFT - RIGHT, PASS + 1 + LANE), GROUND)
    for bar in passes:
        _bar(canvas, bar, y, PASS, scale)
        if (bar.end - bar.start) * scale > 7 * len(bar.label) + 2 and bar.label:
            canvas.text((LEFT + (bar.start + bar.end) / 2 * scale, y + 10), bar.label, 11)
    for bar in lane:
        _bar(canvas, bar, y + PASS + 1, LANE, scale)


def _bar(canvas: Canvas, bar: Bar, y: float, height: float, scale: float) -> None:
    at: Coordinates = (LEFT + bar.start * scale, y)
    width = max((bar.end - bar.start) * scale, 0.2)
    edge = "#ffffff" if height == PASS and width > 2 else "none"
    said = f"{bar.kind} {bar.label}: {seconds(bar.start)} to {seconds(bar.end)}"
    canvas.bar(at, (width, height), COLOURS[bar.kind], edge, said=said)


def _axis(canvas: Canvas, end: float, scale: float, y: float) -> None:
    """Draw ticks at round times, five to twelve of them."""
    power = 10.0 ** math.floor(math.log10(end or 1.0))
    step = next(power * k for k in (0.1, 0.2, 0.5, 1) if end / (power * k) <= 12)
    for i in range(int(end / step + 1e-9) + 1):
        x = LEFT + i * step * scale
        canvas.line((x, TOP), (x, y), 1.0, "#000000", 0.12)
        canvas.text((x, y + 9), seconds(i * step), 11)


def _legend(canvas: Canvas, kinds: Iterable[str], y: float, left_out: int) -> None:
    x = LEFT
    present = set(kinds)
    for kind in (k for k in COLOURS if k in present):
        canvas.bar((x, y - 6), (12, 12), COLOURS[kind])
        canvas.text((x + 17, y), kind, 11, anchor="start")
        x += 34 + 6.6 * len(kind)
    more = f"; {left_out:,} more classes of ranks are not drawn" if left_out else ""
    canvas.text((x, y), f"blank: bubble{more}", 11, anchor="start")
