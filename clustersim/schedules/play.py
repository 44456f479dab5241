"""When each action of a schedule starts and ends if transfers are free: the timeline behind checks and drawings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clustersim.errors import SimulationError
from clustersim.schedules.action import Action, Schedule

UNIT: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


_AT_ONCE = 64  # actions of a rank before the next one's turn; without a bound a slice copies the whole row each time


class Played(NamedTuple):
    """An action with its start and end, in the units of the costs."""

    action: Action
    start: float
    end: float


def needs(action: Action, last: int) -> tuple[Action, ...]:
    """Return what must end before `action` may start, B standing for I where the backward pass is split.

    `last` is the last global stage. A forward needs the forward of the stage before; a backward (B, I) its own forward
    and the backward of the stage after; a weight gradient (W) its own input gradient.
    """
    stage, letter, microbatch = action
    if letter == "F":
        return (Action(stage - 1, "F", microbatch),) if stage else ()
    if letter == "W":
        return (Action(stage, "B", microbatch),)
    own = Action(stage, "F", microbatch)
    return (own, Action(stage + 1, "B", microbatch)) if stage < last else (own,)


def play(schedule: Schedule, last: int, cost: Mapping[str, float] = UNIT) -> tuple[tuple[Played, ...], ...]:
    """Return the timeline of each rank, every action starting as early as its rank and its needs allow.

    `last` is the last global stage; `cost` is the duration of each letter. Raises SimulationError at a deadlock, which
    names the first stuck rank, its action and what it waits for.
    """
    ends: dict[Action, float] = {}
    rows: list[list[Played]] = [[] for _ in schedule]
    moved = True
    while moved:
        advanced = [_advance(row, played, ends, last, cost) for row, played in zip(schedule, rows, strict=True)]
        moved = any(advanced)
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
    for action in row[before : before + _AT_ONCE]:
        start = played[-1].end if played else 0.0
        for need in needs(action, last):
            if need not in ends:
                return len(played) > before
            start = max(start, ends[need])
        end = start + cost[action.letter]
        ends[_as_needed(action)] = end
        played.append(Played(action, start, end))
    return len(played) > before


def _as_needed(action: Action) -> Action:
    return action._replace(letter="B") if action.letter == "I" else action


def _stuck(
    schedule: Schedule,
    rows: list[list[Played]],
    rank: int,
    ends: Mapping[Action, float],
    last: int,
) -> str:
    action = schedule[rank][len(rows[rank])]
    missing = next(need for need in needs(action, last) if need not in ends)
    holders = ((r, found) for r, row in enumerate(schedule) for found in row if _as_needed(found) == missing)
    holder, awaited = next(holders, (None, missing))
    if holder is None:
        return f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, which no rank runs"
    at = schedule[holder][len(rows[holder])]
    return f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, but rank {holder} is at {at}"
