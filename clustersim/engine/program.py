"""The program of a rank, and the record of what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clustersim.engine.fabric import Activity, Carried
from clustersim.schedules.action import Action

Group = tuple[str, int]
"""A communication group: (family, cell)."""


class Run(NamedTuple):
    """Compute, in lock-step with the ranks of `group` where there is one; communication inside is waited for."""

    kind: str
    stage: int
    activity: Activity
    group: Group | None


class Send(NamedTuple):
    """Send to the neighbour that holds `stage`; with `wait` the rank goes on only when the transfer is over."""

    stage: int
    activity: Activity
    group: Group
    wait: bool


class Receive(NamedTuple):
    """Wait until the neighbour's message for `stage` is here."""

    stage: int
    group: Group


class Post(NamedTuple):
    """Start a collective on the stream of its family and go on."""

    kind: str
    stage: int
    activity: Activity
    group: Group


class Drain(NamedTuple):
    """Wait until all, or the first `first`, that were posted to the stream of a family are over."""

    family: str
    first: int | None = None


Instruction = Run | Send | Receive | Post | Drain


class Program(NamedTuple):
    """What one rank does in a step.

    After `begin` it plays the actions of `row`, each by the instructions in `steps` for its letter and stage (or those in
    `special`, for single actions), then `finish`.
    """

    begin: tuple[Instruction, ...]
    row: tuple[Action, ...]
    steps: Mapping[tuple[str, int], tuple[Instruction, ...]]
    special: Mapping[Action, tuple[Instruction, ...]]
    finish: tuple[Instruction, ...]

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """Yield every instruction with its microbatch (-1 outside the actions)."""
        for step in self.begin:
            yield step, -1
        for action in self.row:
            for step in self.special.get(action) or self.steps[action.letter, action.stage]:
                yield step, action.microbatch
        for step in self.finish:
            yield step, -1

    def carried(self) -> Carried:
        """Return the bytes of all its collectives and messages by variant and group cell."""
        counts = Counter((a.letter, a.stage) for a in self.row if a not in self.special)
        pieces = [(self.begin, 1), (self.finish, 1), *((steps, 1) for steps in self.special.values())]
        pieces += [(self.steps[key], count) for key, count in counts.items()]
        total: Carried = {}
        for steps, count in pieces:
            for step in steps:
                for key, size in getattr(step, "activity", Activity.NONE).carried.items():
                    total[key] = total.get(key, 0.0) + count * size
        return total


class Span(NamedTuple):
    """Something a rank cell did or waited for on one of its streams.

    It was asked for at `asked` and began at `start` (after waiting for peers). `marks` are the ends of the half segments
    of its activity, or None when it ran as if alone.
    """

    rank: int
    stream: str
    kind: str
    stage: int
    microbatch: int
    asked: float
    start: float
    end: float
    activity: Activity | None
    marks: list[float] | None
