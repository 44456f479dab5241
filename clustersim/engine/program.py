"""The step of a rank: passes, each a template of tasks on named streams.

Ranks with equal tasks share one `Layout`: its tasks name stages by their index among the rank's (chunks), and groups by their
family. A `Program` has the stages of one role. The groups of a rank, and the seconds of its tasks, are columns of
`engine/compile.py: Plan`.

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
"""Name of the compute stream."""
UPDATE = ("norm", "optimizer")
"""Kinds of tasks after the passes of a step."""
READY, SYNCHRONISE = "ready", "synchronise"
"""Kinds of marks on the host stream: enough is launched for the next computation to begin; the host waits for its GPU."""

Pass = tuple[str, int]
"""(letter, chunk)"""
GroupCell = tuple[str, int]
"""A communication group: (family, cell)."""


class PassMessage(NamedTuple):
    """Handle of a message that a pass receives or sends, in the rank's group of a family."""

    family: str
    """Family of messages."""
    chunk: int
    """Index of the pass's stage among those of the rank."""
    ahead: int = 0
    """Global stage that the message is for, minus that of the pass."""
    number: int = 0
    """Index of the message among those that the pass sends to the same rank."""


class Wait(NamedTuple):
    """Handle of tasks that a rank has launched on a stream: all so far, unless `first` or `but` is set.

    For READY it is the last mark of the host; the computation that waits for it is never delayed by a launch.
    """

    stream: str
    first: int | None = None
    """Number of the step's first tasks on the stream that are waited for; None: all so far."""
    but: int = 0
    """Number of the last tasks so far that are not waited for."""


class OwnTask(NamedTuple):
    """Handle of an earlier task of the same pass, by its index in the template."""

    position: int
    kind: str = ""
    """Name of the span of the wait; empty if the wait is not shown."""


Handle = PassMessage | Wait | OwnTask
"""Condition that a task waits for."""
Carried = Mapping[tuple[Variant, int], float]
"""{(variant, group cell): bytes}"""
NOTHING: Carried = {}


class Launches(NamedTuple):
    """Launches of the host for a computation, besides those of its kernels."""

    tensors: int = 0
    """Number of parameter tensors with a launch each."""
    parts: int = 0
    """Number of parts of gathered tensors that are copied into place, with a launch each."""
    calls: int = 0
    """Number of collectives and messages launched right before the computation."""
    start: float = 0.0
    """Seconds of the first launches of a step, before which no GPU can begin."""


class Task(NamedTuple):
    """One task of a pass, for all ranks of a layout."""

    stream: str
    """Name of the stream: `compute`, `host`, or the family of a collective or message."""
    kind: str
    """Letter of the pass, `norm`, `optimizer`, the op of a collective, or `send`; empty for a task that only waits. Host launches
    have the kind of their pass; READY and SYNCHRONISE are host marks."""
    chunk: int = -1
    """Index of its stage among the rank's, so that equivalent ranks have equal tasks; -1 without a stage."""
    family: str | None = None
    """Family of the rank's group whose rank cells start the task together; None: this rank alone."""
    waits: tuple[Handle, ...] = ()
    """Conditions for its start, in order; unless `free`, tasks of streams other than `compute` wait only for launches."""
    gives: PassMessage | None = None
    """Message that is complete when the task ends."""
    items: Steps = ()
    """Kernels of a computation, or of its launches by the host, and the collectives between them."""
    collective: Collective | None = None
    """Collective or message, if the task is one on a stream of its own."""
    launches: Launches = Launches()
    """Further launches of the host, if the task is a computation or its launches."""
    fresh: bool = False
    """Whether the host begins to launch a computation when it begins; else all launches are in time."""
    free: bool = False
    """Whether it starts as soon as its waits are over, whatever else its rank does, as tasks of replayed traces do."""


def launch(chunk: int, collective: Collective, after: Wait | None = None) -> Task:
    """Return the task that runs a collective on the stream of its family. after: launches on another stream to wait for."""
    waits = () if after is None else (after,)
    return Task(collective.group, collective.op, chunk, collective.group, waits, collective=collective)


ScriptLine = Task | Handle
"""A task of a pass, or a condition for what follows in the pass."""


