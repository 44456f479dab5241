"""What `clustersim schedule` prints."""

from __future__ import annotations

import math
from typing import Any

from clustersim.schedules.action import Schedule
from clustersim.schedules.check import in_flight, load, pipeline
from clustersim.schedules.draw import LEGEND, draw, rows
from clustersim.schedules.pipeline import Pipeline
from clustersim.schedules.play import UNIT, play
from clustersim.units import plural


def schedule_text(name: str, stages: int, microbatches: int, chunks: int = 1) -> str:
    """Return the timeline of a schedule, its bubble, what each rank keeps, and its actions in PyTorch's notation.

    A forward takes one unit of time, a backward two; transfers are free. Raises InputError for what it cannot build.
    """
    schedule = load(name, stages, microbatches, chunks)
    on = pipeline(name, stages, chunks)
    makespan, work = _units(schedule, on)
    parts = plural(stages, "stage", "stages") + (f" of {chunks} chunks" if chunks > 1 else "")
    parts += f", {plural(microbatches, 'microbatch', 'microbatches')}"
    kept = ", ".join(str(in_flight(row, on.paired)) for row in schedule)
    return "\n".join(
        (
            f"{name}: {parts}",
            "",
            draw(schedule, on),
            "",
            LEGEND,
            f"bubble: {makespan - work:g} of {makespan:g} units ({(makespan - work) / makespan:.1%})",
            f"microbatches in flight, by rank: {kept}",
            "",
            rows(schedule),
        )
    )


def schedule_facts(name: str, stages: int, microbatches: int, chunks: int = 1) -> dict[str, Any]:
    """Return what `schedule_text` says as plain data; units are those of a forward. Raises InputError."""
    schedule = load(name, stages, microbatches, chunks)
    on = pipeline(name, stages, chunks)
    makespan, work = _units(schedule, on)
    return {
        "name": name,
        "stages": stages,
        "microbatches": microbatches,
        "chunks": chunks,
        "makespan_units": makespan,
        "bubble_units": makespan - work,
        "in_flight_by_rank": [in_flight(row, on.paired) for row in schedule],
        "actions_by_rank": [[str(action) for action in row] for row in schedule],
    }


def _units(schedule: Schedule, on: Pipeline) -> tuple[float, float]:
    """Return how long a schedule takes and how long its busiest rank works, in units of a forward."""
    timeline = play(schedule, on)
    makespan = max(row[-1].end for row in timeline)
    return makespan, max(math.fsum(UNIT[action.letter] for action in row) for row in schedule)
