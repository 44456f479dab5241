"""The kernels of a step under the roof of the GPU: FLOP/s over FLOP a byte, both logarithmic."""

from __future__ import annotations

from clustersim.drawing.canvas import Canvas
from clustersim.drawing.plot import AxisRange, Plot
from clustersim.pages.kernels import PRODUCTS, KernelRates, Rated, Roof, kernels
from clustersim.simulation import StepResult
from clustersim.units import scaled

of = "run"
SMALLEST, LARGEST = 3.0, 16.0
"""Pixels of a kernel that takes nothing of the step, and more of one that takes all."""


def draw(result: StepResult) -> Canvas:
    """Return the picture: discs are products and attention, squares all others, the larger the more of the step."""
    found = kernels(result)
    rows = [row for row in found["rows"] if row["flop"] and row["bytes"]]
    plot = _axes(result, found, rows)
    for roof in found["roofs"]:
        _roof(plot, roof, found["bandwidth"])
    for row in rows:
        _kernel(plot, row)
    plot.canvas.dot((plot.left + 14, plot.top + 14), 6, "#56b4e9")
    plot.canvas.text((plot.left + 28, plot.top + 14), "products and attention", 12, anchor="start")
    plot.canvas.bar((plot.left + 8, plot.top + 28), (12, 12), "#f0e442", "#333333")
    plot.canvas.text((plot.left + 28, plot.top + 34), "other kernels; size: share of the step", 12, anchor="start")
    return plot.canvas


def _axes(result: StepResult, found: KernelRates, rows: list[Rated]) -> Plot:
    peak = max(roof["peak"] for roof in found["roofs"])
    intensity = [row["flop"] / row["bytes"] for row in rows] or [1.0]
    rates = [row["flop"] / row["seconds"] for row in rows] or [peak]
    x = AxisRange(min(intensity) / 2, max(*intensity, 2 * peak / found["bandwidth"]) * 2, True)
    plot = Plot(
        f"Kernels of {result.job.name} on {result.topology.gpu.name}", x, AxisRange(min(rates) / 2, peak * 2, True)
    )
    plot.frame("FLOP a byte of memory traffic", "FLOP/s", lambda value: f"{value:g}", lambda value: scaled(value, ""))
    return plot


def _roof(plot: Plot, roof: Roof, bandwidth: float) -> None:
    peak, knee = roof["peak"], roof["peak"] / bandwidth
    first = max(plot.x.low, plot.y.low / bandwidth)
    plot.line((first, first * bandwidth), (knee, peak))
    plot.line((knee, peak), (plot.x.high, peak), dashed=roof["unit"] != "matrix")
    x, y = plot.at((plot.x.high, peak))
    words = f"{roof['dtype']} {roof['unit']} units: {scaled(peak, 'FLOP/s')}"
    plot.canvas.text((x - 4, y - 9), words, 12, anchor="end")


def _kernel(plot: Plot, row: Rated) -> None:
    x, y = plot.at((row["flop"] / row["bytes"], row["flop"] / row["seconds"]))
    size = SMALLEST + (LARGEST - SMALLEST) * row["share"] ** 0.5
    if row["kind"] in PRODUCTS:
        plot.canvas.dot((x, y), size, "#56b4e9")
    else:
        said = f"{row['kind']} {row['op']}: {row['share']:.1%} of the step"
        plot.canvas.bar((x - size, y - size), (2 * size, 2 * size), "#f0e442", "#333333", said=said)
