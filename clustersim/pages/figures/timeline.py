"""The timeline of a step, the same as `run --timeline`."""

from __future__ import annotations

from clustersim.drawing.canvas import Canvas
from clustersim.report.timeline import picture
from clustersim.simulation import StepResult

of = "run"


def draw(result: StepResult) -> Canvas:
    """Return the picture."""
    return picture(result.record, result.plan, f"{result.job.name} on {result.topology.name}")