def joined(lines: Iterable[ScriptLine]) -> tuple[Task, ...]:
    """Return the tasks of a pass from its lines.

    Conditions become waits of the computation after them. Before a launch or a wait of the host, and at the end, they become the
    waits of an additional task that only waits.
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
    """Return each object in `items` of class `kind` once, in order of appearance.

    Layers repeat the same objects, so that there are far fewer than items.
    """
    repeated = list(items)
    return [item for item in dict(zip(map(id, repeated), repeated, strict=True)).values() if item.__class__ is kind]


TemplateKey = tuple[str, Any]
"""Key of a template in a layout: (`begin`, None), (`finish`, None), (`steps`, StepKey) or (`special`, pass)."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Tasks of ranks with equal tasks, as templates, each in the order of its launches."""

    begin: tuple[Task, ...] = ()
    """Tasks before the passes."""
    steps: Mapping[StepKey, tuple[Task, ...]] = field(default_factory=dict)
    """Tasks of each pass, or of each part of a pass in parts."""
    special: Mapping[Pass, tuple[Task, ...]] = field(default_factory=dict)
    """Tasks of a pass's first (forward) or last (other letters) action, which replace the usual ones."""
    finish: tuple[Task, ...] = ()
    """Tasks after the passes."""
    pairing: Pairing = ALONE
    """Passes that run in parts, interleaved."""

    @cached_property
    def parts(self) -> dict[TemplateKey, tuple[Task, ...]]:
        """{key of each template: its tasks}, from begin to finish."""
        steps: dict[TemplateKey, tuple[Task, ...]] = {("steps", key): tasks for key, tasks in self.steps.items()}
        special = {("special", key): tasks for key, tasks in self.special.items()}
        return {("begin", None): self.begin, **steps, **special, ("finish", None): self.finish}

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks of all templates, one after the other."""
        return tuple(chain.from_iterable(self.parts.values()))

    @cached_property
    def templates(self) -> dict[TemplateKey, range]:
        """{key of each template: indices of its tasks in `tasks`}."""
        ends = accumulate(map(len, self.parts.values()))
        return {key: range(end - len(tasks), end) for (key, tasks), end in zip(self.parts.items(), ends, strict=True)}

    @cached_property
    def distinct(self) -> tuple[list[Task], Ints]:
        """Tasks with distinct activities, and for each task of `tasks` the index of the one with its activity (tasks,)."""
        keys = [(t.stream, t.kind, id(t.items), t.collective, t.launches, t.fresh) for t in self.tasks]
        distinct = dict(zip(keys, self.tasks, strict=True))
        number = {key: index for index, key in enumerate(distinct)}
        return list(distinct.values()), np.array([number[key] for key in keys], np.int64)

    @cached_property
    def synchronised(self) -> bool:
        """Whether a host waits for its GPU in some template."""
        return any(task.kind == SYNCHRONISE for task in self.tasks)

    @cached_property
    def inside(self) -> tuple[str, ...]:
        """Distinct families of the collectives inside computations."""
        items = chain.from_iterable([task.items for task in self.tasks])
        return tuple(dict.fromkeys([item.group for item in once_each(items, Collective)]))


class Program(NamedTuple):
    """A layout with the actions and stages of one role, such as a pipeline rank."""

    layout: Layout
    row: Sequence[Action]
    """Actions of a step in order."""
    stages: tuple[int, ...]
    """Global stages of the rank, by chunk."""

    def order(self) -> tuple[Ints, Ints]:
        """Return the template of every pass, as an index into `Layout.templates`, and its microbatch (both: passes,).

        A part of a pass counts as a pass, and so do `begin` and `finish`, whose microbatch is -1.

        A special template replaces the usual one of the first action of a forward pass, and of the last action of others.
        """
        layout, stages, row = self.layout, self.stages, ActionRow.of(self.row)
        codes: list[dict[str, int]] = [
            {letter: stage * len(LETTERS) + code for code, letter in enumerate(LETTERS)} for stage in stages
        ]
        if layout.pairing:
            number = {key: index for index, key in enumerate(layout.steps, 1)}
            parts = turns(row, stages, layout.pairing)
            row, order = ActionRow.of([action for _, action in parts]), np.array([number[key] for key, _ in parts])
        else:
            template = np.empty(len(LETTERS) * (1 + max(stages)), np.int64)
            for index, (letter, chunk, *_) in enumerate(layout.steps, 1):
                template[codes[chunk][letter]] = index
            order = template[row.code]
        for index, (letter, chunk) in enumerate(layout.special, 1 + len(layout.steps)):
            actions = np.flatnonzero(row.code == codes[chunk][letter])
            order[actions[0 if letter == "F" else -1]] = index
        last = len(layout.steps) + len(layout.special) + 1
        return np.concatenate(([0], order, [last])), np.concatenate(([-1], row.microbatch, [-1]))

    def passes(self) -> Iterator[tuple[TemplateKey, int]]:
        """Yield the key of the template and the microbatch of every pass, as in `order`."""
        keys, (templates, microbatches) = list(self.layout.templates), self.order()
        yield from zip(map(keys.__getitem__, templates.tolist()), microbatches.tolist(), strict=True)

    def stage(self, chunk: int) -> int:
        """Return the global stage of a chunk; -1 for none."""
        return self.stages[chunk] if chunk >= 0 else -1


class Span(NamedTuple):
    """A period in which a rank cell executes or waits on one of its streams; times in seconds."""

    rank: int
    """Rank cell."""
    stream: str
    """Name of the stream, or `wait`."""
    kind: str
    """Kind of the task, as in Task; for a wait its name, as in `record.Waits`."""
    stage: int
    """Global stage; -1 for none."""
    microbatch: int
    """Microbatch; -1 for none."""
    requested: float
    """Time when the rank reached it."""
    start: float
    """Time when it started, after all peers reached it."""
    end: float
    activity: Activity | None
    """Activity of a task; None for a wait."""
    segment_ends: list[float] | None
    """Ends of the half segments of its activity; None if they are those of an idle fabric."""
    carried: Carried = NOTHING
    """Bytes of the collectives and messages inside."""
