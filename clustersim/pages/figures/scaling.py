"""How throughput grows with GPUs: the best point of a sweep at each number of them, beside what no loss would give."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from clustersim.drawing.canvas import Canvas
from clustersim.drawing.plot import AxisRange, Plot
from clustersim.errors import InputError
from clustersim.sweeps.evaluate import Row
from clustersim.units import scaled

of = "sweep"


def draw(rows: Sequence[Row]) -> Canvas:
    """Return the picture. Raises InputError where all points use as many GPUs."""
    best: dict[int, Row] = {}
    for row in rows:
        if (
            row["status"] == "ok"
            and row["tokens_per_s"] > best.get(row["ranks"], {"tokens_per_s": 0.0})["tokens_per_s"]
        ):
            best[row["ranks"]] = row
    if len(best) < 2:
        what = "all points that have a result use as many GPUs, so there is no scaling to draw"
        raise InputError(f"{what}; sweep several sizes, such as --nodes 8..128x2")
    points = [(gpus, best[gpus]["tokens_per_s"]) for gpus in sorted(best)]
    return _plot(points)


def _plot(points: Sequence[tuple[int, float]]) -> Canvas:
    (first, rate), (last, _) = points[0], points[-1]
    ideal = rate / first
    plot = Plot(
        "Throughput by GPUs, the best split of each", AxisRange(first / 1.3, last * 1.3, True), _rates(points, ideal)
    )
    plot.frame("GPUs", "tokens/s", lambda value: f"{value:,.0f}", lambda value: scaled(value, ""))
    plot.line((first, rate), (last, ideal * last), "#7b8794", dashed=True)
    said = f"dashed, 100 %: as many tokens/s a GPU as {first:,} GPUs have"
    plot.canvas.text((plot.left + 14, plot.top + 14), said, 12, anchor="start")
    for (a, one), (b, other) in itertools.pairwise(points):
        plot.line((a, one), (b, other), "#0b5cad", 2.4)
    for gpus, tokens in points:
        x, y = plot.at((gpus, tokens))
        plot.canvas.dot((x, y), 5, "#0b5cad")
        plot.canvas.text((x, y + 18), f"{gpus:,}: {tokens / gpus / ideal:.0%}", 12)
    return plot.canvas


def _rates(points: Sequence[tuple[int, float]], ideal: float) -> AxisRange:
    return AxisRange(
        min(rate for _, rate in points) / 1.5, max(points[-1][0] * ideal, *(rate for _, rate in points)) * 1.5, True
    )
