"""Schedules as text: a timeline to look at, and PyTorch's CSV (one row a rank) to keep and to read back."""

from __future__ import annotations

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Schedule, parse
from clustersim.schedules.pipeline import Pipeline
from clustersim.schedules.play import Played, play

LEGEND = "digit: forward of that microbatch; small letter: backward (a = 0); capital: weight gradients; dot: bubble"
_FIRST = {"B": "a", "I": "a", "W": "A"}


def draw(schedule: Schedule, pipeline: Pipeline | None = None, forward: int = 1, backward: int = 2) -> str:
    """Return the timeline, one row a rank and one character a unit of time.

    pipeline: what it runs on, by default one stage a rank. `forward` and `backward` are the units that F and B take; I takes half
    of `backward`, W the rest, each at least one. Microbatch i is the digit i mod 10 going forward and the letter number i mod 10
    (a = 0) going backward, or a capital letter where only weight gradients are computed; a dot is a bubble. Raises
    SimulationError at a deadlock.
    """
    inputs = max(backward // 2, 1)
    cost = {"F": forward, "B": backward, "I": inputs, "W": max(backward - inputs, 1)}
    timeline = play(schedule, pipeline or Pipeline(len(schedule)), cost)
    width = round(max((row[-1].end for row in timeline if row), default=0))
    return "\n".join(_line(row, width) for row in timeline)


def _line(row: tuple[Played, ...], width: int) -> str:
    cells = ["."] * width
    for action, start, end in row:
        cells[round(start) : round(end)] = [_sign(action)] * round(end - start)
    return "".join(cells)


def _sign(action: Action) -> str:
    i = action.microbatch % 10
    return str(i) if action.letter == "F" else chr(ord(_FIRST[action.letter]) + i)


def rows(schedule: Schedule) -> str:
    """Return the schedule in PyTorch's CSV notation: a line a rank, such as `0F0,0F1,0B0,0B1`."""
    return "\n".join(",".join(map(str, row)) for row in schedule)


def parse_rows(text: str) -> Schedule:
    """Return the schedule that CSV text holds; empty cells are bubbles and are left out.

    Raises InputError with the line of what is no action.
    """
    return tuple(_parse_line(line, number) for number, line in enumerate(text.strip().splitlines(), start=1))


def _parse_line(line: str, number: int) -> tuple[Action, ...]:
    try:
        return tuple(parse(cell) for cell in line.split(",") if cell.strip())
    except InputError as error:
        raise InputError(f"line {number} of the schedule: {error}") from error
