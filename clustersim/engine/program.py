"""What a rank does in a step: passes, each a template of tasks on named streams.

Ranks that do alike share one `Layout`: its tasks name groups, messages and stages as the rank has them. A `Program` says which
stages they are in one role. The groups of a rank, and what its tasks do, are columns of `engine/compile.py: Plan`; a `Task` is
a task of one rank with all of that.

A *task* is a computation, a collective or a message, on one stream of its rank. Tasks of one stream run in order. A task on
the compute stream may wait for handles: messages of other ranks, or what the rank has launched on another stream. A task on
another stream is launched by the compute stream, when all that stands before it there is over, and may wait for what was
launched on a third.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.microbatch_overlap import ALONE, Pairing, Turn, turns
from clustersim.engine.traffic import Variant
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
    number: int = 0
    """Which of several messages of a pass between the two."""


class PassMessage(NamedTuple):
    """The handle of a message in a layout, in the rank's group of a family: the one that a pass waits for, or gives."""

    family: str
    chunk: int
    """Place of the stage of the pass among those of the rank."""
    ahead: int = 0
    """The message is for the stage so far ahead of that."""
    number: int = 0
    """As in Message."""


class Wait(NamedTuple):
    """The handle of all tasks that a rank has launched on a stream so far, or of the first `first` of the step."""

    stream: str
    first: int | None = None
    but: int = 0
    """So many of the last ones are left out."""


class Ready(NamedTuple):
    """The handle of what the host launches: the computation that waits for it never stands still for a launch."""

    stream: str = HOST


class OwnTask(NamedTuple):
    """The handle of an earlier task of the same pass, by its place in the template."""

    place: int
    kind: str = ""
    """Name of a span that waits for it; empty where it is not shown as a wait."""


LayoutHandle = PassMessage | Wait | Ready | OwnTask
Handle = Message | Wait | Ready | OwnTask
"""What a task waits for."""
Carried = Mapping[tuple[Variant, int], float]
"""Bytes by variant and group cell."""
NOTHING: Carried = {}


class LayoutTask(NamedTuple):
    """One task of a pass, for all ranks of a layout."""

    stream: str
    """`compute`, `host`, or the family of a collective or message."""
    kind: str
    """The letter of the pass, `norm`, `optimizer`, the op of a collective, or `send`; empty where it only waits. What the host
    launches is of the kind of the pass; `ready` and `synchronise` are its marks."""
    chunk: int
    """Place of its stage among those of the rank, -1 for what belongs to no stage."""
    family: str | None
    """All rank cells of the rank's group of this family start it together; None: this one alone."""
    waits: tuple[LayoutHandle, ...]
    """What its stream waits for before it, one after the other; other streams than `compute` for what was launched alone."""
    gives: PassMessage | None
    """The message that is there when it is over."""
    free: bool = False
    """Whether it begins when what it waits for is over, whatever else its rank does: so are the tasks of replayed traces."""


class Task(NamedTuple):
    """One task of a pass of one rank; what is not said here is as in LayoutTask."""

    stream: str
    kind: str
    stage: int
    """The global stage, -1 for what belongs to no stage."""
    group: GroupCell | None
    """All rank cells of this group start it together; None: this one alone."""
    waits: tuple[Handle, ...]
    gives: Message | None
    activity: Activity
    """What it does; of tasks that start together, what this rank has to do in it."""
    free: bool = False
    carried: Carried = NOTHING
    """The bytes of the collectives and messages inside."""


def computing(tasks: Sequence[LayoutTask]) -> Mask:
    """Return which tasks run on compute streams."""
    return np.array([task.stream == COMPUTE for task in tasks], bool)


TemplateKey = tuple[str, Any]
"""Where a template stands in a layout: `begin`, `finish`, (`steps`, StepKey) or (`special`, pass)."""


class Layout(NamedTuple):
    """The tasks of ranks that do alike, template after template."""

    tasks: tuple[LayoutTask, ...]
    templates: Mapping[TemplateKey, range]
    """Places of the tasks of each template, in the order in which a rank launches them."""
    pairing: Pairing = ALONE
    """Which of the actions run in parts beside each other."""


class Program(NamedTuple):
    """Passes of the ranks of one role, such as a pipeline rank."""

    layout: Layout
    row: tuple[Action, ...]
    """The actions, in order."""
    own: tuple[int, ...]
    """The global stages of the rank, by chunk."""
    once: Mapping[Action, tuple[str, int]]
    """The actions that do what is special of their pass."""

    def turns(self) -> list[Turn]:
        """Return (key, action) in order; an action that is cut appears once for each part."""
        return turns(self.row, self.own, self.layout.pairing)

    def passes(self) -> Iterator[tuple[TemplateKey, int]]:
        """Yield every pass: where its template stands, and the microbatch (-1 outside the actions)."""
        yield ("begin", None), -1
        for key, action in self.turns():
            yield ("special", self.once[action]) if action in self.once else ("steps", key), action.microbatch
        yield ("finish", None), -1

    def often(self) -> Counter[TemplateKey]:
        """Return how often each template is executed."""
        return Counter(key for key, _ in self.passes())

    def stage(self, chunk: int) -> int:
        """Return the global stage of a chunk; -1 for none."""
        return self.own[chunk] if chunk >= 0 else -1


class Span(NamedTuple):
    """A period in which a rank cell did or waited for something on one of its streams."""

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
    carried: Carried = NOTHING
    """The bytes of the collectives and messages inside."""
