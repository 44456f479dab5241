"""The step of a rank: passes, each a template of tasks on named streams.

Ranks that do alike share one `Layout`: its tasks name groups, messages and stages as the rank has them. A `Program` says which
stages they are in one role. The groups of a rank, and what its tasks do, are columns of `engine/compile.py: Plan`; a `Task` is
a task of one rank with all of that.

A *task* is a computation, a collective or a message on one stream of its rank. Tasks of one stream run in order. A task on the
compute stream may wait for handles: messages of other ranks, or earlier launches of the rank on another stream. A task on another
stream is launched by the compute stream, after all its earlier tasks have ended, and may wait for launches on a third stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.fabric import Activity
from clustersim.engine.microbatch_overlap import ALONE, Pairing, Turn, turns
from clustersim.engine.traffic import Variant
from clustersim.schedules.action import Action

COMPUTE = "compute"
UPDATE = ("norm", "optimizer")
"""Kinds of tasks after the passes of a step."""
READY, SYNCHRONISE = "ready", "synchronise"
"""Marks of the host stream: enough is launched for the next computation to begin, or the host waits for its GPU."""

GroupCell = tuple[str, int]
"""A communication group: (family, cell)."""


class Message(NamedTuple):
    """Handle of a message for `stage` between the two rank cells of a pair; one per microbatch."""

    group: GroupCell
    stage: int
    number: int = 0
    """Index among several messages of a pass between the two."""


class PassMessage(NamedTuple):
    """Handle of a message in a layout, in the rank's group of a family: received or sent by a pass."""

    family: str
    chunk: int
    """Index of the pass's stage among those of the rank."""
    ahead: int = 0
    """Global stage of the message minus that of the pass."""
    number: int = 0
    """Index as in Message."""


class Wait(NamedTuple):
    """Handle of all tasks that a rank has launched on a stream so far, or of the first `first` of the step; for READY, of the
    last mark of the host: the computation that waits for it is never delayed by a launch."""

    stream: str
    first: int | None = None
    but: int = 0
    """Number of the last tasks that are left out."""


class OwnTask(NamedTuple):
    """Handle of an earlier task of the same pass, by its index in the template."""

    place: int
    kind: str = ""
    """Name of the span of the wait; empty if it is not shown as a wait."""


LayoutHandle = PassMessage | Wait | OwnTask
Handle = Message | Wait | OwnTask
"""Condition that a task waits for."""
Carried = Mapping[tuple[Variant, int], float]
"""{(variant, group cell): bytes}"""
NOTHING: Carried = {}


class LayoutTask(NamedTuple):
    """One task of a pass, for all ranks of a layout."""

    stream: str
    """Name of the stream: `compute`, `host`, or the family of a collective or message."""
    kind: str
    """Letter of the pass, `norm`, `optimizer`, the op of a collective, or `send`; empty for a pure wait. Host launches have the
    kind of their pass; `ready` and `synchronise` are host marks."""
    chunk: int
    """Index of its stage among those of the rank, -1 without a stage."""
    family: str | None
    """Family of the rank's group whose rank cells start the task together; None: this rank alone."""
    waits: tuple[LayoutHandle, ...]
    """Conditions for its start, one after the other; streams other than `compute` wait only for launches."""
    gives: PassMessage | None
    """Message that is complete when it ends."""
    free: bool = False
    """Whether it starts as soon as its waits are over, whatever else its rank does, as tasks of replayed traces do."""


class Task(NamedTuple):
    """One task of a pass of one rank; other fields are as in LayoutTask."""

    stream: str
    kind: str
    stage: int
    """Global stage, -1 without a stage."""
    group: GroupCell | None
    """Group whose rank cells start the task together; None: this rank alone."""
    waits: tuple[Handle, ...]
    gives: Message | None
    activity: Activity
    """Activity of the task; for tasks started together, this rank's part."""
    free: bool = False
    carried: Carried = NOTHING
    """Bytes of the collectives and messages inside."""


def computing(tasks: Sequence[LayoutTask]) -> Mask:
    """Return a mask of the tasks on compute streams."""
    return np.array([task.stream == COMPUTE for task in tasks], bool)


TemplateKey = tuple[str, Any]
"""Key of a template in a layout: `begin`, `finish`, (`steps`, StepKey) or (`special`, pass)."""


class Layout(NamedTuple):
    """Tasks of equivalent ranks, template after template."""

    tasks: tuple[LayoutTask, ...]
    templates: Mapping[TemplateKey, range]
    """Indices of the tasks of each template, in the order of their launches."""
    pairing: Pairing = ALONE
    """Which actions run interleaved in parts."""

    @property
    def special(self) -> list[tuple[str, int]]:
        """Passes with a special variant, which one action of each runs."""
        return [key for part, key in self.templates if part == "special"]


def special_actions(row: Sequence[Action], own: Sequence[int], passes: Iterable[tuple[str, int]]) -> set[Action]:
    """Return the actions that run the special variants of `passes`: of forward passes the first action, of others the last.

    row: actions of a rank. own: its global stages, by chunk.
    """
    found = set()
    for letter, chunk in passes:
        order = row if letter == "F" else reversed(row)
        found.add(next(action for action in order if action.letter == letter and action.stage == own[chunk]))
    return found


class Program(NamedTuple):
    """Passes of the ranks of one role, such as a pipeline rank."""

    layout: Layout
    row: tuple[Action, ...]
    """Actions in order."""
    own: tuple[int, ...]
    """Global stages of the rank, by chunk."""

    def turns(self) -> list[Turn]:
        """Return (key, action) in order; an action in parts appears once per part."""
        return turns(self.row, self.own, self.layout.pairing)

    def passes(self) -> Iterator[tuple[TemplateKey, int]]:
        """Yield every pass: the key of its template, and the microbatch (-1 outside the actions)."""
        yield ("begin", None), -1
        once = special_actions(self.row, self.own, self.layout.special)
        for key, action in self.turns():
            yield ("special", key[:2]) if action in once else ("steps", key), action.microbatch
        yield ("finish", None), -1

    def often(self) -> Counter[TemplateKey]:
        """Return the number of executions of each template."""
        return Counter(key for key, _ in self.passes())

    def stage(self, chunk: int) -> int:
        """Return the global stage of a chunk; -1 for none."""
        return self.own[chunk] if chunk >= 0 else -1


class Span(NamedTuple):
    """A period in which a rank cell executes or waits on one of its streams; times in seconds."""

    rank: int
    stream: str
    kind: str
    stage: int
    microbatch: int
    asked: float
    """Time when the rank requested it."""
    start: float
    """Time when it started, after all peers requested it."""
    end: float
    activity: Activity | None
    segment_ends: list[float] | None
    """End of each half segment of its activity; None if it ran as if alone."""
    carried: Carried = NOTHING
    """Bytes of the collectives and messages inside."""
