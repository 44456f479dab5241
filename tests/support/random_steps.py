"""Random programs of a few ranks that can end, and plain ones by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import numpy as np
from activities import activity_of
from flows import flow as flow_of
from hypothesis import strategies as st
from longest_path import Handle, Message, PlainTask

from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST, Activity, Segment
from clustersim.engine.flows import Flow
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    GroupCell,
    Layout,
    OwnTask,
    Pass,
    PassMessage,
    Program,
    Task,
    Wait,
)
from clustersim.engine.times import LoopJob, Tasks, loop_times
from clustersim.schedules.action import Action

LINKS = 4
CAPACITY = np.full(LINKS, 10.0)
STREAMS = ("dp", "pp")


class PlainProgram(NamedTuple):
    """What one rank does in a step, with the tasks of every template as the rank has them."""

    row: tuple[Action, ...]
    steps: Mapping[tuple[str, int], tuple[PlainTask, ...]]
    """By letter and stage."""
    special: Mapping[tuple[str, int], tuple[PlainTask, ...]] = {}
    """Tasks of the first forward pass, or of the last pass of another letter, by letter and stage."""
    finish: tuple[PlainTask, ...] = ()
    begin: tuple[PlainTask, ...] = ()

    def passes(self) -> Iterator[tuple[tuple[PlainTask, ...], int]]:
        """Yield the tasks of every pass and its microbatch."""
        yield self.begin, -1
        orders = [(key, self.row if key[0] == "F" else self.row[::-1]) for key in self.special]
        once = [next(one for one in order if (one.letter, one.stage) == key) for key, order in orders]
        for action in self.row:
            of = self.special if action in once else self.steps
            yield of[action.letter, action.stage], action.microbatch
        yield self.finish, -1

    def own(self) -> tuple[int, ...]:
        """Return the stages of the rank."""
        return tuple(sorted({action.stage for action in self.row})) or (0,)

    def bound(self) -> tuple[Program, list[Activity], dict[str, int]]:
        """Return the same as engines take it, with the activities of its tasks and its group cell by family.

        A message is a family of its own, a group is named by its family and cell.
        """
        own = self.own()
        cells = dict[str, int]()

        def message(one: Message, side: str) -> PassMessage:
            family = f"{one.group} {one.number}"
            cells[f"{family}/{side}"] = 0
            return PassMessage(family, 0, one.stage - own[0])

        def line(one: PlainTask) -> Task:
            waits = tuple(message(own, "receive") if isinstance(own, Message) else own for own in one.waits)
            gives, family = one.gives and message(one.gives, "send"), None
            if one.group is not None:
                family, _ = one.group
            return Task(one.stream, one.kind, -1, family, waits, gives, free=one.free)

        def by_chunk(of: Mapping[Pass, tuple[PlainTask, ...]]) -> dict[Pass, tuple[Task, ...]]:
            return {(letter, own.index(stage)): tuple(map(line, tasks)) for (letter, stage), tasks in of.items()}

        begin, finish = tuple(map(line, self.begin)), tuple(map(line, self.finish))
        layout = Layout(begin, by_chunk(self.steps), by_chunk(self.special), finish)
        every = chain(self.begin, *self.steps.values(), *self.special.values(), self.finish)
        return Program(layout, self.row, own), [one.activity for one in every], cells


class Step(NamedTuple):
    """Programs, and the number of rank cells of each group, which are the first ones."""

    programs: Sequence[PlainProgram]
    members: Mapping[GroupCell, int]

    def job(self, capacity: Any = CAPACITY) -> LoopJob:
        """Return the step as an engine executes it."""
        programs, activities, cells = zip(*(program.bound() for program in self.programs), strict=True)
        for (family, cell), size in self.members.items():
            for own in cells[:size]:
                own[family] = cell
        tasks = Tasks(plan(programs, activities, cells))
        return loop_times(tasks, capacity)


def plan(
    programs: Sequence[Program], activities: Sequence[Sequence[Activity]], cells: Sequence[Mapping[str, int]]
) -> Plan:
    """Return the plan of rank cells without a fabric, each with a program, activities and group cells of its own."""
    none: Any = None
    different = list(dict.fromkeys(one for own in activities for one in own))
    does = [different.index(one) for own in activities for one in own]
    names = dict.fromkeys(name for own in cells for name in own)
    groups = {name: np.array([own.get(name, -1) for own in cells]) for name in names}
    return Plan(programs, np.arange(len(programs)), groups, different, np.array(does, int), none, none, none, {})


def seconds(value: float) -> Activity:
    """Return a computation."""
    return activity_of([Segment(value, None)])


def moving(links: Sequence[int], size: float, bound: float, compute: float = 0.0, latency: float = 0.0) -> Activity:
    """Return a computation and the transfer that follows it."""
    return activity_of([Segment(compute, flow_of("p", latency, size, bound, *((link, 1.0) for link in links)))])


def task(
    kind: str,
    what: float | Activity,
    *waits: Handle,
    stream: str = COMPUTE,
    gives: Message | None = None,
    group: GroupCell | None = None,
) -> PlainTask:
    """Return a task that takes a time, or does an activity."""
    return PlainTask(stream, kind, group, waits, gives, what if isinstance(what, Activity) else seconds(what))


def program(*passes: tuple[PlainTask, ...]) -> PlainProgram:
    """Return a program of passes, one a microbatch and stage."""
    row = tuple(Action(i, "F", i) for i in range(len(passes)))
    return PlainProgram(row, {("F", i): own for i, own in enumerate(passes)})


class _Writer:
    """Writes templates of all ranks in one order of time, so that nothing waits for what comes later."""

    def __init__(self, dice: Random, ranks: int, links: bool, losses: bool) -> None:
        self.dice, self.ranks, self.links, self.losses = dice, ranks, links, losses
        self.pool = [self.segments() for _ in range(dice.randint(1, 4))]
        self.templates: list[list[list[PlainTask]]] = []
        """By letter and rank."""
        self.given: list[tuple[Message, int]] = []
        """Messages that were launched, and their receivers."""
        self.marked: set[int] = set()

    def seconds(self) -> float:
        """Return a time: often one of a few, so that different things happen at one time."""
        return self.dice.choice([0.0, 0.5, 1.0, 2.0, self.dice.uniform(0, 5), self.dice.uniform(0, 5)])

    def flow(self) -> Flow:
        """Return a flow: some use no link, some could overfill one alone, some have no bytes."""
        links = self.dice.sample(range(LINKS), self.dice.choice([0, 1, 1, 2, 3, LINKS])) if self.links else []
        size = self.dice.choice([0.0, 10.0, 10.0, self.dice.uniform(1, 50)])
        bound = self.dice.choice([2.5, 5.0, 10.0, 14.0])
        return flow_of("p", self.dice.choice([0.0, 0.25, self.dice.random()]), size, bound, *_weighed(links))

    def segments(self) -> list[Segment]:
        """Return the segments of an activity."""
        share, memory = (self.dice.choice(SHARES), self.dice.choice(SHARES)) if self.losses else (0.0, 0.0)
        found = []
        for _ in range(self.dice.randint(1, 3)):
            flow = self.dice.choice([None, self.flow(), self.flow()])
            beside = self.dice.choice([0.0, 0.0, self.seconds()]) if flow is not None else 0.0
            launched = self.dice.choice([0.0, 0.0, self.seconds()])
            found.append(Segment(self.seconds(), flow, launched, beside, share, memory))
        return found

    def letter(self, operations: int, free: bool) -> None:
        """Write what each rank does in the passes of one more letter."""
        self.templates.append([[] for _ in range(self.ranks)])
        for _ in range(operations):
            if self.ranks > 1 and self.dice.random() < 0.2:
                self.together(free)
            else:
                self.alone(self.dice.randrange(self.ranks), free)

    def waits(self, rank: int, free: bool) -> tuple[Handle, ...]:
        """Return what a computation, or a free task, waits for."""
        choices: list[Handle] = [message for message, receiver in self.given if receiver == rank]
        if free:
            choices += [OwnTask(place) for place in range(len(self.templates[-1][rank]))]
        else:
            choices += [Wait(stream, *more) for stream in STREAMS for more in ((), (None, 1), (2,))]
            choices += [Wait("ready")] if rank in self.marked else []
        return tuple(self.dice.choices(choices, k=self.dice.randint(0, 3))) if choices else ()

    def alone(self, rank: int, free: bool) -> None:
        """Let a rank do something by itself."""
        what = self.dice.choice(["compute", "launch", "send", "host"] if free else OPERATIONS)
        own, activity, gives = self.templates[-1][rank], self.activity(self.dice.choice(self.pool)), None
        waits = self.waits(rank, free) if free or what in ("compute", "wait", "optimizer") else ()
        if what in ("launch", "send"):
            if what == "send":
                gives = Message(("p2p", rank), len(self.templates), len(self.given))
                self.given.append((gives, self.dice.randrange(self.ranks)))
            stream, other = self.dice.sample(STREAMS, 2)
            if not free and self.dice.random() < 0.5:
                waits = (Wait(other),)
            own.append(PlainTask(stream, what, None, waits, gives, activity, free))
        elif what in ("compute", "optimizer"):
            own.append(PlainTask(COMPUTE, "F" if what == "compute" else what, None, waits, None, activity, free))
        elif what == "wait":
            own.append(PlainTask(COMPUTE, "", None, waits, None, Activity.without_flows()))
        else:
            if what == READY:
                self.marked.add(rank)
            long = Activity.without_flows() if what == SYNCHRONISE else seconds(self.seconds())
            own.append(PlainTask(HOST, "F" if what == "host" else what, None, waits, None, long, free))

    def together(self, free: bool) -> None:
        """Let ranks start something together, each with its own computation."""
        size, columns = self.dice.randint(2, self.ranks), self.dice.choice(self.pool)
        stream = COMPUTE if not free and self.dice.random() < 0.5 else STREAMS[0]
        for rank in range(size):
            own = [one._replace(compute=one.compute * self.dice.choice([1.0, 1.0, 1.5])) for one in columns]
            waits = self.waits(rank, free) if free or stream == COMPUTE else ()
            name = "tp" if stream == COMPUTE else "all_reduce"
            done = PlainTask(stream, name, (f"group{size}", 0), waits, None, self.activity(own), free)
            self.templates[-1][rank].append(done)

    def activity(self, segments: list[Segment]) -> Activity:
        """Return an activity; half of its computation is bound by memory."""
        return activity_of(segments, {}, sum(one.compute + one.overlapped for one in segments) / 2)


def _weighed(links: Sequence[int]) -> list[tuple[int, float]]:
    return [(link, 0.5 if link == LINKS - 1 else 1.0) for link in sorted(links)]


SHARES = [0.0, 0.0, 0.1, 0.25, 0.5, 0.9]
OPERATIONS = ["compute", "compute", "launch", "launch", "send", "send", "wait", "optimizer", "host", READY, SYNCHRONISE]


@st.composite
def steps(draw: Any, links: bool = True, losses: bool = True) -> Step:
    """Return a step in which ranks compute, launch, send, wait and start things together, at random but able to end.

    links: whether flows may share links. losses: whether they may take SMs and memory from what their rank computes.
    """
    ranks, operations = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    count, late = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    free, dice = draw(st.sampled_from([False, False, False, True])), Random(draw(st.integers(0, 1 << 32)))
    writer = _Writer(dice, ranks, links, losses and draw(st.booleans()))
    letters = ("F",) if free or not late else ("F", "B")
    for _ in letters:
        writer.letter(operations, free)
    members = {(f"group{size}", 0): size for size in range(2, ranks + 1)}
    if free:
        return Step([PlainProgram((), {}, begin=tuple(own)) for own in writer.templates[0]], members)
    row = [Action(0, "F", i) for i in range(count)]
    if "B" in letters:  # each second pass follows the first of its microbatch, some passes later
        row = [one for i in range(count + late) for one in _both(i, count, late)]
    return Step([_repeated(row, [own[rank] for own in writer.templates]) for rank in range(ranks)], members)


def _both(i: int, count: int, late: int) -> list[Action]:
    forward = [Action(0, "F", i)] if i < count else []
    return forward + ([Action(0, "B", i - late)] if i >= late else [])


def _repeated(row: Sequence[Action], templates: Sequence[Sequence[PlainTask]]) -> PlainProgram:
    return PlainProgram(tuple(row), {(letter, 0): tuple(own) for letter, own in zip("FB", templates, strict=False)})
