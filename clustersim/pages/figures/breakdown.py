"""Where the step goes: the critical path, the mean of all ranks, and a rank of the first and of the last pipeline rank."""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.drawing.canvas import Canvas
from clustersim.report.result import stages_of
from clustersim.report.terminal import NAMES
from clustersim.simulation import StepResult
from clustersim.units import duration

of = "run"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 1000.0, 220.0, 24.0, 52.0, 46.0, 28.0
COLOURS = {  # Okabe and Ito (2008); every piece that has room says what it is
    "compute": "#56b4e9",
    "tp": "#cc79a7",
    "pp": "#8fb8de",
    "dp": "#2bb58a",
    "ep": "#e8793a",
    "cp": "#b59a5b",
    "optimizer": "#b0b0b0",
    "host": "#b9a4f5",
    "bubble": "#f0f0f0",
}


def draw(result: StepResult) -> Canvas:
    """Return the picture."""
    bars = _bars(result)
    names = [name for name in NAMES if any(parts.get(name, 0.0) > 0 for parts in bars.values())]
    title = f"{result.job.name} on {result.topology.name}: {duration(result.record.end)}"
    canvas = Canvas(WIDTH, TOP + len(bars) * ROW + 40, title)
    canvas.text((24, 24), title, 16, anchor="start", bold=True)
    for row, (label, parts) in enumerate(bars.items()):
        _bar(canvas, TOP + row * ROW, label, {name: parts.get(name, 0.0) for name in names}, result.record.end)
    _legend(canvas, names, TOP + len(bars) * ROW + 14)
    return canvas


def _bars(result: StepResult) -> dict[str, Mapping[str, float]]:
    """Return the parts by what they are of; ranks of one pipeline rank differ, so that a bar says whose it is."""
    summary = result.summary
    found = {"critical path": summary["critical_path_s"], "mean of ranks": summary["breakdown_s"]}
    if result.job.parallelism.pp > 1:
        stages = stages_of(result.plan, summary)
        for stage in (0, max(stages)):
            cell = stages.index(stage)
            found[f"rank {result.plan.first[cell]} (pipeline rank {stage})"] = result.parts[cell]
    return found


def _bar(canvas: Canvas, y: float, label: str, parts: Mapping[str, float], step: float) -> None:
    canvas.text((LEFT - 10, y + BAR / 2), label, 13, anchor="end")
    x = LEFT
    for name, seconds in parts.items():
        width = seconds / step * (WIDTH - LEFT - RIGHT)
        canvas.bar((x, y), (width, BAR), COLOURS[name], "#555555", said=f"{NAMES[name]}: {duration(seconds)}")
        words = next((w for w in (f"{name} {seconds / step:.0%}", name) if 7.4 * len(w) + 4 < width), "")
        if words:
            canvas.text((x + width / 2, y + BAR / 2), words, 12)
        x += width


def _legend(canvas: Canvas, names: list[str], y: float) -> None:
    x = 24.0
    for name in names:
        words = f"{name}: {NAMES[name]}" if len(name) == 2 else NAMES[name]
        if x + 6.4 * len(words) + 24 > WIDTH:
            x, y, canvas.height = 24.0, y + 20, canvas.height + 20
        canvas.bar((x, y - 6), (12, 12), COLOURS[name], "#555555")
        canvas.text((x + 18, y), words, 12, anchor="start")
        x += 6.4 * len(words) + 36
