"""The pictures of the page: predicted against measured seconds, errors by group, where a step goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clustersim.figures.canvas import FAINT, GRID, GROUP_MARKS, INK, PART_COLOURS, Canvas
from clustersim.figures.plot import AxisRange, Plot
from clustersim.report.breakdown import PARTS
from clustersim.units import duration, seconds
from clustersim.validate.evaluate import Outcome

COLOURS = (
    *("#1f77b4", "#d95f02", "#2a9d5c", "#c2185b", "#7b5bd6"),
    *("#8c6d31", "#0e9aa7", "#b5a300", "#6b7280", "#e07b91"),
)
"""Colours of GPU architectures, whose marks differ too."""
BAND = "#e3e8ed"
"""Colour of the band of errors of ±10 %."""
MOST_TITLES = 5_000
"""Largest number of points with a tooltip; with more, only positions are drawn."""
MOST_TICKS = 400
"""Largest number of ticks in a row of errors; with more runs, quantiles are drawn."""
WIDE, HIGH = 760.0, 560.0
"""Width of all pictures, and height of the scatter, in pixels."""


def scatter(rows: Sequence[Outcome]) -> Canvas:
    """Return a logarithmic scatter of predicted over measured seconds, marked by GPU architecture.

    Lines show errors of 0, ±10 and ±30 %. rows: outcomes with both times, at least one.
    """
    times = [row[key] for row in rows for key in ("measured_s", "predicted_s")]
    low = 10 ** (math.floor(2 * math.log10(min(times)) - 0.2) / 2)
    high = 10 ** (math.ceil(2 * math.log10(max(times)) + 0.2) / 2)
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    axis = AxisRange(low, high, True, tuple(10.0**power for power in decades))
    plot = Plot("Predicted against measured step time", axis, axis, size=(WIDE, HIGH))
    plot.frame("measured step", "predicted step", seconds, seconds)
    for factor, colour in ((1.3, GRID), (1 / 1.3, GRID), (1.1, FAINT), (1 / 1.1, FAINT), (1.0, INK)):
        first, last = max(low, low / factor), min(high, high / factor)
        plot.line((first, first * factor), (last, last * factor), colour, dashed=factor != 1)
    names = [name for name, _ in Counter(str(row["architecture"]) for row in rows).most_common()]
    for number, name in enumerate(names):
        mark = GROUP_MARKS[number % len(GROUP_MARKS)], COLOURS[number % len(COLOURS)]
        shown = [row for row in rows if row["architecture"] == name]
        tips = [_tooltip(row) for row in shown] if len(rows) <= MOST_TITLES else ()
        plot.marks([(row["measured_s"], row["predicted_s"]) for row in shown], *mark, tips)
        down = plot.top + 16 + 18 * number
        plot.canvas.marks([(plot.left + 16, down)], *mark)
        plot.canvas.text((plot.left + 28, down), name, 12, anchor="start")
    return plot.canvas


def spread(groups: Mapping[str, Sequence[float]]) -> Canvas:
    """Return a picture with a row per group: a tick per run, a box from 10th to 90th percentile, a line at the median.

    groups: {name: signed errors as fractions, at least one}.
    """
    ends = (abs(end) for values in groups.values() for end in np.quantile(values, (0.05, 0.95)).tolist())
    most, bottom = min(1.0, max(0.2, *ends)), 26.0 * len(groups)
    axis, canvas = AxisRange(-most, most), Canvas(WIDE, bottom + 30, "Errors by group")

    def across(error: float) -> float:
        """Return the x of an error in pixels; errors beyond the ends are drawn at the ends."""
        return 240 + axis.share(max(-most, min(most, error))) * 455

    canvas.bar((across(-0.1), 0), (across(0.1) - across(-0.1), bottom), BAND)
    for value in axis.ticks(9):
        canvas.line((across(value), 0), (across(value), bottom), 1.0, GRID if value else INK)
        canvas.text((across(value), bottom + 14), f"{100 * value:+.0f} %" if value else "0", 12)
    for number, (name, values) in enumerate(groups.items()):
        y, count = 26.0 * number + 13, len(values)
        ticks = values if count <= MOST_TICKS else np.quantile(values, np.linspace(0, 1, MOST_TICKS + 1)).tolist()
        low, middle, high = map(across, np.quantile(values, (0.1, 0.5, 0.9)).tolist())
        canvas.text((228, y), name if len(name) <= 30 else f"{name[:29]}…", 12, anchor="end")
        canvas.marks([(across(value), y) for value in ticks], "tick", COLOURS[0])
        canvas.bar((low, y - 5), (high - low, 10), f"{COLOURS[0]}33")
        canvas.line((middle, y - 9), (middle, y + 9), 2.5, COLOURS[1])
        canvas.text((712, y), str(count), 12, anchor="start")
    return canvas


def bar(row: Outcome) -> Canvas:
    """Return a bar of the parts of an outcome's step, above a line of the measured time; the longer fills the width."""
    scale, canvas, x = 260 / max(row["measured_s"], row["predicted_s"]), Canvas(260, 22, ""), 0.0
    for part in PARTS:
        taken = row["breakdown_s"].get(part) or 0.0
        if taken > 0:
            canvas.bar((x, 2), (scale * taken, 12), PART_COLOURS[part], tip=f"{part}: {duration(taken)}")
        x += scale * taken
    canvas.line((0, 18), (scale * row["measured_s"], 18), 2.5, INK)
    return canvas


def parts_legend(used: Callable[[str], bool]) -> str:
    """Return the names and colours of the parts for which `used` returns true, as HTML."""
    box = '<span><b style="color:{}">■</b> {}</span>'
    names = "".join(box.format(PART_COLOURS[part], part) for part in PARTS if used(part))
    return f"{names}<span><b>▁</b> measured</span>"


def _tooltip(row: Outcome) -> str:
    """Return the tooltip of an outcome: its job, both times and the error."""
    split = f"tp {row['tp']} pp {row['pp']} dp {row['dp']}"
    return (
        f"{row['id']}: {row['model']}, {row['num_gpus']} × {row['gpu']}, {split}: "
        f"{duration(row['predicted_s'])}, measured {duration(row['measured_s'])} ({100 * row['error']:+.1f} %)"
    )
