"""When each action of a schedule starts and ends if transfers are free: the timeline behind checks and drawings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clustersim.errors import SimulationError
from clustersim.schedules.action import Action, Schedule

UNIT: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


class Played(NamedTuple):
    """An action with its start and end, in the units of the costs."""

    action: Action
    start: float
    end: float


def needs(action: Action, last: int) -> Iterator[tuple[Action, ...]]:
    """Yield what must end before `action` may start, each as the alternatives of which one suffices.

    `last` is the last global stage. A forward needs the forward of the stage before; a backward (B, I) its own forward
    and the backward of the stage after; a weight gradient (W) its own input gradient.
    """
    stage, letter, microbatch = action
    if letter == "W":
        yield (Action(stage, "I", microbatch),)
    elif letter == "F":
        if stage > 0:
            yield (Action(stage - 1, "F", microbatch),)
    else:
        yield (Action(stage, "F", microbatch),)
        if stage < last:
            yield (Action(stage + 1, "B", microbatch), Action(stage + 1, "I", microbatch))


def play(schedule: Schedule, last: int, cost: Mapping[str, float] = UNIT) -> tuple[tuple[Played, ...], ...]:
    """Return the timeline of each rank, every action starting as early as its rank and its needs allow.

    `last` is the last global stage; `cost` is the duration of each letter. Raises SimulationError at a deadlock, which
    names the first stuck rank, its action and what it waits for.
    """
    ends: dict[Action, float] = {}
    rows: list[list[Played]] = [[] for _ in schedule]
    moved = True
    while moved:
        moved = False
        for row, played in zip(schedule, rows, strict=True):
            moved |= _advance(row, played, ends, last, cost)
    for rank, (row, played) in enumerate(zip(schedule, rows, strict=True)):
        if len(played) < len(row):
            raise SimulationError(_stuck(schedule, rows, rank, ends, last))
    return tuple(tuple(row) for row in rows)


def _advance(
    row: tuple[Action, ...],
    played: list[Played],
    ends: dict[Action, float],
    last: int,
    cost: Mapping[str, float],
) -> bool:
    before = len(played)
    for action in row[before:]:
        ready = played[-1].end if played else 0.0
        for alternatives in needs(action, last):
            done = [ends[need] for need in alternatives if need in ends]
            if not done:
                return len(played) > before
            ready = max(ready, done[0])
        ends[action] = ready + cost[action.letter]
        played.append(Played(action, ready, ends[action]))
    return len(played) > before


def _stuck(
    schedule: Schedule,
    rows: list[list[Played]],
    rank: int,
    ends: Mapping[Action, float],
    last: int,
) -> str:
    action = schedule[rank][len(rows[rank])]
    missing = next(need for need in needs(action, last) if not any(n in ends for n in need))
    what = " or ".join(map(str, missing))
    holder = next((r for r, row in enumerate(schedule) if any(n in row for n in missing)), None)
    if holder is None:
        return f"the schedule deadlocks: rank {rank} is at {action} and waits for {what}, which no rank runs"
    at = schedule[holder][len(rows[holder])]
    return f"the schedule deadlocks: rank {rank} is at {action} and waits for {what}, but rank {holder} is at {at}"
