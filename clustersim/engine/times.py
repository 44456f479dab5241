"""Times of the tasks of a shape and the links that they use, as columns; the times can be replaced by those of other kernels.

A *slot* is what one event executes: the task of one rank, or the tasks of several ranks that start together. Slot i is task i for
i below the number of tasks; the others are numbered in the order of `Meetings.slots`.

A *kind* is an activity, or the combination of activities of ranks that start together. A *group* of kinds has equal times, maybe
on different links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""No speed is replaced."""


class Tasks:
    """The tasks of a step: its shape, and the activity and times of each kind of slot.

    What does not depend on kernel seconds is shared by the results of `retimed`.
    """

    def __init__(self, plan: Plan) -> None:
        """Make the shape of a plan. Raises DeadlockError if ranks of a group do not reach the same tasks."""
        self.plan, self.shape = plan, shape(plan)
        self._known: dict[str, Any] = {}
        self._carried: dict[int, Carried] = {}
        slot_kind, combinations = plan.does.tolist(), dict[tuple[int, ...], int]()

        def combined(parts: Iterable[int], singles: int, numbers: dict[tuple[int, ...], int]) -> int:
            """Return the only distinct number among `parts`, or the number of their combination, from `singles` on."""
            key = tuple(dict.fromkeys(parts))
            return key[0] if len(key) == 1 else singles + numbers.setdefault(key, len(numbers))

        for slot in self.shape.meetings.slots:
            slot_kind.append(combined([slot_kind[task] for task in slot], len(plan.activities), combinations))
        self.kind: Ints = np.array(slot_kind, np.int32)
        """Kind of each slot: an index into `plan.activities`, or beyond them for ranks with different activities that start
        together."""
        timings = dict.fromkeys([activity.timing for activity in plan.activities])
        number = dict(zip(timings, range(len(timings)), strict=True))
        group, merged = [number[activity.timing] for activity in plan.activities], dict[tuple[int, ...], int]()
        group += [combined([group[kind] for kind in kinds], len(number), merged) for kinds in combinations]
        self.group: Ints = np.array(group, np.int64)
        """Group of each kind."""
        self.timings, self._merged = list(timings), list(merged)
        """Times of each group of single ranks, and the groups that each further group combines."""
        self._representatives = [*plan.activities, *(plan.activities[kinds[0]] for kinds in combinations)]

    def carried(self, task: int) -> Carried:
        """Return {(variant, group cell): bytes} of the collectives and messages in a task."""
        if task not in self._carried:
            calls = self.activity(task).calls
            self._carried[task] = self.plan.placed(int(self.shape.task_rank[task]), calls) if calls else NOTHING
        return self._carried[task]

    def once(self, name: str, compute: Callable[[], Answer]) -> Answer:
        """Return compute(), called once per `name` for all tasks that differ only in seconds; it must not read times."""
        if name not in self._known:
            self._known[name] = compute()
        return cast(Answer, self._known[name])

    @cached_property
    def timed(self) -> list[SegmentTimes]:
        """Times of each group; ranks that start together have those of their slowest parts (`in_lock_step`)."""
        return [*self.timings, *(in_lock_step([self.timings[group] for group in groups]) for groups in self._merged)]

    @cached_property
    def different(self) -> list[Activity]:
        """Activity of each kind, with its times; tasks that start together have the flows of the first."""
        timings = [self.timed[group] for group in self.group.tolist()]
        return [
            activity if activity.timing is timing else Activity(timing, activity.flows, activity.calls)
            for activity, timing in zip(self._representatives, timings, strict=True)
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
        seconds: Floats = np.array([timing.compute for timing in self.timed])[self.group[self.of_task]]
        return seconds

    def retimed(self, seconds: Sequence[Seconds], speeds: Mapping[Speed, Speed] = NO_SPEEDS) -> Tasks:
        """Return a copy of the tasks, timed with new kernel seconds.

        seconds: for each node type, as in `Work.seconds`. speeds: {speed: speed that replaces it}.
        """
        activities, result = Activities(seconds, self.plan.network, self.plan.hosts), copy(self)
        result.timings = [*self.timings]
        for index, timing in enumerate(self.timings):
            if (source := timing.source) is not None:
                speed = speeds.get(source.speed, source.speed)
                result.timings[index] = activities.timing(source._replace(speed=speed))
        for name in ("timed", "different", "compute"):  # cached properties that depend on times
            result.__dict__.pop(name, None)
        return result


def in_lock_step(timings: Sequence[SegmentTimes]) -> SegmentTimes:
    """Return the times of ranks in lock-step: each segment takes as long as the slowest of theirs. They have equal flows."""
    if len(timings) == 1:
        return timings[0]
    columns = (zip(*rows, strict=True) for rows in zip(*(timing.rows for timing in timings), strict=True))
    rows = [
        (max(compute), max(launched), max(overlapped), share[0], 0.0)
        for compute, launched, overlapped, share, _ in columns
    ]
    return SegmentTimes(rows, timings[0].flows, timings[0].order)


class Losses(NamedTuple):
    """Shares of SMs and memory bandwidth that communication takes from overlapping computation; true if it takes any."""

    sms: Floats
    """Share of the SMs that each kind takes while it runs on a communication stream."""
    memory: Floats
    """Share of the memory bandwidth that each kind takes while it runs on a communication stream."""
    compute: Floats
    """Seconds of computation of each kind."""
    bound: Floats
    """Seconds of each kind in memory-bound kernels; 0 if nothing takes memory bandwidth."""
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
    """The links that each kind of slot uses while it runs, as columns that do not depend on kernel seconds.

    Segments are those of the kinds that use links, kind after kind; flows and loads follow in the same order.
    """

    kind: Ints
    """Kind of each slot."""
    link_start: Ints
    """Index in `link` of the first link of each kind, followed by the length of `link`."""
    link: Ints
    """Links that each kind uses, each once, kind after kind."""
    share: Floats
    """Largest share of the capacity of each link in `link` that one flow of the kind uses at its bound."""
    segment_start: Ints
    """First segment of each kind, followed by the number of all segments; kinds without links have none."""
    flow: Ints
    """Flow of each segment, as a row of `flows`; -1 for none."""
    flows: Floats
    """Rows (latency in seconds, size in bytes, bound in bytes/s, idle seconds) (flows, 4)."""
    load_start: Ints
    """Index in `load_link` of the first load of each flow, followed by the number of all loads."""
    load_link: Ints
    """Link of each load, as an index among the links of its kind."""
    load_weight: Floats
    """Bytes over the link of each load per byte of its flow."""


class LoopJob(NamedTuple):
    """A job as input of the engines: its tasks, and the columns with which they execute slots."""

    tasks: Tasks
    idle: Floats
    """Seconds of each kind if nothing slows it."""
    segment: Floats
    """Rows (compute, launched, overlapped, share, end of computation, end of flow) of the segments of `held` (segments, 6). The
    first four are as in Segment; the ends are in seconds from the start of the activity on an idle fabric."""
    losses: Losses
    """SMs and memory bandwidth that communication takes from computation of the same rank."""
    held: HeldLinks
    """Kind of each slot, and the links of each kind."""

    @property
    def shape(self) -> Shape:
        """Passes, tasks and waits of the step."""
        return self.tasks.shape


def loop_times(tasks: Tasks, capacity: Floats) -> LoopJob:
    """Return the input of the engines for a job. capacity: bytes/s of each link that can be a bottleneck."""
    links, group, timed = tasks.once("links", lambda: _links(tasks, capacity)), tasks.group, tasks.timed
    linked_groups = group[lengths(links.link_start).nonzero()[0]]
    rows = [
        [(*row[:4], *ends) for row, *ends in zip(timing.rows, timing.ends[::2], timing.ends[1::2], strict=True)]
        for timing in (timed if len(linked_groups) else ())
    ]
    start = offsets(np.array([*map(len, rows)] or [0], np.int64))
    segment = np.array([*chain.from_iterable(rows)], float).reshape(-1, 6)[entries(start, linked_groups)]
    idle = np.array([timing.idle for timing in timed])[group]
    return LoopJob(tasks, idle, segment, _losses(tasks), links)


def _links(tasks: Tasks, capacity: Floats) -> HeldLinks:
    """Return the links of each kind. capacity: bytes/s of each link that can be a bottleneck."""
    activities, none, empty = tasks.different, np.empty(0), np.empty(0, np.int64)
    all_flows = [flow for activity in activities for flow in activity.flows]
    flow_kind = np.repeat(
        np.arange(len(activities)), np.array([len(activity.flows) for activity in activities], np.int64)
    )
    crossed = np.array([flow.links.size for flow in all_flows], np.int64)
    linked = np.bincount(flow_kind, crossed, len(activities)) > 0
    kept = linked[flow_kind]
    flows, loads = list(compress(all_flows, kept)), crossed[kept]
    first = offsets(np.bincount(flow_kind[kept], minlength=len(activities)))
    kind = np.repeat(flow_kind[kept], loads)
    weight = np.concatenate([none, *[flow.weights for flow in flows]])
    latency, size, bound = np.array([flow[1:4] for flow in flows], float).reshape(-1, 3).T
    idle = latency + np.divide(size, bound, out=np.zeros(len(flows)), where=size > 0)
    # each link of a kind once, with the largest bytes/s that one flow uses of it
    keys, places = np.unique(
        kind * len(capacity) + np.concatenate([empty, *[flow.links for flow in flows]]), return_inverse=True
    )
    link, peak = keys % max(len(capacity), 1), np.zeros(len(keys))
    np.maximum.at(peak, places, weight * np.repeat(bound, loads))
    count = np.bincount(keys // max(len(capacity), 1), minlength=len(activities))
    link_start = offsets(count)
    rows = np.array([len(activity.timing.rows) for activity in activities], np.int64) * (count > 0)
    orders = [activities[number].timing.order for number in np.flatnonzero(linked).tolist()]
    order = np.array(list(chain.from_iterable(orders)), np.int64)
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
    """Return the shares that communication takes from computation on its ranks; NO_LOSSES if it takes none."""
    group, timed = tasks.group, tasks.timed
    # all segments of a collective or message take equal shares
    taken = [timing.rows[0][3:] if timing.rows else (0.0, 0.0) for timing in timed]
    sms, bandwidth = np.array(taken).reshape(-1, 2)[group].T
    takes: Mask = (sms > 0.0) | (bandwidth > 0.0)
    taking: Mask = tasks.shape.beside & takes[tasks.of_task]
    if not taking.any():
        return NO_LOSSES
    rank, ranks = tasks.shape.task_rank, tasks.shape.ranks
    losing = tasks.shape.loses.astype(bool) & (np.bincount(rank, taking, ranks) > 0)[rank]
    taking &= (np.bincount(rank, losing, ranks) > 0)[rank]
    # if nothing takes memory bandwidth, all kernels lose the share of SMs
    memory = np.array([timing.memory for timing in timed])[group] * (bandwidth > 0.0).any()
    compute = np.array([timing.compute for timing in timed])[group]
    return Losses(sms, bandwidth, compute, memory, taking, losing)
