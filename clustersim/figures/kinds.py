"""The figures that `clustersim plot` draws, by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clustersim.figures.bars import breakdown, splits
from clustersim.figures.canvas import Canvas
from clustersim.figures.charts import memory, roofline, scaling
from clustersim.figures.timeline import picture
from clustersim.simulation import StepResult
from clustersim.sweeps.evaluate import Row


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
