"""The memory of the fullest GPU over the step, by kind, against what the GPU has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats
from clustersim.drawing.canvas import Canvas
from clustersim.drawing.plot import AxisRange, Plot
from clustersim.pages.memory import KINDS
from clustersim.report.result import stages_of
from clustersim.report.tables import memory_table
from clustersim.simulation import StepResult
from clustersim.units import gibibytes, seconds

of = "run"
COLOURS = dict(
    zip(KINDS, ("#b0b0b0", "#cc79a7", "#8fb8de", "#b9a4f5", "#2bb58a", "#b59a5b", "#56b4e9", "#e69f00"), strict=True)
)
GIB = 2.0**30


def draw(result: StepResult) -> Canvas:
    """Return the picture."""
    memory = result.facts.memory
    rank = max(range(len(memory)), key=lambda i: memory[i].peak.total)
    table = memory_table(memory, result.record, stages_of(result.plan, result.summary))
    own = (np.asarray(table["pipeline_rank"]) == rank) & np.isfinite(np.asarray(table["start_s"], float))
    start = np.append(np.asarray(table["start_s"], float)[own], result.record.end)
    held = {kind: np.asarray(table[f"{kind}_bytes"], float)[own] / GIB for kind in KINDS}
    capacity = result.topology.gpu.memory / GIB
    most = max(capacity, memory[rank].peak.total / GIB) * 1.08
    title = f"Memory of pipeline rank {rank}, the fullest: {gibibytes(memory[rank].peak.total)}"
    plot = Plot(title, AxisRange(0.0, result.record.end), AxisRange(0.0, most), right=190.0)
    plot.frame("time in the step", "GiB", seconds, lambda value: f"{value:g}")
    _layers(plot, start, held)
    plot.line((0.0, capacity), (result.record.end, capacity), "#b3261e", dashed=True)
    plot.note((result.record.end, capacity), f" {result.topology.gpu.name}: {capacity:.1f} GiB")
    return plot.canvas


def _layers(plot: Plot, start: Floats, held: dict[str, Floats]) -> None:
    """Draw a layer a kind, a box for each stretch of time in which it stays as it is, and its name beside it."""
    ground = np.zeros(len(start) - 1)
    last = 1e9
    for kind, values in held.items():
        if not values.any():
            continue
        top = ground + values
        for first, end in _level(top, ground):
            box = (float(start[first]), float(top[first])), (float(start[end]), float(ground[first]))
            plot.box(*box, COLOURS[kind], f"{kind}: {values[first]:.2f} GiB")
            plot.line(box[0], (box[1][0], box[0][1]), width=0.6)
        last = plot.name_beside(float((top[-1] + ground[-1]) / 2), kind, last, COLOURS[kind])
        ground = top


def _level(top: Floats, ground: Floats) -> Sequence[tuple[int, int]]:
    """Return from which pass to which nothing changes."""
    change = np.flatnonzero(np.any(np.diff(np.stack([top, ground]), axis=1) != 0, axis=0)) + 1
    edges = [0, *change.tolist(), len(top)]
    return list(itertools.pairwise(edges))
