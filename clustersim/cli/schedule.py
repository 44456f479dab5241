"""What `clustersim show --schedule` prints."""

from __future__ import annotations

from clustersim.schedules.check import in_flight, load
from clustersim.schedules.draw import LEGEND, draw, rows
from clustersim.schedules.play import UNIT, play


def schedule_text(name: str, stages: int, microbatches: int, chunks: int = 1) -> str:
    """Return the timeline of a schedule, its bubble, what each rank keeps, and its actions in PyTorch's notation.

    A forward takes one unit of time, a backward two; transfers are free. Raises InputError for what it cannot build.
    """
    schedule = load(name, stages, microbatches, chunks)
    timeline = play(schedule, stages * chunks - 1)
    makespan = max(row[-1].end for row in timeline)
    work = max(sum(UNIT[action.letter] for action in row) for row in schedule)
    parts = f"{stages} stages" + (f" of {chunks} chunks" if chunks > 1 else "") + f", {microbatches} microbatches"
    kept = ", ".join(str(in_flight(row)) for row in schedule)
    return "\n".join(
        (
            f"{name}: {parts}",
            "",
            draw(schedule),
            "",
            LEGEND,
            f"bubble: {makespan - work:g} of {makespan:g} units ({(makespan - work) / makespan:.1%})",
            f"microbatches in flight, by rank: {kept}",
            "",
            rows(schedule),
        )
    )
