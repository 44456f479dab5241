"""In which turns a rank runs its passes: one after the other, or two of different microbatches in parts, beside each other.

A pass that exchanges rows with experts on other ranks stands still at each exchange. Where `overlap.ep: microbatch` asks for it,
a backward pass and the forward pass behind it are cut at their exchanges, and their parts take turns: what the one exchanges
moves while the other computes. So Megatron's overlap_moe_expert_parallel_comm, with this order on both streams
(core/models/common/model_chunk_schedule_plan.py, core/pipeline_parallel/combined_1f1b.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest

from clustersim.schedules.action import Action, Schedule

StepKey = tuple[str, int] | tuple[str, int, int, int]
"""A pass by its letter and stage; of one in parts also which part, and how many exchanges the pass beside it has."""
Turn = tuple[StepKey, Action]


def turns(row: Sequence[Action], exchanges: Mapping[tuple[str, int], int]) -> list[Turn]:
    """Return what a rank does, in order. exchanges: of a pass that may run in parts, by letter and stage; none: all run whole."""
    if not exchanges:
        return [((action.letter, action.stage), action) for action in row]
    left, found = list(reversed(row)), list[Turn]()
    while left:
        action = left.pop()
        if action.letter == "B" and left and left[-1].letter == "F":
            found += _beside(action, left.pop(), exchanges)
        else:
            found.append(((action.letter, action.stage), action))
    return found


def _beside(backward: Action, forward: Action, exchanges: Mapping[tuple[str, int], int]) -> Iterator[Turn]:
    """Yield the parts of two passes, the backward one's first."""
    one, other = (exchanges[action.letter, action.stage] for action in (backward, forward))
    pairs = zip_longest(_parts(backward, one, other), _parts(forward, other, one))
    yield from (turn for turn in chain.from_iterable(pairs) if turn is not None)


def _parts(action: Action, exchanges: int, beside: int) -> Iterator[Turn]:
    yield from (((action.letter, action.stage, part, beside), action) for part in range(exchanges + 1))


def launched_between(key: tuple[str, int, int, int]) -> int:
    """Return how many exchanges the pass beside launches between the last one of a pass and the part that waits for it."""
    letter, _, part, beside = key
    return int(part <= beside if letter == "B" else part < beside)


def memory_order(schedule: Schedule, beside: bool) -> Schedule:
    """Return a schedule as memory sees it. beside: passes run beside each other, and what the forward one keeps comes on top."""
    return tuple(map(_on_top, schedule)) if beside else schedule


def _on_top(row: Sequence[Action]) -> tuple[Action, ...]:
    found = list(row)
    for i, (one, other) in enumerate(pairwise(row)):
        if one.letter == "B" and other.letter == "F":
            found[i : i + 2] = other, one
    return tuple(found)
