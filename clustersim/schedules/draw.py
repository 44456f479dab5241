"""Schedules as text: a timeline to look at, and PyTorch's CSV, one row per rank."""

from __future__ import annotations

import math
from typing import Any

from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.check import in_flight, load, pipeline
from clustersim.schedules.pipeline import Pipeline
from clustersim.schedules.timing import UNIT, TimedAction, time_actions
from clustersim.units import plural

LEGEND = "digit: forward of that microbatch; small letter: backward (a = 0); capital: weight gradients; dot: bubble"
_FIRST = {"B": "a", "I": "a", "W": "A"}
"""{letter: character of its microbatch 0}"""


def draw(schedule: Schedule, pipeline: Pipeline | None = None, forward: int = 1, backward: int = 2) -> str:
    """Return the timeline of a schedule as text, one row per rank and one character per unit of time.

    `pipeline` is by default one stage per rank. `forward` and `backward` are the units of F and B; I takes half of `backward`, W
    the rest, each at least one. Microbatch i is the digit i mod 10 in forward passes and the letter number i mod 10 (a = 0) in
    backward passes; capital letters are weight gradients, dots are bubbles. Raises SimulationError at a deadlock.
    """
    inputs = max(backward // 2, 1)
    cost = {"F": forward, "B": backward, "I": inputs, "W": max(backward - inputs, 1)}
    timeline = time_actions(schedule, pipeline or Pipeline(len(schedule)), cost)
    width = round(max((row[-1].end for row in timeline if row), default=0))
    return "\n".join(_line(row, width) for row in timeline)


def _line(row: tuple[TimedAction, ...], width: int) -> str:
    cells = ["."] * width
    for action, start, end in row:
        cells[round(start) : round(end)] = [_sign(action)] * round(end - start)
    return "".join(cells)


def _sign(action: Action) -> str:
    i = action.microbatch % 10
    return str(i) if action.letter == "F" else chr(ord(_FIRST[action.letter]) + i)


def rows(schedule: Schedule) -> str:
    """Return the schedule in PyTorch's CSV notation: one line per rank, such as `0F0,0F1,0B0,0B1`."""
    return "\n".join(",".join(map(str, row)) for row in schedule)


def schedule_text(name: str, stages: int, microbatches: int, chunks: int = 1) -> str:
    """Return a text with the timeline of a schedule, its bubble, peak microbatches per rank, and actions in PyTorch's notation.

    A forward pass takes one unit of time, a backward pass two; transfers are free. Raises InputError for unsupported sizes.
    """
    schedule = load(name, stages, microbatches, chunks)
    facts = _facts(schedule, name, stages, microbatches, chunks)
    makespan, bubble = facts["makespan_units"], facts["bubble_units"]
    parts = plural(stages, "stage", "stages") + (f" of {chunks} chunks" if chunks > 1 else "")
    parts += f", {plural(microbatches, 'microbatch', 'microbatches')}"
    return "\n".join(
        (
            f"{name}: {parts}",
            "",
            draw(schedule, pipeline(name, stages, chunks)),
            "",
            LEGEND,
            f"bubble: {bubble:g} of {makespan:g} units ({bubble / makespan:.1%})",
            f"microbatches in flight, by rank: {', '.join(map(str, facts['in_flight_by_rank']))}",
            "",
            rows(schedule),
        )
    )


def schedule_facts(name: str, stages: int, microbatches: int, chunks: int = 1) -> dict[str, Any]:
    """Return the figures of a schedule as JSON data: {`makespan_units`: …, `in_flight_by_rank`: [peak microbatches], …}.

    Times are in units of a forward pass. Raises InputError for unsupported sizes.
    """
    return _facts(load(name, stages, microbatches, chunks), name, stages, microbatches, chunks)


def _facts(schedule: Schedule, name: str, stages: int, microbatches: int, chunks: int) -> dict[str, Any]:
    layout = pipeline(name, stages, chunks)
    makespan = max(row[-1].end for row in time_actions(schedule, layout))
    work = max(math.fsum(UNIT[action.letter] for action in row) for row in schedule)
    return {
        "name": name,
        "stages": stages,
        "microbatches": microbatches,
        "chunks": chunks,
        "makespan_units": makespan,
        "bubble_units": makespan - work,
        "in_flight_by_rank": [in_flight(row, layout.paired) for row in schedule],
        "actions_by_rank": [[str(action) for action in row] for row in schedule],
    }
