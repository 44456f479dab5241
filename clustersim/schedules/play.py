"""Start and end of each action of a schedule if transfers are free, for checks and drawings."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from clustersim.errors import SimulationError
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import Pipeline, together

UNIT: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


class Played(NamedTuple):
    """An action with its start and end, in the units of the costs."""

    action: Action
    start: float
    end: float


def needs(action: Action, pipeline: Pipeline) -> tuple[Action, ...]:
    """Return the actions that must end before `action` can start, with B standing for I where backward passes are split.

    A forward pass needs the forward of the previous stage; a backward pass (B, I) its own forward and the backward of the next
    stage; a weight gradient (W) its own input gradient.
    """
    stage, letter, microbatch = action
    if letter == "F":
        before = pipeline.before(stage)
        return () if before is None else (Action(before, "F", microbatch),)
    if letter == "W":
        return (Action(stage, "B", microbatch),)
    own, after = Action(stage, "F", microbatch), pipeline.after(stage)
    return (own,) if after is None else (own, Action(after, "B", microbatch))


def play(schedule: Schedule, pipeline: Pipeline, cost: Mapping[str, float] = UNIT) -> tuple[tuple[Played, ...], ...]:
    """Return the timeline of each rank; every action starts as early as its rank and its dependencies allow.

    `cost` is the duration of each letter. Two paired actions take the sum of their durations and end together. Raises
    SimulationError at a deadlock, with the first stuck rank, its action and what it waits for.
    """
    ends: dict[Action, float] = {}
    rows: list[list[Played]] = [[] for _ in schedule]
    left = [deque(together(row, pipeline.paired)) for row in schedule]
    moved = True
    while moved:
        advanced = [_advance(*rank, ends, pipeline, cost) for rank in zip(left, rows, strict=True)]
        moved = any(advanced)
    for rank, waiting in enumerate(left):
        if waiting:
            raise SimulationError(_stuck(left, rank, ends, pipeline))
    return tuple(map(tuple, rows))


def _advance(
    left: deque[tuple[Action, ...]],
    played: list[Played],
    ends: dict[Action, float],
    pipeline: Pipeline,
    cost: Mapping[str, float],
) -> bool:
    """Run a rank's actions until one needs an action that has not ended; return whether any ran."""
    before = len(played)
    while left:
        start = played[-1].end if played else 0.0
        for need in chain.from_iterable(needs(action, pipeline) for action in left[0]):
            if need not in ends:
                return len(played) > before
            start = max(start, ends[need])
        unit = left.popleft()
        for action in unit:
            played.append(Played(action, start, start + cost[action.letter]))
            start = played[-1].end
        ends.update((_as_needed(action), start) for action in unit)
    return len(played) > before


def _as_needed(action: Action) -> Action:
    return action._replace(letter="B") if action.letter == "I" else action


def _stuck(
    left: Sequence[Sequence[tuple[Action, ...]]], rank: int, ends: Mapping[Action, float], pipeline: Pipeline
) -> str:
    action, missing = next(
        (action, need) for action in left[rank][0] for need in needs(action, pipeline) if need not in ends
    )
    each = ((r, found) for r, units in enumerate(left) for unit in units for found in unit)
    holder, awaited = next(((r, found) for r, found in each if _as_needed(found) == missing), (None, missing))
    if holder is None:
        return f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, which no rank runs"
    at = left[holder][0][0]
    return f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, but rank {holder} is at {at}"
