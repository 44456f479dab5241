"""The step of a rank: passes, each a template of tasks on named streams.

Ranks with equal tasks share one `Layout`: its tasks name groups, messages and stages as the rank has them. A `Program` says which
stages they are in one role. The groups of a rank, and how long its tasks take, are columns of `engine/compile.py: Plan`.

A *task* is a computation, a collective or a message on one stream of its rank. Tasks of one stream run in order. A task on the
compute stream may wait for handles: messages of other ranks, or earlier launches of the rank on another stream. A task on another
stream is launched by the compute stream, after all its earlier tasks have ended, and may wait for launches on a third stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from clustersim.arrays import Ints
from clustersim.engine.fabric import Activity
from clustersim.engine.microbatch_overlap import ALONE, Pairing, StepKey, turns
from clustersim.engine.traffic import Variant
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, OperatorStep, Steps
from clustersim.schedules.action import LETTERS, Action, ActionRow

COMPUTE = "compute"
UPDATE = ("norm", "optimizer")
"""Kinds of tasks after the passes of a step."""
READY, SYNCHRONISE = "ready", "synchronise"
"""Marks of the host stream: enough is launched for the next computation to begin, or the host waits for its GPU."""

Pass = tuple[str, int]
"""(letter, chunk)"""
GroupCell = tuple[str, int]
"""A communication group: (family, cell)."""


class PassMessage(NamedTuple):
    """Handle of a message in a layout, in the rank's group of a family: received or sent by a pass."""

    family: str
    chunk: int
    """Index of the pass's stage among those of the rank."""
    ahead: int = 0
    """Global stage of the message minus that of the pass."""
    number: int = 0
    """Index among several messages of a pass between the two ranks."""


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


Handle = PassMessage | Wait | OwnTask
"""Condition that a task waits for."""
Carried = Mapping[tuple[Variant, int], float]
"""{(variant, group cell): bytes}"""
NOTHING: Carried = {}


class Launches(NamedTuple):
    """Numbers of launches of the host for a computation, without its kernels."""

    tensors: int = 0
    """Number of parameter tensors with a launch each."""
    parts: int = 0
    """Number of parts of gathered tensors that are copied into place, with a launch each."""
    calls: int = 0
    """Number of collectives and messages right before."""
    start: float = 0.0
    """Seconds of the first launches of a step, before which no GPU can begin."""


class Task(NamedTuple):
    """One task of a pass, for all ranks of a layout."""

    stream: str
    """Name of the stream: `compute`, `host`, or the family of a collective or message."""
    kind: str
    """Letter of the pass, `norm`, `optimizer`, the op of a collective, or `send`; empty for a pure wait. Host launches have the
    kind of their pass; `ready` and `synchronise` are host marks."""
    chunk: int = -1
    """Index of its stage among those of the rank, so that equivalent ranks have equal tasks; -1 without a stage."""
    family: str | None = None
    """Family of the rank's group whose rank cells start the task together; None: this rank alone."""
    waits: tuple[Handle, ...] = ()
    """Conditions for its start, one after the other; streams other than `compute` wait only for launches."""
    gives: PassMessage | None = None
    """Message that is complete when it ends."""
    items: Steps = ()
    """Kernels of a computation, or of its launches by the host, and the collectives between them."""
    collective: Collective | None = None
    """Collective or message of another stream."""
    launches: Launches = Launches()
    fresh: bool = False
    """Whether the host begins to launch a computation when it begins; else all launches are in time."""
    free: bool = False
    """Whether it starts as soon as its waits are over, whatever else its rank does, as tasks of replayed traces do."""


def launch(chunk: int, collective: Collective, after: Wait | None = None) -> Task:
    """Return the start of a collective on its stream. after: launches on another stream that it waits for."""
    waits = () if after is None else (after,)
    return Task(collective.group, collective.op, chunk, collective.group, waits, collective=collective)


ScriptLine = Task | Handle
"""A task of a pass, or a condition for what follows in the pass."""


def joined(lines: Iterable[ScriptLine]) -> tuple[Task, ...]:
    """Return the tasks of a pass.

    Conditions belong to the next computation; before a launch or a wait of the host, and at the end, a task that only waits has
    them.
    """
    tasks, waits = list[Task](), list[Handle]()
    for line in lines:
        if not isinstance(line, Task):
            waits.append(line)
            continue
        task = line
        if waits and task.stream == COMPUTE:
            task = task._replace(waits=tuple(waits))
        elif waits:
            tasks.append(Task(COMPUTE, "", waits=tuple(waits)))
        tasks.append(task)
        waits = []
    return (*tasks, Task(COMPUTE, "", waits=tuple(waits))) if waits else tuple(tasks)


