"""When a pipeline of pairs (DualPipe, DualPipeV) is done at the earliest: its own order of passes, played in their least seconds.

Two passes beside each other begin when both have received and hand on when both are over, so that ranks wait for each other in a
way that no sum of passes tells. What is between the first microbatches and the last is not played: there each rank is busy, and
nobody waits. That is a lower bound: what waits for passes of that part, waits at least for those that it would wait for without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import Pipeline, together
from clustersim.schedules.play import needs

Units = list[tuple[Action, ...]]
"""What a rank runs: passes beside each other, or one alone."""
ActionKey = tuple[str, int]
"""A pass by its letter and stage."""


class UnitTurn(NamedTuple):
    """A unit when its turn comes on a rank, with results by number."""

    rank: int
    asked: tuple[int, ...]
    """The results that it waits for."""
    passes: tuple[tuple[ActionKey, int], ...]
    """Each with its result."""


class PairedOrder:
    """The turns of all ranks, each behind those that it waits for: of the first microbatches, and of the last."""

    def __init__(self, rows: Schedule, longer: Schedule, pipeline: Pipeline) -> None:
        """Longer: the same schedule of more microbatches, which says where the first ones end."""
        units, more = ([list(together(row, pipeline.paired)) for row in one] for one in (rows, longer))
        equal = (
            takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False))
            for pair in zip(units, more, strict=True)
        )
        cuts = [sum(1 for _ in one) for one in equal]
        self.numbers: dict[Action, int] = {}
        self.first, self.last = (
            list(self._turns([row[part] for row, part in zip(units, parts, strict=True)], pipeline))
            for parts in ([slice(cut) for cut in cuts], [slice(cut, None) for cut in cuts])
        )

    def _turns(self, rows: Sequence[Units], pipeline: Pipeline) -> Iterator[UnitTurn]:
        """Yield the turns of rows; nobody waits for what is in none of these nor before them."""
        left = {_result(action) for row in rows for unit in row for action in unit}
        waiting, ready, places = dict[Action, int](), list(range(len(rows))), [0] * len(rows)
        while ready:
            rank = ready.pop()
            for unit in rows[rank][places[rank] :]:
                asked = [need for action in unit for need in needs(action, pipeline)]
                if missing := [need for need in asked if need in left]:
                    waiting[missing[0]] = rank
                    break
                results = [_result(action) for action in unit]
                passes = [
                    ((one.letter, one.stage), self.numbers.setdefault(r, len(self.numbers)))
                    for one, r in zip(unit, results, strict=True)
                ]
                yield UnitTurn(rank, tuple(self.numbers[need] for need in asked if need in self.numbers), tuple(passes))
                places[rank] += 1
                left.difference_update(results)
                ready += [waiting.pop(result) for result in results if result in waiting]

    def done(
        self,
        compute: Mapping[ActionKey, float],
        message: Mapping[ActionKey, float],
        begin: Sequence[float],
        busy: Sequence[float],
        waits: bool,
    ) -> list[float]:
        """Return when each rank has ended its passes at the earliest.

        compute, message: least seconds of a pass, and of what it hands on to a rank that waits for it. begin: before the first
        pass of each rank. busy: of each rank between the first microbatches and the last. waits: for its messages to be away.
        """
        there = [0.0] * len(self.numbers)
        clock = list(begin)
        for turns, more in ((self.first, busy), (self.last, [0.0] * len(clock))):
            for rank, asked, passes in turns:
                end = max([clock[rank], *[there[need] for need in asked]])
                for key, _ in passes:
                    end += compute[key]
                clock[rank] = end
                for key, result in passes:
                    there[result] = end + message[key]
                    clock[rank] += message[key] * waits
            clock = [end + own for end, own in zip(clock, more, strict=True)]
        return clock


def _result(action: Action) -> Action:
    """Return what others need of a pass: of a split backward pass the gradient of its input."""
    return action._replace(letter="B") if action.letter == "I" else action
