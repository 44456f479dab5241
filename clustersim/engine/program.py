"""What a rank does in a step: passes, each a template of tasks on named streams.

A *task* is a computation, a collective or a message, on one stream of its rank. Tasks of one stream run in order. A task on
the compute stream may wait for handles: messages of other ranks, or what the rank has launched on another stream. A task on
another stream is launched by the compute stream, when all that stands before it there is over, and may wait for what was
launched on a third.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.fabric import HOST, Activity, Carried
from clustersim.engine.microbatch_overlap import ALONE, Pairing, StepKey, Turn, turns
from clustersim.schedules.action import Action

COMPUTE = "compute"
UPDATE = ("norm", "optimizer")
"""The kinds of what follows the passes of a step."""
READY, SYNCHRONISE = "ready", "synchronise"
"""What the host stream marks: when it has launched so much that the next computation may begin, and that it waits for its GPU."""

GroupCell = tuple[str, int]
"""A communication group: (family, cell)."""


class Message(NamedTuple):
    """The handle of a message for `stage` between the two rank cells of a pair; one for each microbatch."""

    group: GroupCell
    stage: int

    @property
    def kind(self) -> str:
        """What a span of waiting for it is called."""
        return "receive"


class Launched(NamedTuple):
    """The handle of all tasks that a rank has launched on a stream so far, or of the first `first` of the step."""

    stream: str
    first: int | None = None
    but: int = 0
    """So many of the last ones are left out."""

    @property
    def kind(self) -> str:
        """What a span of waiting for it is called."""
        return "send" if self.stream.startswith("p2p") else self.stream


class Ready(NamedTuple):
    """The handle of what the host launches: the computation that waits for it never stands still for a launch."""

    stream: str = HOST

    @property
    def kind(self) -> str:
        """What a span of waiting for it is called."""
        return HOST


Handle = Message | Launched | Ready


class Task(NamedTuple):
    """One task of a pass."""

    stream: str
    """`compute`, `host`, or the family of a collective or message."""
    kind: str
    """The letter of the pass, `norm`, `optimizer`, the op of a collective, or `send`; empty where it only waits. What the host
    launches is of the kind of the pass; `ready` and `synchronise` are its marks."""
    stage: int
    """The global stage, -1 for what belongs to no stage."""
    group: GroupCell | None
    """All rank cells of this group start it together; None: this one alone."""
    waits: tuple[Handle, ...]
    """What its stream waits for before it, one after the other; other streams than `compute` for what was launched alone."""
    gives: Message | None
    """The message that is there when it is over."""
    activity: Activity
    """What it does; of tasks that start together, what this rank has to do in it."""


def computing(tasks: Sequence[Task]) -> Mask:
    """Return which tasks run on compute streams."""
    return np.array([task.stream == COMPUTE for task in tasks], bool)


Template = tuple[Task, ...]
"""The tasks of a pass, in the order in which a rank launches them."""

TemplateKey = tuple[str, object]
"""Where a template stands in a program: `begin`, `finish`, (`steps`, StepKey) or (`special`, action)."""


class Program(NamedTuple):
    """What one rank does in a step."""

    begin: Template
    """What comes before the first action."""
    row: tuple[Action, ...]
    """The actions, in order."""
    steps: Mapping[StepKey, Template]
    """What an action does, or a part of it."""
    special: Mapping[Action, Template]
    """What single actions do instead."""
    finish: Template
    """What comes after the last action."""
    pairing: Pairing = ALONE
    """Which of the actions run in parts beside each other."""

    def turns(self) -> list[Turn]:
        """Return the actions, those in parts once for each."""
        return turns(self.row, self.pairing)

    def passes(self) -> Iterator[tuple[TemplateKey, Template, int]]:
        """Yield every pass: where its template stands, the template, and the microbatch (-1 outside the actions)."""
        yield ("begin", None), self.begin, -1
        steps = {key: (("steps", key), template) for key, template in self.steps.items()}
        for key, action in self.turns():
            if action in self.special:
                yield ("special", action), self.special[action], action.microbatch
            else:
                yield *steps[key], action.microbatch
        yield ("finish", None), self.finish, -1

    def templates(self) -> Iterator[tuple[TemplateKey, Template]]:
        """Yield every template once."""
        yield ("begin", None), self.begin
        yield from ((("steps", key), template) for key, template in self.steps.items())
        yield from ((("special", action), template) for action, template in self.special.items())
        yield ("finish", None), self.finish

    def often(self) -> Counter[StepKey]:
        """Return how often each of the steps is run."""
        return Counter(key for key, action in self.turns() if action not in self.special)

    def carried(self, often: Mapping[StepKey, int] | None = None) -> Carried:
        """Return the bytes of all its collectives and messages by variant and group cell; often: where it is known."""
        often, total = self.often() if often is None else often, Carried()
        for (part, key), template in self.templates():
            count = often[key] if part == "steps" else 1  # type: ignore[index]
            for task in template:
                for variant, size in task.activity.carried.items():
                    total[variant] = total.get(variant, 0.0) + count * size
        return total


class Span(NamedTuple):
    """Something a rank cell did or waited for on one of its streams."""

    rank: int
    stream: str
    kind: str
    stage: int
    microbatch: int
    asked: float
    """When the rank came to it."""
    start: float
    """When it began: peers may have come later."""
    end: float
    activity: Activity | None
    segment_ends: list[float] | None
    """When each half segment of its activity ended; None when it ran as if alone."""
