"""Charts of results: memory over the step, kernels under the roofline, and throughput by number of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError
from clustersim.figures.bars import breakdown, splits
from clustersim.figures.canvas import FAINT, Canvas
from clustersim.figures.kernels import PRODUCTS, KernelRates, kernels
from clustersim.figures.plot import AxisRange, Plot
from clustersim.figures.timeline import picture
from clustersim.report.result import stages_of
from clustersim.report.tables import memory_table
from clustersim.simulation import StepResult
from clustersim.sweeps.evaluate import Row
from clustersim.units import gibibytes, scaled, seconds

KINDS = ("framework", "buffers", "parameters", "optimizer", "gradients", "gathered", "activations", "workspace")
"""Kinds of memory from the bottom of the chart upwards; constant ones first."""
KIND_COLOURS = dict(
    zip(KINDS, ("#b0b0b0", "#cc79a7", "#8fb8de", "#b9a4f5", "#2bb58a", "#b59a5b", "#56b4e9", "#e69f00"), strict=True)
)
GIB = 2.0**30


def memory(result: StepResult) -> Canvas:
    """Return the chart of memory over the step, by kind, of the GPU with the highest peak, with its capacity."""
    ranks = result.facts.memory
    rank = max(range(len(ranks)), key=lambda i: ranks[i].peak.total)
    table = memory_table(ranks, result.record, stages_of(result.plan, result.summary))
    drawn = (np.asarray(table["pipeline_rank"]) == rank) & np.isfinite(np.asarray(table["start_s"], float))
    start = np.append(np.asarray(table["start_s"], float)[drawn], result.record.end)
    held = {kind: np.asarray(table[f"{kind}_bytes"], float)[drawn] / GIB for kind in KINDS}
    capacity = result.topology.gpu.memory / GIB
    most = max(capacity, ranks[rank].peak.total / GIB) * 1.08
    title = f"Memory of pipeline rank {rank}, the fullest: {gibibytes(ranks[rank].peak.total)}"
    plot = Plot(title, AxisRange(0.0, result.record.end), AxisRange(0.0, most), right=190.0)
    plot.frame("time in the step", "GiB", seconds, lambda value: f"{value:g}")
    _layers(plot, start, held)
    plot.line((0.0, capacity), (result.record.end, capacity), "#b3261e", dashed=True)
    words = f" {result.topology.gpu.name}: {capacity:.1f} GiB"
    plot.canvas.text(plot.at((result.record.end, capacity)), words, 12, anchor="start")
    return plot.canvas


def _layers(plot: Plot, start: Floats, held: dict[str, Floats]) -> None:
    """Draw a layer for each kind: a box for each interval in which it is constant, and its name at the right."""
    ground = np.zeros(len(start) - 1)
    last = 1e9
    for kind, values in held.items():
        if not values.any():
            continue
        top = ground + values
        changes = np.flatnonzero(np.any(np.diff(np.stack([top, ground]), axis=1) != 0, axis=0)) + 1
        for first, end in itertools.pairwise([0, *changes.tolist(), len(top)]):  # between them both edges are level
            box = (float(start[first]), float(top[first])), (float(start[end]), float(ground[first]))
            plot.box(*box, KIND_COLOURS[kind], f"{kind}: {values[first]:.2f} GiB")
            plot.line(box[0], (box[1][0], box[0][1]), width=0.6)
        last = min(plot.at((plot.x.low, float((top[-1] + ground[-1]) / 2)))[1], last - 17)
        plot.canvas.bar((plot.right + 8, last - 6), (12, 12), KIND_COLOURS[kind], FAINT)
        plot.canvas.text((plot.right + 26, last), kind, 12, anchor="start")
        ground = top


SMALLEST, LARGEST = 3.0, 16.0
"""Pixels of a kernel with no share of the step, and additional pixels of one with all of it."""


def roofline(result: StepResult) -> Canvas:
    """Return the kernels under the roofline: FLOP/s over FLOP per byte.

    Circles are GEMMs and attention, squares all other kernels. Their size is the share of the step.
    """
    rates = kernels(result)
    rows = [row for row in rates.rows if row["flop"] and row["bytes"]]
    plot = _axes(result, rates, rows)
    for roof in rates.roofs:
        _roof(plot, roof, rates.bandwidth)
    for row in rows:
        _kernel(plot, row)
    plot.canvas.dot((plot.left + 14, plot.top + 14), 6, "#56b4e9")
    plot.canvas.text((plot.left + 28, plot.top + 14), "products and attention", 12, anchor="start")
    plot.canvas.bar((plot.left + 8, plot.top + 28), (12, 12), "#f0e442", "#333333")
    plot.canvas.text((plot.left + 28, plot.top + 34), "other kernels; size: share of the step", 12, anchor="start")
    return plot.canvas


def _axes(result: StepResult, kernel_rates: KernelRates, rows: list[dict[str, Any]]) -> Plot:
    """Return the empty chart of a roofline, with axes that show all kernels and the highest roof."""
    peak = max(roof["peak"] for roof in kernel_rates.roofs)
    intensity = [row["flop"] / row["bytes"] for row in rows] or [1.0]
    rates = [row["flop"] / row["seconds"] for row in rows] or [peak]
    x = AxisRange(min(intensity) / 2, max(*intensity, 2 * peak / kernel_rates.bandwidth) * 2, True)
    plot = Plot(
        f"Kernels of {result.job.name} on {result.topology.gpu.name}", x, AxisRange(min(rates) / 2, peak * 2, True)
    )
    plot.frame("FLOP a byte of memory traffic", "FLOP/s", lambda value: f"{value:g}", lambda value: scaled(value, ""))
    return plot


def _roof(plot: Plot, roof: dict[str, Any], bandwidth: float) -> None:
    """Draw one roof: the memory bandwidth up to the ridge, then the peak, with its label."""
    peak, knee = roof["peak"], roof["peak"] / bandwidth
    first = max(plot.x.low, plot.y.low / bandwidth)
    plot.line((first, first * bandwidth), (knee, peak))
    plot.line((knee, peak), (plot.x.high, peak), dashed=roof["unit"] != "matrix")
    x, y = plot.at((plot.x.high, peak))
    words = f"{roof['dtype']} {roof['unit']} units: {scaled(peak, 'FLOP/s')}"
    plot.canvas.text((x - 4, y - 9), words, 12, anchor="end")


def _kernel(plot: Plot, row: dict[str, Any]) -> None:
    """Draw one kernel at its intensity and rate, as large as its share of the step."""
    x, y = plot.at((row["flop"] / row["bytes"], row["flop"] / row["seconds"]))
    size = SMALLEST + (LARGEST - SMALLEST) * row["share"] ** 0.5
    if row["kind"] in PRODUCTS:
        plot.canvas.dot((x, y), size, "#56b4e9")
    else:
        tip = f"{row['kind']} {row['op']}: {row['share']:.1%} of the step"
        plot.canvas.bar((x - size, y - size), (2 * size, 2 * size), "#f0e442", "#333333", tip=tip)


def scaling(rows: Sequence[Row]) -> Canvas:
    """Return the chart of the best throughput at each number of GPUs, with perfect scaling.

    Raises InputError if all points use the same number of GPUs.
    """
    best: dict[int, float] = {}
    for row in rows:
        if row["status"] == "ok":
            best[row["ranks"]] = max(best.get(row["ranks"], 0.0), row["tokens_per_s"])
    if len(best) < 2:
        what = "all points with a result use the same number of GPUs, so there is no scaling to draw"
        raise InputError(f"{what}; sweep several sizes, such as --nodes 8..128x2")
    points = sorted(best.items())
    (first, rate), (last, _) = points[0], points[-1]
    ideal = rate / first
    rates = AxisRange(min(best.values()) / 1.5, max(last * ideal, *best.values()) * 1.5, True)
    plot = Plot("Throughput by GPUs, the best split of each", AxisRange(first / 1.3, last * 1.3, True), rates)
    plot.frame("GPUs", "tokens/s", lambda value: f"{value:,.0f}", lambda value: scaled(value, ""))
    plot.line((first, rate), (last, ideal * last), FAINT, dashed=True)
    legend = f"dashed, 100 %: as many tokens/s a GPU as {first:,} GPUs have"
    plot.canvas.text((plot.left + 14, plot.top + 14), legend, 12, anchor="start")
    for (a, before), (b, after) in itertools.pairwise(points):
        plot.line((a, before), (b, after), "#0b5cad", 2.4)
    for gpus, tokens in points:
        x, y = plot.at((gpus, tokens))
        plot.canvas.dot((x, y), 5, "#0b5cad")
        plot.canvas.text((x, y + 18), f"{gpus:,}: {tokens / gpus / ideal:.0%}", 12)
    return plot.canvas


def timeline(result: StepResult) -> Canvas:
    """Return the timeline of a step, as `run --timeline` draws it."""
    return picture(result.record, result.plan, f"{result.job.name} on {result.topology.name}")


RUN: dict[str, Callable[[StepResult], Canvas]] = {
    "timeline": timeline,
    "breakdown": breakdown,
    "memory": memory,
    "roofline": roofline,
}
SWEEP: dict[str, Callable[[Sequence[Row]], Canvas]] = {"scaling": scaling, "splits": splits}
"""The figures that `clustersim plot` draws of a run and of a sweep, by their names."""
