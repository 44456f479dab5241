"""The timeline of a step as a picture: a row a rank cell, passes above, communication below in thin lanes.

What is blank is bubble. Passes are labelled with their microbatch where there is room. Nothing is told by colour alone: kinds of
passes are of different height, and each kind of communication has a lane of its own, with its name beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import Span
from clustersim.engine.record import Record
from clustersim.figures import files as pictures
from clustersim.figures.canvas import PART_COLOURS, Canvas, Coordinates
from clustersim.figures.canvas import svg as text
from clustersim.report.breakdown import PART_OF
from clustersim.units import seconds

ROWS = 64
"""Rank cells drawn at most; the rest is named in the last line."""

WIDTH, LEFT, RIGHT, TOP = 1000.0, 130.0, 32.0, 34.0
PASS, LANE, GAP, BETWEEN = 20.0, 6.0, 2.0, 7.0
"""Heights of passes, of a lane, of what is between lanes, and of what is between rows."""
GROUND = "#f3f3f3"
COLOURS = {
    "forward": PART_COLOURS["compute"],
    "backward": "#e69f00",
    "weight gradients": "#f0e442",
    "optimizer": "#999999",
    "tensor parallel": PART_COLOURS["tp"],
    "pipeline": PART_COLOURS["pp"],
    "data parallel": "#009e73",
    "expert parallel": PART_COLOURS["ep"],
    "context parallel": PART_COLOURS["cp"],
    "gradient norm": "#999999",
}
PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight gradients"}
LANES = {
    "tp": "tensor parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    "cp": "context parallel",
    "model": "gradient norm",
}
"""By part of the step, as in a breakdown; messages between stages are what has none."""
SHORT = {kind: part for part, kind in LANES.items()} | {"gradient norm": "norm", "pipeline": "pp"}
"""What a lane is called beside it."""
BANDS = {"backward": (0.0, 1.0), "weight gradients": (0.4, 1.0), "optimizer": (0.3, 0.7)}
"""From where to where a kind of pass reaches, as shares of the height from above; others as _UPPER."""
_UPPER = 0.0, 0.65
_LEGEND = 22.0


def band(letter: str) -> tuple[float, float]:
    """Return from where to where a pass reaches, as shares of the height from above; letter: as schedules write it."""
    return BANDS.get(PASSES.get(letter, "optimizer"), _UPPER)


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
    passes = [_merged(_passes(row), 0.1 / scale) for row in spans[:rows]]
    flows = [_merged(_flows(row), 1.0 / scale) for row in spans[:rows]]
    ran, moved = ({bar.kind for row in bars for bar in row} for bars in (passes, flows))
    lanes = {kind: PASS + GAP + i * (LANE + GAP) for i, kind in enumerate(kind for kind in COLOURS if kind in moved)}
    pitch = PASS + GAP + len(lanes) * (LANE + GAP) + BETWEEN
    height = TOP + rows * pitch + 50 + _LEGEND * bool(lanes)
    canvas = Canvas(WIDTH, height, title)
    canvas.text((LEFT, 16), f"{title}{': ' if title else ''}{seconds(record.end)}", 14, anchor="start")
    _axis(canvas, record.end, scale, TOP + rows * pitch)
    for row in range(rows):
        _row(canvas, TOP + row * pitch, _name(plan, row), passes[row], flows[row], lanes, scale)
    _legend(canvas, ran, lanes, TOP + rows * pitch + 36, len(plan.programs) - rows)
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
    """Yield the activities of the compute stream; passes that are cut by buckets come in pieces."""
    yield from (
        Bar(PASSES.get(s.kind, "optimizer"), s.start, s.end, str(s.microbatch) if s.microbatch >= 0 else "")
        for s in spans
        if s.stream == "compute"
    )


def _flows(spans: Iterable[Span]) -> Iterator[Bar]:
    """Yield the transfers of a rank: messages and collectives, those inside its passes included."""
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


def _row(
    canvas: Canvas,
    y: float,
    name: str,
    passes: Iterable[Bar],
    flows: Iterable[Bar],
    lanes: Mapping[str, float],
    scale: float,
) -> None:
    canvas.text((LEFT - 8, y + PASS / 2), name, 11, anchor="end")
    wide = WIDTH - LEFT - RIGHT
    canvas.bar((LEFT, y), (wide, PASS), GROUND)
    for kind, down in lanes.items():
        canvas.bar((LEFT, y + down), (wide, LANE), GROUND)
        canvas.text((WIDTH - RIGHT + 4, y + down + LANE / 2), SHORT[kind], 8, anchor="start")
    for bar in passes:
        top, bottom = BANDS.get(bar.kind, _UPPER)
        _bar(canvas, bar, y + top * PASS, (bottom - top) * PASS, scale)
        if (bar.end - bar.start) * scale > 7 * len(bar.label) + 2 and bar.label:
            canvas.text((LEFT + (bar.start + bar.end) / 2 * scale, y + (top + bottom) / 2 * PASS), bar.label, 11)
    for bar in flows:
        _bar(canvas, bar, y + lanes[bar.kind], LANE, scale)


def _bar(canvas: Canvas, bar: Bar, y: float, height: float, scale: float) -> None:
    at: Coordinates = (LEFT + bar.start * scale, y)
    width = max((bar.end - bar.start) * scale, 0.2)
    edge = "#ffffff" if height > LANE and width > 2 else "none"
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


def _legend(canvas: Canvas, passes: Collection[str], lanes: Collection[str], y: float, left_out: int) -> None:
    """Draw what stands for what: passes as high as they are drawn, and below them lanes with the names beside them."""
    ran = [(kind, kind, *BANDS.get(kind, _UPPER)) for kind in COLOURS if kind in passes]
    thin = LANE / PASS / 2
    x = _entries(canvas, ran, y)
    more = f"; {left_out:,} more classes of ranks are not drawn" if left_out else ""
    canvas.text((x, y), f"blank: bubble{more}", 11, anchor="start")
    _entries(canvas, [(kind, f"{SHORT[kind]}: {kind}", 0.5 - thin, 0.5 + thin) for kind in lanes], y + _LEGEND)


def _entries(canvas: Canvas, entries: Iterable[tuple[str, str, float, float]], y: float) -> float:
    """Draw a line of the legend: kinds, their words, and from where to where they reach; return where it ends."""
    x = LEFT
    for kind, words, top, bottom in entries:
        canvas.bar((x, y + (top - 0.5) * PASS), (12, (bottom - top) * PASS), COLOURS[kind])
        canvas.text((x + 17, y), words, 11, anchor="start")
        x += 34 + 6.1 * len(words)
    return x
