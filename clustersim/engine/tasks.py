"""The tasks of a graph and what they take, by arrays; and the same tasks with kernels that take other seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, cast, overload

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Activities, Plan, Source, Speed
from clustersim.engine.fabric import Activity
from clustersim.engine.graph import StepGraph, together
from clustersim.engine.launching import Seconds
from clustersim.engine.program import Task

Answer = TypeVar("Answer")
NO_SPEEDS: Mapping[Speed, Speed] = MappingProxyType({})


class SlotTimes(NamedTuple):
    """What the slots of a graph take as if alone, in seconds."""

    idle: Floats
    before: Floats
    """Before the first byte moves …"""
    after: Floats
    """… and after the last one has."""


class SlotKinds(NamedTuple):
    """Activities that may take other times than each other, and which of them each slot takes as long as."""

    different: Sequence[Activity]
    of: Ints

    @classmethod
    def found(cls, activities: Sequence[Activity]) -> SlotKinds:
        """Return those of activities, one a slot."""
        number: dict[Activity, int] = {}
        of = np.array([number.setdefault(activity.times, len(number)) for activity in activities], np.int64)
        return cls(list(number), of)

    @property
    def times(self) -> SlotTimes:
        """What each slot takes."""
        each = np.array([(one.idle, *one.around) for one in self.different]).reshape(-1, 3)
        return SlotTimes(*(column[self.of] for column in each.T))


class Tasks(Sequence[Task]):
    """The tasks of a graph, and what was worked out of them: that is shared by all that differ in the times of kernels alone."""

    def __init__(self, graph: StepGraph, tasks: Iterable[Task]) -> None:
        self.graph = graph
        self.alike = list(tasks)
        """The same tasks, whose kernels may take other seconds: all but times can be asked of them."""
        self._known: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self.alike)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.own)

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | Sequence[Task]:
        return self.own[place]

    def on(self, graph: StepGraph) -> Self:
        """Return the tasks on another graph of the same slots."""
        one = copy(self)
        one.graph = graph
        return one

    def once(self, find: Callable[[Sequence[Task]], Answer]) -> Answer:
        """Return what a function finds of the tasks, whatever their times."""
        if find not in self._known:
            self._known[find] = find(self.alike)
        return cast(Answer, self._known[find])

    def once_of_slots(self, find: Callable[[Sequence[Activity]], Answer]) -> Answer:
        """Return what a function finds of the activities of slots, whatever their times."""
        if find not in self._known:
            self._known[find] = find(self.activities)
        return cast(Answer, self._known[find])

    @cached_property
    def own(self) -> list[Task]:
        """The tasks with their times."""
        return self.alike

    @cached_property
    def activities(self) -> Sequence[Activity]:
        """What is done in each slot of the graph."""
        return self.graph.activities(self.own)

    @cached_property
    def slot_kinds(self) -> SlotKinds:
        """Which slots take as long as each other."""
        return SlotKinds.found(self.activities)

    @cached_property
    def times(self) -> SlotTimes:
        """What each slot takes."""
        return self.slot_kinds.times

    @property
    def seconds(self) -> Floats:
        """What each node of the graph takes."""
        return np.append(self.times.idle, 0.0)[self.graph.arrays[2]]  # the last one is that of joins, slot -1

    @cached_property
    def compute(self) -> Floats:
        """Seconds of computation, by task."""
        return np.array([task.activity.compute for task in self.own])

    @cached_property
    def memory(self) -> Floats:
        """Seconds of that in kernels which memory bounds, by task."""
        return np.array([task.activity.memory for task in self.own])


class TaskKinds:
    """What tasks of a plan take as long as each other, whatever the seconds of kernels."""

    def __init__(self, plan: Plan, tasks: Tasks) -> None:
        self.plan, self.tasks = plan, tasks
        numbers: dict[Activity, int] = {}
        self.of: dict[Activity, int] = {}
        """Which kind each activity is."""
        self.first: list[tuple[Activity, Source | None]] = []
        """The first activity of each kind, and what it is made of if it has kernels."""
        for activity in dict.fromkeys(task.activity for task in tasks.alike):
            self.of[activity] = number = numbers.setdefault(activity.times, len(numbers))
            if number == len(self.first):
                self.first.append((activity, plan.sources.get(activity)))
        self.of_task: Ints = np.array([self.of[task.activity] for task in tasks.alike], np.int64)
        merged: dict[tuple[int, ...], int] = {}
        found = self.of_task.tolist()
        slots = [
            (found[slot[0]],) if len(slot) == 1 else tuple(dict.fromkeys(found[task] for task in slot))
            for slot in tasks.graph.slots
        ]
        self.of_slot: Ints = np.array([merged.setdefault(slot, len(merged)) for slot in slots], np.int64)
        self.merged = list(merged)
        """The kinds of the activities that ranks in lock-step do together."""

    def timed(self, seconds: Sequence[Seconds], speeds: Mapping[Speed, Speed] = NO_SPEEDS) -> Retimed:
        """Return the tasks with kernels that take these seconds, on GPUs with other speeds where `speeds` has some."""
        return Retimed(self, self.making(seconds, speeds))

    def making(self, seconds: Sequence[Seconds], speeds: Mapping[Speed, Speed]) -> Callable[[int], Activity]:
        """Return what makes an activity of a kind."""
        written = Activities(seconds, self.plan.network, self.plan.hosts)

        def make(kind: int) -> Activity:
            old, source = self.first[kind]
            if source is None:
                return old
            return written.timed(old, source._replace(speed=speeds.get(source.speed, source.speed)))

        return cache(make)


class SlotActivities(Sequence[Activity]):
    """What is done in each slot of a graph, made when it is asked."""

    def __init__(self, kinds: TaskKinds, make: Callable[[int], Activity]) -> None:
        """make: makes an activity of each kind."""
        self.kinds, self.make, self.slots = kinds, make, kinds.tasks.graph.slots
        self.known: dict[int, Activity] = {}

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, place: int) -> Activity: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Activity]: ...
    def __getitem__(self, place: int | slice) -> Activity | Sequence[Activity]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        if place not in self.known:
            self.known[place] = self._made(place)
        return self.known[place]

    def _made(self, place: int) -> Activity:
        kinds, alike = self.kinds, self.kinds.tasks.alike
        # one of each kind is enough: those of one kind take as long
        own = {kinds.of[one]: one for one in reversed([alike[task].activity for task in self.slots[place]])}
        return together([old.like(self.make(kind)) for kind, old in reversed(own.items())], {})


class Retimed(Tasks):
    """The tasks of a graph with kernels that take other seconds; what is asked of single tasks is made when it is asked."""

    def __init__(self, kinds: TaskKinds, make: Callable[[int], Activity], times: SlotTimes | None = None) -> None:
        """make: makes an activity of each kind. times: of the slots, where they are known without."""
        super().__init__(kinds.tasks.graph, ())
        self.alike, self._known = kinds.tasks.alike, kinds.tasks._known
        self.kinds, self.make, self._slot_times = kinds, make, times

    @cached_property
    def made(self) -> list[Activity]:
        """An activity of each kind."""
        return list(map(self.make, range(len(self.kinds.first))))

    @cached_property
    def activities(self) -> Sequence[Activity]:
        """What is done in each slot of the graph."""
        return SlotActivities(self.kinds, self.make)  # and not self: a cycle would outlive the cache

    @cached_property
    def own(self) -> list[Task]:
        """The tasks with their times."""
        again = {old: old.like(self.made[kind]) for old, kind in self.kinds.of.items()}
        return [Task(*task[:-1], again[task.activity]) for task in self.kinds.tasks.alike]

    @cached_property
    def slot_kinds(self) -> SlotKinds:
        """Which slots take as long as each other, whatever the seconds of kernels."""
        different = [together([self.made[kind] for kind in merged], {}) for merged in self.kinds.merged]
        return SlotKinds(different, self.kinds.of_slot)

    @cached_property
    def times(self) -> SlotTimes:
        """What each slot takes."""
        return self.slot_kinds.times if self._slot_times is None else self._slot_times

    @cached_property
    def compute(self) -> Floats:
        """Seconds of computation, by task."""
        found: Floats = np.array([one.compute for one in self.made])[self.kinds.of_task]
        return found

    @cached_property
    def memory(self) -> Floats:
        """Seconds of that in kernels which memory bounds, by task."""
        found: Floats = np.array([one.memory for one in self.made])[self.kinds.of_task]
        return found
