"""The memory of a page: what the fullest GPU of each pipeline rank holds while each of its passes runs."""

from __future__ import annotations

import numpy as np

from clustersim.figures.charts import KINDS
from clustersim.report.folded_time import FoldedTime
from clustersim.report.result import stages_of
from clustersim.report.tables import memory_table
from clustersim.simulation import StepResult

UNIT = 2**20
"""Bytes of a unit of the page's memory."""
TICK = 1e-9


def memory(result: StepResult, fold: FoldedTime) -> dict[str, object]:
    """Return, by pipeline rank, when each pass begins (ns) and what is held while it runs (MiB), by kind."""
    table = memory_table(result.facts.memory, result.record, stages_of(result.plan, result.summary))
    start, ranks = np.asarray(table["start_s"], float), np.asarray(table["pipeline_rank"])
    drawn = np.isfinite(start)
    drawn[drawn] &= fold.shown(start[drawn])
    held = {kind: np.rint(np.asarray(table[f"{kind}_bytes"], float) / UNIT).astype(int) for kind in KINDS}
    series = []
    for rank, own in enumerate(result.facts.memory):
        rows = np.flatnonzero(drawn & (ranks == rank))
        times = np.rint(fold.folded(start[rows]) / TICK).astype(int)
        series.append(
            {
                "start": times.tolist(),
                "held": {kind: _short(held[kind][rows].tolist()) for kind in KINDS if held[kind][rows].any()},
                "peak": {kind: round(value / UNIT) for kind, value in own.peak._asdict().items() if value},
            }
        )
    return {
        "capacity": round(result.topology.gpu.memory / UNIT),
        "ranks": series,
        "kinds": list(KINDS),
    }


def _short(values: list[int]) -> list[int] | int:
    """Return one number for what never changes."""
    return values[0] if values and min(values) == max(values) else values
