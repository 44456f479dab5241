"""The timeline of a step as a picture: a row per class of ranks, passes above, communication below in thin lanes.

Blank parts are bubbles. Passes show their microbatch if there is room. No information is in colour alone: kinds of passes differ
in height, and each kind of communication has its own lane with a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST
from clustersim.engine.program import COMPUTE, Span
from clustersim.engine.record import Record
from clustersim.figures.canvas import PAPER, PART_COLOURS, Canvas, Coordinates
from clustersim.figures.plot import AxisRange
from clustersim.report.breakdown import PART_OF
from clustersim.report.trace import spans_of_cells
from clustersim.report.trace_events import inner_flows
from clustersim.units import seconds

ROWS = 64
"""Largest number of rows. The last line names the number of classes that are left out."""

WIDTH, LEFT, RIGHT, TOP = 1000.0, 130.0, 32.0, 34.0
PASS, LANE, GAP, BETWEEN = 20.0, 6.0, 2.0, 7.0
"""Heights in pixels: of passes, of a lane, between lanes, and between rows."""
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
"""{part of a breakdown: kind of communication}. Messages between stages have no part of their own."""
SHORT = {kind: part for part, kind in LANES.items()} | {"gradient norm": "norm", "pipeline": "pp"}
"""Short label of each lane."""
BANDS = {"backward": (0.0, 1.0), "weight gradients": (0.4, 1.0), "optimizer": (0.3, 0.7)}
"""Vertical extent of each kind of pass, as shares of the row's height from the top; others have _UPPER."""
_UPPER = 0.0, 0.65
_LEGEND = 22.0


def band(letter: str) -> tuple[float, float]:
    """Return the vertical extent of a pass as shares of the row's height from the top. `letter` is F, B, I, W or another kind."""
    return BANDS.get(PASSES.get(letter, "optimizer"), _UPPER)


class Bar(NamedTuple):
    """One bar: an interval in seconds, its kind and its label."""

    kind: str
    start: float
    end: float
    label: str = ""


def picture(record: Record, plan: Plan, title: str = "") -> Canvas:
    """Return the timeline of a record. `title` is written above, with the step time. Equal records give equal pictures."""
    rows = min(len(plan.first), ROWS)
    scale = (WIDTH - LEFT - RIGHT) / (record.end or 1.0)
    spans = spans_of_cells(record.spans, range(rows)).values()
    passes = [_merged(_passes(row), 0.1 / scale) for row in spans]
    flows = [_merged(_flows(row), 1.0 / scale) for row in spans]
    ran, moved = ({bar.kind for row in bars for bar in row} for bars in (passes, flows))
    lanes = {kind: PASS + GAP + i * (LANE + GAP) for i, kind in enumerate(kind for kind in COLOURS if kind in moved)}
    pitch = PASS + GAP + len(lanes) * (LANE + GAP) + BETWEEN
    height = TOP + rows * pitch + 50 + _LEGEND * bool(lanes)
    canvas = Canvas(WIDTH, height, title)
    canvas.text((LEFT, 16), f"{title}{': ' if title else ''}{seconds(record.end)}", 14, anchor="start")
    _axis(canvas, record.end, scale, TOP + rows * pitch)
    for row in range(rows):
        others = int(plan.size[row]) - 1
        name = f"rank {plan.first[row]}" + (f" +{others:,}" if others else "")
        _row(canvas, TOP + row * pitch, name, passes[row], flows[row], lanes, scale)
    _legend(canvas, ran, lanes, TOP + rows * pitch + 36, len(plan.first) - rows)
    return canvas


def _passes(spans: Iterable[Span]) -> Iterator[Bar]:
    """Yield the bars of the compute stream. Passes that gradient buckets interrupt are several bars."""
    yield from (
        Bar(PASSES.get(s.kind, "optimizer"), s.start, s.end, str(s.microbatch) if s.microbatch >= 0 else "")
        for s in spans
        if s.stream == COMPUTE
    )


def _flows(spans: Iterable[Span]) -> Iterator[Bar]:
    """Yield the bars of communication: messages and collectives, including those inside passes."""
    for span in spans:
        if span.activity is None or span.stream == HOST:
            continue
        if span.stream != COMPUTE:
            yield Bar(_lane(span.stream), span.start, span.end)
        yield from (Bar(_lane(flow.family), start, end) for _, flow, start, end in inner_flows(span))


def _lane(family: str) -> str:
    """Return the kind of communication of a stream or family of flows, the name of its lane."""
    return LANES.get(PART_OF.get(family, family), "pipeline")


def _merged(bars: Iterable[Bar], gap: float) -> list[Bar]:
    """Return the bars with neighbours of equal kind and label joined, if less than `gap` seconds apart."""
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
    """Draw one class of ranks at `y`: its name, its passes, and its communication in lanes. `scale` is pixels/s."""
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
    """Draw one bar at `y`, at least 0.2 pixels wide."""
    at: Coordinates = (LEFT + bar.start * scale, y)
    width = max((bar.end - bar.start) * scale, 0.2)
    edge = PAPER if height > LANE and width > 2 else "none"
    tip = f"{bar.kind} {bar.label}: {seconds(bar.start)} to {seconds(bar.end)}"
    canvas.bar(at, (width, height), COLOURS[bar.kind], edge, tip=tip)


def _axis(canvas: Canvas, end: float, scale: float, y: float) -> None:
    """Draw ticks at round times, at most twelve."""
    for time in AxisRange(0.0, end or 1.0).ticks(12):
        x = LEFT + time * scale
        canvas.line((x, TOP), (x, y), 1.0, "#000000", 0.12)
        canvas.text((x, y + 9), seconds(time), 11)


def _legend(canvas: Canvas, passes: Collection[str], lanes: Collection[str], y: float, left_out: int) -> None:
    """Draw the legend: passes in their height, and below them the lanes with their names. `left_out`: rows not drawn."""
    ran = [(kind, kind, *BANDS.get(kind, _UPPER)) for kind in COLOURS if kind in passes]
    thin = LANE / PASS / 2
    x = _entries(canvas, ran, y)
    more = f"; {left_out:,} more classes of ranks are not drawn" if left_out else ""
    canvas.text((x, y), f"blank: bubble{more}", 11, anchor="start")
    _entries(canvas, [(kind, f"{SHORT[kind]}: {kind}", 0.5 - thin, 0.5 + thin) for kind in lanes], y + _LEGEND)


def _entries(canvas: Canvas, entries: Iterable[tuple[str, str, float, float]], y: float) -> float:
    """Draw a line of the legend from (kind, words, top, bottom) and return the x of its end."""
    x = LEFT
    for kind, words, top, bottom in entries:
        canvas.bar((x, y + (top - 0.5) * PASS), (12, (bottom - top) * PASS), COLOURS[kind])
        canvas.text((x + 17, y), words, 11, anchor="start")
        x += 34 + 6.1 * len(words)
    return x
