"""Breakdowns of steps as stacked bars: of one step, or of the best points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clustersim.figures.canvas import FAINT, INK, PAPER, PART_COLOURS, Canvas
from clustersim.report.result import stages_of
from clustersim.report.terminal import NAMES
from clustersim.simulation import StepResult
from clustersim.sweeps.evaluate import Row
from clustersim.sweeps.table import ranked
from clustersim.units import duration

WIDTH, RIGHT, ROW, BAR, LEGEND = 1000.0, 24.0, 40.0, 26.0, 20.0
RUN_LEFT, RUN_TOP = 220.0, 52.0
SWEEP_LEFT, SWEEP_RIGHT, SWEEP_TOP = 170.0, 150.0, 84.0
MOST = 24
"""Largest number of bars in a sweep's figure, points without a result included."""
TIME = 66.0
"""Width of the expected step time at the start of a bar of a sweep, in pixels."""
UNFIT = "#b00020"


def breakdown(result: StepResult) -> Canvas:
    """Return the breakdown of one step: critical path, mean of all ranks, and a rank of the first and the last stage."""
    bars = _step_bars(result)
    names = [name for name in NAMES if any(parts.get(name, 0.0) > 0 for parts in bars.values())]
    canvas = Canvas(WIDTH, 0, f"{result.job.name} on {result.topology.name}: simulated {duration(result.record.end)}")
    canvas.text((24, 24), canvas.title, 16, anchor="start", bold=True)
    scale = (WIDTH - RUN_LEFT - RIGHT) / result.record.end
    for place, (label, parts) in enumerate(bars.items()):
        y = RUN_TOP + place * ROW
        canvas.text((RUN_LEFT - 10, y + BAR / 2), label, 13, anchor="end")
        _bar(canvas, (RUN_LEFT, y), {name: parts.get(name, 0.0) for name in names}, scale, result.record.end)
    _legend(canvas, names, RUN_TOP + len(bars) * ROW + 10)
    return canvas


def _step_bars(result: StepResult) -> dict[str, Mapping[str, float]]:
    """Return {label: {part: seconds}} of the bars of a step. Ranks of one pipeline rank differ, so labels name the rank."""
    summary = result.summary
    bars = {"critical path": summary["critical_path_s"], "mean of ranks": summary["breakdown_s"]}
    if result.job.parallelism.pp > 1:
        stages = stages_of(result.plan, summary)
        for stage in (0, max(stages)):
            cell = stages.index(stage)
            bars[f"rank {result.plan.first[cell]} (pipeline rank {stage})"] = result.parts[cell]
    return bars


def split_text(row: Row) -> str:
    """Return the parallel degrees of a row, such as `tp 8 · pp 4 · dp 16`."""
    axes = [axis for axis in ("tp", "pp", "dp", "cp", "ep") if row.get(axis, 1) != 1 or axis in ("tp", "pp", "dp")]
    return " · ".join(f"{axis} {row[axis]}" for axis in axes if axis in row)


def splits(
    rows: Sequence[Row],
    title: str = "The fastest points of the sweep",
    subtitle: str = "where a step goes, on the mean of all GPUs",
    label: Callable[[Row], str] = split_text,
) -> Canvas:
    """Return the figure of a sweep: its fastest points, and below them points that do not fit. `label` names a row."""
    best = ranked(rows)[:MOST]
    unfit = [row for row in rows if row["status"] == "does not fit"][: MOST - len(best)]
    longest = max((row["step_time_s"] for row in best), default=1.0)
    names = [name for name in NAMES if any(row.get(f"{name}_s", 0.0) > 0.002 * longest for row in best)]
    canvas = Canvas(WIDTH, 0, title)
    canvas.text((16, 24), title, 17, anchor="start", bold=True)
    canvas.text((16, 46), subtitle, 13, FAINT, "start")
    if best:
        canvas.text((SWEEP_LEFT, SWEEP_TOP - 12), "step time", 12, FAINT, "start")
        canvas.text((WIDTH - 16, SWEEP_TOP - 12), "tokens/s", 12, FAINT, "end")
    scale = (WIDTH - SWEEP_LEFT - SWEEP_RIGHT) / longest
    for place, row in enumerate([*best, *unfit]):
        y, first = SWEEP_TOP + place * ROW, place == 0 and bool(best)
        middle = y + BAR / 2
        if place >= len(best):
            canvas.text((SWEEP_LEFT - 10, middle), label(row), 13, FAINT, "end")
            canvas.text((SWEEP_LEFT, middle), "does not fit into memory", 13, UNFIT, "start")
            continue
        canvas.text((SWEEP_LEFT - 10, middle), label(row), 13, anchor="end", bold=first)
        parts = {name: row.get(f"{name}_s", 0.0) for name in NAMES}
        expected = row.get("expected_step_time_s", row["step_time_s"])  # rows of older releases have no other
        _bar(canvas, (SWEEP_LEFT, y), parts, scale, row["step_time_s"], begin=TIME)
        canvas.text((SWEEP_LEFT + 8, middle), duration(expected), 13, anchor="start", bold=first)
        canvas.text((WIDTH - 16, middle), f"{row['tokens_per_s']:,.0f}", 13, anchor="end", bold=first)
    _legend(canvas, names, SWEEP_TOP + (len(best) + len(unfit)) * ROW + 10)
    return canvas


def _bar(
    canvas: Canvas, at: tuple[float, float], parts: Mapping[str, float], scale: float, step: float, begin: float = 0.0
) -> None:
    """Draw the parts {name: seconds} of a step of `step` seconds as one bar whose upper left corner is `at`.

    scale: pixels/s. begin: pixels at the start of the bar that stay free of names and shares.
    """
    x, y = at
    for name, seconds in parts.items():
        width = seconds * scale
        if width > 0.05:
            canvas.bar((x, y), (width, BAR), PART_COLOURS[name], PAPER, tip=f"{NAMES[name]}: {duration(seconds)}")
        left = max(x, at[0] + begin)
        room = x + width - left
        if words := next((w for w in (f"{name} {seconds / step:.0%}", name) if 7.4 * len(w) + 4 < room), ""):
            canvas.text((left + room / 2, y + BAR / 2), words, 12, PAPER if name in ("pp", "ep") else INK)
        x += width


def _legend(canvas: Canvas, names: Sequence[str], y: float) -> None:
    """Draw the colours of the parts from height `y` in as many lines as needed, and end the canvas below them."""
    x = 24.0
    for name in names:
        words = f"{name}: {NAMES[name]}" if len(name) == 2 else NAMES[name]
        if x + 6.4 * len(words) + 24 > WIDTH:
            x, y = 24.0, y + LEGEND
        canvas.bar((x, y - 6), (12, 12), PART_COLOURS[name], FAINT)
        canvas.text((x + 18, y), words, 12, anchor="start")
        x += 6.4 * len(words) + 36
    canvas.height = y + LEGEND
