"""Start and end of each action of a schedule if transfers take no time, for checks and drawings."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from clustersim.errors import SimulationError
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import Pipeline, action_units

UNIT: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""{letter: duration of its passes}, in units of a forward pass."""


class TimedAction(NamedTuple):
    """An action with its start and end, in the unit of the durations that `time_actions` received."""

    action: Action
    start: float
    end: float


def dependencies(action: Action, pipeline: Pipeline) -> tuple[Action, ...]:
    """Return the actions that must end before `action` can start. B means either backward pass, B or I.

    A forward pass needs the forward of the previous stage; a backward pass (B, I) its own forward and the backward of the next
    stage; a weight gradient (W) its own input gradient.
    """
    stage, letter, microbatch = action
    if letter == "F":
        before = pipeline.previous_stage(stage)
        return () if before is None else (Action(before, "F", microbatch),)
    if letter == "W":
        return (Action(stage, "B", microbatch),)
    forward, after = Action(stage, "F", microbatch), pipeline.next_stage(stage)
    return (forward,) if after is None else (forward, Action(after, "B", microbatch))


def time_actions(
    schedule: Schedule, pipeline: Pipeline, cost: Mapping[str, float] = UNIT
) -> tuple[tuple[TimedAction, ...], ...]:
    """Return the timed actions of each rank; every action starts as early as its rank and its dependencies allow.

    cost: {letter: duration}. Two paired actions take the sum of their durations and end together. Raises SimulationError at a
    deadlock, with the first stuck rank, its action and the action it waits for.
    """
    ends: dict[Action, float] = {}
    rows: list[list[TimedAction]] = [[] for _ in schedule]
    left = [deque(action_units(row, pipeline.paired)) for row in schedule]
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
    timed: list[TimedAction],
    ends: dict[Action, float],
    pipeline: Pipeline,
    cost: Mapping[str, float],
) -> bool:
    """Move actions from `left` to `timed` until one needs an action that has not ended; return whether any moved."""
    before = len(timed)
    while left:
        start = timed[-1].end if timed else 0.0
        for need in chain.from_iterable(dependencies(action, pipeline) for action in left[0]):
            if need not in ends:
                return len(timed) > before
            start = max(start, ends[need])
        unit = left.popleft()
        for action in unit:
            timed.append(TimedAction(action, start, start + cost[action.letter]))
            start = timed[-1].end
        ends.update((_as_needed(action), start) for action in unit)
    return len(timed) > before


def _as_needed(action: Action) -> Action:
    """Return the action as `dependencies` names it: B for I."""
    return action._replace(letter="B") if action.letter == "I" else action


def _stuck(
    left: Sequence[Sequence[tuple[Action, ...]]], rank: int, ends: Mapping[Action, float], pipeline: Pipeline
) -> str:
    action, missing = next(
        (action, need) for action in left[rank][0] for need in dependencies(action, pipeline) if need not in ends
    )
    each = ((other, pending) for other, units in enumerate(left) for unit in units for pending in unit)
    holder, awaited = next(((other, later) for other, later in each if _as_needed(later) == missing), (None, missing))
    if holder is None:
        return f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, which no rank runs"
    first = left[holder][0][0]
    return (
        f"the schedule deadlocks: rank {rank} is at {action} and waits for {awaited}, but rank {holder} is at {first}"
    )