Step = TypeVar("Step", Kernel, Collective)


def once_each(items: Iterable[OperatorStep], kind: type[Step]) -> list[Step]:
    """Return each item of a type once. Layers repeat the same objects, so that there are far fewer than `items`."""
    same = list(items)
    return [one for one in dict(zip(map(id, same), same, strict=True)).values() if one.__class__ is kind]


TemplateKey = tuple[str, Any]
"""Key of a template in a layout: `begin`, `finish`, (`steps`, StepKey) or (`special`, pass)."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Tasks of equivalent ranks, template after template, each in the order of its launches."""

    begin: tuple[Task, ...] = ()
    steps: Mapping[StepKey, tuple[Task, ...]] = field(default_factory=dict)
    special: Mapping[Pass, tuple[Task, ...]] = field(default_factory=dict)
    """Tasks of a pass's special action, which replace the usual ones."""
    finish: tuple[Task, ...] = ()
    pairing: Pairing = ALONE
    """Which actions run interleaved in parts."""

    @cached_property
    def parts(self) -> dict[TemplateKey, tuple[Task, ...]]:
        """Tasks of each template."""
        found: dict[TemplateKey, tuple[Task, ...]] = {("begin", None): self.begin}
        found |= {("steps", key): tasks for key, tasks in self.steps.items()}
        found |= {("special", one): tasks for one, tasks in self.special.items()}
        return found | {("finish", None): self.finish}

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks."""
        return tuple(chain.from_iterable(self.parts.values()))

    @cached_property
    def templates(self) -> dict[TemplateKey, range]:
        """Indices of the tasks of each template."""
        ends = accumulate(map(len, self.parts.values()))
        return {key: range(end - len(own), end) for (key, own), end in zip(self.parts.items(), ends, strict=True)}

    @cached_property
    def distinct(self) -> tuple[list[Task], Ints]:
        """Tasks that differ in what they do, and for each task its index among them; equal layers do the same."""
        keys = [(one.stream, one.kind, id(one.items), one.collective, one.launches, one.fresh) for one in self.tasks]
        found = dict(zip(keys, self.tasks, strict=True))
        number = {key: place for place, key in enumerate(found)}
        return list(found.values()), np.array([number[key] for key in keys], np.int64)

    @cached_property
    def synchronised(self) -> bool:
        """Whether a host waits for its GPU somewhere."""
        return any(task.kind == SYNCHRONISE for task in self.tasks)

    @cached_property
    def inside(self) -> tuple[str, ...]:
        """Families of collectives inside computations."""
        items = chain.from_iterable([task.items for task in self.tasks])
        return tuple(dict.fromkeys([item.group for item in once_each(items, Collective)]))


class Program(NamedTuple):
    """Passes of the ranks of one role, such as a pipeline rank."""

    layout: Layout
    row: Sequence[Action]
    """Actions in order."""
    own: tuple[int, ...]
    """Global stages of the rank, by chunk."""

    def order(self) -> tuple[Ints, Ints]:
        """Return the template of every pass, by its place in the layout, and its microbatch (-1 outside the actions).

        A special template replaces the usual one of the first action of a forward pass, and of the last action of others.
        """
        layout, own, row = self.layout, self.own, ActionRow.of(self.row)
        codes = [{letter: stage * len(LETTERS) + place for place, letter in enumerate(LETTERS)} for stage in own]
        if layout.pairing:
            number, parts = {key: place for place, key in enumerate(layout.steps, 1)}, turns(row, own, layout.pairing)
            row, found = ActionRow.of([action for _, action in parts]), np.array([number[key] for key, _ in parts])
        else:
            template = np.empty(len(LETTERS) * (1 + max(own)), np.int64)
            for place, (letter, chunk, *_) in enumerate(layout.steps, 1):
                template[codes[chunk][letter]] = place
            found = template[row.code]
        for place, (letter, chunk) in enumerate(layout.special, 1 + len(layout.steps)):
            places = np.flatnonzero(row.code == codes[chunk][letter])
            found[places[0 if letter == "F" else -1]] = place
        last = len(layout.steps) + len(layout.special) + 1
        return np.concatenate(([0], found, [last])), np.concatenate(([-1], row.microbatch, [-1]))

    def passes(self) -> Iterator[tuple[TemplateKey, int]]:
        """Yield the key of the template and the microbatch of every pass, as in `order`."""
        keys, (templates, microbatches) = list(self.layout.templates), self.order()
        yield from zip(map(keys.__getitem__, templates.tolist()), microbatches.tolist(), strict=True)

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
