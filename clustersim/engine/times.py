"""Times of the tasks of a shape and the links they use: columns over tasks and slots, and the same for other kernels.

A *slot* is the content of one event: the task of one rank, or the tasks of several ranks that start together. Slot i is task i
for i below the number of tasks; the others follow `Shape.meetings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, compress
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries, lengths, offsets
from clustersim.engine.compile import Activities, Plan, Speed
from clustersim.engine.fabric import Activity, SegmentTimes
from clustersim.engine.launching import Seconds
from clustersim.engine.program import NOTHING, Carried
from clustersim.engine.shape import Shape, shape

Answer = TypeVar("Answer")
NO_SPEEDS: Mapping[Speed, Speed] = MappingProxyType({})


class Tasks:
    """The tasks of a step: its shape, and their activities and times by kind.

    Activities with equal times, on other links, form a group. Ranks that start together are a kind of their own if their
    activities differ. What does not depend on the seconds of kernels is shared by all that differ in these alone.
    """

    def __init__(self, plan: Plan) -> None:
        """Make the shape of a plan. Raises DeadlockError if ranks of a group do not reach the same tasks."""
        self.plan, self.shape = plan, shape(plan)
        self._known: dict[str, Any] = {}
        self._carried: dict[int, Carried] = {}
        of, several = plan.does.tolist(), dict[tuple[int, ...], int]()
        for slot in self.shape.meetings.slots:
            both = tuple(dict.fromkeys([of[task] for task in slot]))
            of.append(both[0] if len(both) == 1 else len(plan.activities) + several.setdefault(both, len(several)))
        self.kind: Ints = np.array(of, np.int32)
        """Kind of each slot: the activity of single ranks, then those of ranks that start together."""
        timings = dict.fromkeys([one.timing for one in plan.activities])
        number = dict(zip(timings, range(len(timings)), strict=True))
        group = [number[one.timing] for one in plan.activities]
        merged: dict[tuple[int, ...], int] = {}
        for kinds in several:
            own = tuple(dict.fromkeys([group[kind] for kind in kinds]))
            group.append(own[0] if len(own) == 1 else len(number) + merged.setdefault(own, len(merged)))
        self.group: Ints = np.array(group, np.int64)
        """Group of each kind."""
        self.timings, self._merged = list(timings), list(merged)
        """Times of each group of single ranks, and the groups combined in each group of ranks that start together."""
        self._every = [*plan.activities, *(plan.activities[kinds[0]] for kinds in several)]

    def carried(self, task: int) -> Carried:
        """Return the bytes of the collectives and messages in a task, by variant and group cell."""
        if task not in self._carried:
            calls = self.activity(task).calls
            self._carried[task] = self.plan.placed(int(self.shape.task_rank[task]), calls) if calls else NOTHING
        return self._carried[task]

    def once(self, name: str, find: Callable[[], Answer]) -> Answer:
        """Return find(), computed once for all tasks that differ only in seconds: `find` must not read times."""
        if name not in self._known:
            self._known[name] = find()
        return cast(Answer, self._known[name])

    @cached_property
    def timed(self) -> list[SegmentTimes]:
        """Times of each group: of single ranks first, then of ranks that start together, which follow the slowest."""
        return [*self.timings, *(together([self.timings[group] for group in own]) for own in self._merged)]

    @cached_property
    def different(self) -> list[Activity]:
        """Activity of each kind, with its times; tasks started together have the flows of the first."""
        times = [self.timed[group] for group in self.group.tolist()]
        return [
            one if one.timing is own else Activity(own, one.flows, one.calls)
            for one, own in zip(self._every, times, strict=True)
        ]

    def activity(self, slot: int) -> Activity:
        """Return the activity of a slot."""
        return self.different[int(self.kind[slot])]

    @property
    def of_task(self) -> Ints:
        """Kind of each task."""
        return self.kind[: len(self.shape.op)]

    @cached_property
    def compute(self) -> Floats:
        """Seconds of computation of each task (tasks,)."""
        found: Floats = np.array([one.compute for one in self.timed])[self.group[self.of_task]]
        return found

    def retimed(self, seconds: Sequence[Seconds], speeds: Mapping[Speed, Speed] = NO_SPEEDS) -> Tasks:
        """Return the tasks with these kernel seconds, and with other GPU speeds as mapped in `speeds`."""
        made, found = Activities(seconds, self.plan.network, self.plan.hosts), copy(self)
        found.timings = [
            old if (own := old.source) is None else made.timing(own._replace(speed=speeds.get(own.speed, own.speed)))
            for old in self.timings
        ]
        for name in ("timed", "different", "compute"):  # of other times
            found.__dict__.pop(name, None)
        return found


def together(timings: Sequence[SegmentTimes]) -> SegmentTimes:
    """Return the times of ranks in lock-step: each segment takes as long as its slowest computation."""
    if len(timings) == 1:
        return timings[0]
    columns = (zip(*rows, strict=True) for rows in zip(*(one.rows for one in timings), strict=True))
    rows = [(max(own), max(launched), max(beside), share[0], 0.0) for own, launched, beside, share, _ in columns]
    return SegmentTimes(rows, timings[0].flows, timings[0].order)


class Losses(NamedTuple):
    """Shares of SMs and memory bandwidth that communication takes from overlapping computation."""

    sms: Floats
    """Share of the SMs that each kind takes while it runs on a communication stream."""
    memory: Floats
    """Share of the memory bandwidth that each kind takes while it runs on a communication stream."""
    compute: Floats
    """Seconds of computation of each kind."""
    bound: Floats
    """Seconds of each kind in memory-bound kernels."""
    taking: Mask
    """Whether each task takes SMs or bandwidth from the passes of its rank."""
    losing: Mask
    """Whether each task is a pass that may lose SMs or bandwidth to communication of its rank."""

    def __bool__(self) -> bool:
        return bool(self.taking.any() and self.losing.any())


_NONE, _NOT = np.empty(0), np.empty(0, bool)
NO_LOSSES = Losses(_NONE, _NONE, _NONE, _NONE, _NOT, _NOT)
"""Nothing is taken from any computation."""


class HeldLinks(NamedTuple):
    """The links that each kind of slot holds, as columns; these do not depend on the seconds of kernels."""

    kind: Ints
    """Kind of each slot."""
    link_start: Ints
    """Index in `link` of the first link of each kind, followed by the length of `link`."""
    link: Ints
    """Links that each kind holds while it runs, kind after kind."""
    share: Floats
    """Largest share of each link in `link` that a flow of the kind takes."""
    segment_start: Ints
    """First segment of each kind that holds links, followed by the number of all."""
    flow: Ints
    """Flow of each segment; -1 for none."""
    flows: Floats
    """Rows (latency, size, bound, idle)."""
    load_start: Ints
    """Index in `load_link` of the first load of each flow, followed by the number of all loads."""
    load_link: Ints
    """Link of each load, as an index among the links of its kind."""
    load_weight: Floats
    """Bytes over the link of each load per byte of its flow."""


class LoopJob(NamedTuple):
    """A job for the loops: its tasks, and columns with which slots are executed."""

    tasks: Tasks
    idle: Floats
    """Seconds of each kind if nothing slows it."""
    segment: Floats
    """Rows (compute, launched, beside, share, computed, over): as in Segment, then the ends of both halves if alone."""
    losses: Losses
    held: HeldLinks
    """Kind of each slot, and the links of each kind."""

    @property
    def shape(self) -> Shape:
        """Passes, tasks and waits of the step."""
        return self.tasks.shape


def loop_times(tasks: Tasks, capacity: Floats) -> LoopJob:
    """Return the times, links and losses of each task as columns. capacity: bytes/s of each link that can be a bottleneck."""
    links, group, timed = tasks.once("links", lambda: _links(tasks, capacity)), tasks.group, tasks.timed
    held = group[lengths(links.link_start).nonzero()[0]]
    rows = [
        [(*row[:4], *both) for row, *both in zip(one.rows, one.ends[::2], one.ends[1::2], strict=True)]
        for one in (timed if len(held) else ())
    ]
    start = offsets(np.array([*map(len, rows)] or [0], np.int64))
    segment = np.array([*chain.from_iterable(rows)], float).reshape(-1, 6)[entries(start, held)]
    idle = np.array([one.idle for one in timed])[group]
    return LoopJob(tasks, idle, segment, _losses(tasks), links)


def _links(tasks: Tasks, capacity: Floats) -> HeldLinks:
    """Return the links of each kind. capacity: bytes/s of each link that can be a bottleneck."""
    each, none, empty = tasks.different, np.empty(0), np.empty(0, np.int64)
    own = [one.flows for one in each]
    every = list(chain.from_iterable(own))
    of_flow = np.repeat(np.arange(len(each)), np.array([*map(len, own)], np.int64))
    crossed = np.array([flow.links.size for flow in every], np.int64)
    holds = np.bincount(of_flow, crossed, len(each)) > 0
    holding, moves = np.flatnonzero(holds), holds[of_flow]
    kept, loads = list(compress(every, moves)), crossed[moves]
    first = offsets(np.bincount(of_flow[moves], minlength=len(each)))
    kind = np.repeat(of_flow[moves], loads)
    weight = np.concatenate([none, *[flow.weights for flow in kept]])
    latency, size, bound = np.array([flow[1:4] for flow in kept], float).reshape(-1, 3).T
    idle = latency + np.divide(size, bound, out=np.zeros(len(kept)), where=size > 0)
    # each link of a kind once, with the largest bytes/s that one flow takes of it
    keys, places = np.unique(
        kind * len(capacity) + np.concatenate([empty, *[flow.links for flow in kept]]), return_inverse=True
    )
    link, peak = keys % max(len(capacity), 1), np.zeros(len(keys))
    np.maximum.at(peak, places, weight * np.repeat(bound, loads))
    count = np.bincount(keys // max(len(capacity), 1), minlength=len(each))
    link_start = offsets(count)
    rows = np.array([len(one.timing.rows) for one in each], np.int64) * (count > 0)
    order = np.array(list(chain.from_iterable([each[kind].timing.order for kind in holding.tolist()])), np.int64)
    return HeldLinks(
        kind=tasks.kind,
        link_start=link_start.astype(np.int32),
        link=link.astype(np.int32),
        share=peak / capacity[link],
        segment_start=offsets(rows).astype(np.int32),
        flow=np.where(order < 0, -1, order + first[:-1].repeat(rows)).astype(np.int32),
        flows=np.column_stack([latency, size, bound, idle]),
        load_start=offsets(loads).astype(np.int32),
        load_link=(places - link_start[kind]).astype(np.int32),
        load_weight=weight,
    )


def _losses(tasks: Tasks) -> Losses:
    """Return the shares that communication takes from computation on its ranks."""
    group, timed = tasks.group, tasks.timed
    # communication takes equal shares in all of its segments
    taken = [one.rows[0][3:] if one.rows else (0.0, 0.0) for one in timed]
    sms, bandwidth = np.array(taken).reshape(-1, 2)[group].T
    takes: Mask = (sms > 0.0) | (bandwidth > 0.0)
    taking: Mask = tasks.shape.beside & takes[tasks.of_task]
    if not taking.any():
        return NO_LOSSES
    rank, ranks = tasks.shape.task_rank, tasks.shape.ranks
    losing = tasks.shape.loses.astype(bool) & (np.bincount(rank, taking, ranks) > 0)[rank]
    taking &= (np.bincount(rank, losing, ranks) > 0)[rank]
    # if nothing takes memory bandwidth, all kernels lose alike
    memory = np.array([one.memory for one in timed])[group] * (bandwidth > 0.0).any()
    compute = np.array([one.compute for one in timed])[group]
    return Losses(sms, bandwidth, compute, memory, taking, losing)
