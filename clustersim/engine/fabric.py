"""Transfers as fluids on shared links, in SimPy's time.

An `Activity` alternates computation with transfers. While the bounds of everything that holds a link fit into it, nothing
can be slowed down, so an activity is one time-out, however many transfers it has. When a newcomer could overfill one of
its links, the activities that hold that link are woken: each is found at the point it has reached and goes on transfer by
transfer, with max-min fair rates that `flows` keeps up to date, until its links cannot be overfilled any more. Both ways give
the same times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heappush
from itertools import count
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import simpy
from simpy.events import NORMAL

from clustersim.arrays import Floats
from clustersim.engine.flows import Asked, Flow, Flows
from clustersim.engine.occupancy import Holder, Occupancy
from clustersim.engine.traffic import Variant

HOST = "host"
"""What waiting for the host is called among the families of flows."""
_LAST = 2  # SimPy priority: after everything else that happens at the same time


class Segment(NamedTuple):
    """`compute` seconds, then one flow or none; with it begins what is computed `beside` it, and both are waited for."""

    compute: float
    flow: Flow | None
    launched: float = 0.0
    """Seconds after the begin of the activity before which the computation is not over: the host launches it too late."""
    beside: float = 0.0
    """Seconds of computation while the flow moves, or after it."""
    share: float = 0.0
    """What the flow takes of the GPU from that computation as long as it moves: SMs, of all that the GPU has …"""
    memory: float = 0.0
    """… and of its memory's bandwidth, which what is computed beside it in its own activity, products, does not miss."""

    def over(self, moving: float) -> float:
        """Return the seconds that a flow which moves so long takes together with what is computed beside it."""
        return max(moving, self.beside + self.share * moving) if self.beside else moving


Carried = dict[tuple[Variant, int], float]
"""Bytes by variant and group cell."""


class Activity:
    """A fixed sequence of segments that can be started any number of times.

    carried: bytes of the collectives and messages inside, for the link report. ends: idle time at which each segment's
    computation and flow end. moving: idle seconds of its flows by family, without those beside
    computation, and of waiting for the host. asked: the most bytes/s that its flows ask of each link. memory: seconds of
    kernels that its GPU's memory bounds.
    """

    __slots__ = ("_flows", "_segments", "_times", "asked", "carried", "compute", "ends", "idle", "memory", "moving")

    NONE: ClassVar[Activity]

    def __init__(self, segments: Iterable[Segment], carried: Carried | None = None, memory: float = 0.0) -> None:
        self._segments = tuple(segments)
        self._times: Activity | None = None  # itself; it would keep itself alive
        self._flows: Sequence[Flow | None] | None = None  # those of its segments, until these are asked for
        self.carried, self.memory = carried or {}, memory
        self.compute = math.fsum(s.compute + s.beside for s in self._segments)
        self.ends, self.moving = _idle(self._segments)
        self.idle = self.ends[-1] if self.ends else 0.0
        self.asked = _peaks(s.flow for s in self._segments)

    @property
    def times(self) -> Activity:
        """The first one of those that take as long."""
        return self._times or self

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What it does, one after the other."""
        if self._flows is not None:  # few ask for the segments of what has the times of another
            pairs = zip(self.times.segments, self._flows, strict=True)
            self._segments, self._flows = tuple(times._replace(flow=flow) for times, flow in pairs), None
        return self._segments

    @property
    def flows(self) -> Sequence[Flow | None]:
        """The flow of each of its segments."""
        return tuple(segment.flow for segment in self._segments) if self._flows is None else self._flows

    @property
    def launched(self) -> bool:
        """Whether the host may launch some of it too late."""
        return any(segment.launched for segment in self.times.segments)

    @property
    def around(self) -> tuple[float, float]:
        """Seconds before its first byte moves, and after its last one has."""
        first, last = self.times.segments[0], self.times.segments[-1]
        return first.compute + (first.flow.latency if first.flow else 0.0), 0.0 if last.flow else last.compute

    def timed(self, segments: Sequence[Segment], memory: float) -> Activity:
        """Return the same with other seconds of computation before each flow: `segments` have the flows of this one."""
        one = self.carrying(self.carried)
        one.memory = memory
        one._segments, one._flows, one._times = tuple(segments), None, None
        one.compute = math.fsum(s.compute + s.beside for s in segments)
        one.ends, one.moving = _idle(one._segments)
        one.idle = one.ends[-1]
        return one

    def like(self, other: Activity) -> Activity:
        """Return the same with the times of another, whose flows are as many and take as long."""
        one = other.carrying(self.carried)
        one._flows, one.asked = self.flows, self.asked
        return one

    def over(self, flows: Sequence[Flow | None], carried: Carried) -> Activity:
        """Return the same with other flows, segment by segment, which take as long on other links."""
        one = self.carrying(carried)
        one._flows, one.asked = flows, _peaks(flows)
        return one

    def carrying(self, carried: Carried) -> Activity:
        """Return the same with other bytes for the link report."""
        one = Activity.__new__(Activity)
        one._segments, one._flows, one._times = self._segments, self._flows, self.times
        one.compute, one.memory, one.ends, one.idle = self.compute, self.memory, self.ends, self.idle
        one.moving, one.asked, one.carried = self.moving, self.asked, carried
        return one


def _idle(segments: Iterable[Segment]) -> tuple[list[float], dict[str, float]]:
    """Return when each computation and flow is over on an idle fabric, and the seconds of flows by family and of waiting."""
    now, ends, spent = 0.0, list[float](), dict[str, float]()
    for segment in segments:
        compute, flow, launched, beside, *_ = segment
        now += compute
        if launched > now:
            spent[HOST] = spent.get(HOST, 0.0) + launched - now
            now = launched
        ends.append(now)
        if flow is not None:
            took = segment.over(flow.idle)
            now += took
            spent[flow.family] = spent.get(flow.family, 0.0) + took - beside
        ends.append(now)
    return ends, spent


def _peaks(flows: Iterable[Flow | None]) -> Asked:
    """Return the links of all flows, each once, and the most bytes/s that one of them asks of it."""
    distinct = {(id(one.links), one.bound): one for one in flows if one is not None and len(one.links)}.values()
    if not distinct:
        return _NOTHING
    if len(distinct) == 1:
        [flow] = distinct
        return Asked.of(flow.links, flow.weights * flow.bound)
    links = np.concatenate([flow.links for flow in distinct])
    peaks = np.concatenate([flow.weights * flow.bound for flow in distinct])
    links, place = np.unique(links, return_inverse=True)
    most = np.zeros(len(links))
    np.maximum.at(most, place, peaks)
    return Asked.of(links, most)


_NOTHING = Asked.of(np.empty(0, np.int64), np.empty(0))
Activity.NONE = Activity(())


class Timer(simpy.Event):
    """A time-out without what SimPy's own does beside: there are as many as tasks. `what` is for those that are called."""

    __slots__ = ("callbacks", "what")
    _ok, _value = True, None

    def __init__(self, callbacks: list[Callable[[Any], None]], what: Any = None) -> None:
        self.callbacks, self.what = callbacks, what


class Running(Timer):
    """An activity under way, and the timer of its end as long as it never was awake.

    `index` counts half segments: even computes, odd flows.
    """

    __slots__ = ("activity", "begun", "done", "ends", "holder", "index", "on_time", "over", "started")

    def __init__(
        self,
        callbacks: list[Callable[[Any], None]],
        activity: Activity,
        started: float,
        holder: Holder,
        over: Callable[[Running], None],
        done: Callable[[list[float] | None], None] | None = None,
    ) -> None:
        self.callbacks, self.over, self.done = callbacks, over, done
        self.activity, self.started, self.holder = activity, started, holder
        self.index = 0
        self.ends: list[float] = []  # when each half segment ended, once awake; while it sleeps again, when each will
        self.begun = started  # of the half segment
        # nothing has slowed it yet: each half segment ends when it would end alone, to the last digit
        self.on_time = True

    def alone(self) -> float:
        """Return when the half segment would end alone, if nothing has slowed the run before."""
        return self.started + self.activity.ends[self.index]

    def ahead(self) -> None:
        """Say when all half segments end that are not over, if nothing slows them."""
        done = len(self.ends)
        if self.on_time:
            self.ends += [self.started + end for end in self.activity.ends[done:]]
            return
        now = self.ends[-1]
        for index in range(done, len(self.activity.ends)):
            segment = self.activity.segments[index // 2]
            if index % 2 == 0:
                now = max(now + segment.compute, self.started + segment.launched)
            elif segment.flow is not None:
                now += segment.over(segment.flow.idle)
            self.ends.append(now)


class Transfers:
    """Activities that go on half segment by half segment, whose bytes move at max-min fair rates."""

    def __init__(self, env: simpy.Environment, links: Occupancy, capacity: Floats) -> None:
        """links: who holds them. capacity: bytes/s by link."""
        self.env, self.links = env, links
        self.flows = Flows(capacity)
        self.moving: dict[int, tuple[int, Running]] = {}  # by slot, with a number that grows
        self.begun = count()
        self.armed = math.inf  # for when the one timer of all moving flows is set
        self.dirty = False

    def wake(self, run: Running) -> None:
        """Put a run where it is by now, asleep until now, and let it go on from there."""
        ends = run.ends or [run.started + end for end in run.activity.ends]
        index = min(bisect_right(ends, self.env._now), len(ends) - 1)
        run.ends = ends[:index]
        run.on_time = not index or run.ends[-1] == run.started + run.activity.ends[index - 1]
        self._enter(run, index, run.ends[-1] if index else run.started)

    def _enter(self, run: Running, index: int, begun: float) -> None:
        """Go on with half segment `index`, which has begun at a time before now or just now."""
        run.index, run.begun = index, begun
        segment = run.activity.segments[index // 2]
        flow = segment.flow
        if index % 2 == 0:
            time = run.alone() if run.on_time else max(begun + segment.compute, run.started + segment.launched)
            if time <= self.env._now:
                self._end(run)
            else:
                self._at(run, time, self._end)
        elif flow is None or not flow.size:
            self._until(run, begun + (flow.idle if flow else 0.0), self._landed)
        elif self.env.now >= begun + flow.idle:  # what is computed beside it takes longer
            self._until(run, begun + segment.over(flow.idle), self._end)
        elif self.env.now >= begun + flow.latency:
            self._move(run)
        else:
            self._at(run, begun + flow.latency, self._move)

    def _until(self, run: Running, time: float, call: Callable[[Running], None]) -> None:
        """Call at the end of a half segment that nothing can slow."""
        self._at(run, run.alone() if run.on_time else time, call)

    def _at(self, run: Running, time: float, call: Callable[[Running], None]) -> None:
        _at(self.env, time, _called, (call, run))

    def _landed(self, run: Running) -> None:
        """End a flow, when what is computed beside it is over too."""
        segment = run.activity.segments[run.index // 2]
        if segment.beside:
            self._until(run, run.begun + segment.over(self.env.now - run.begun), self._end)
        else:
            self._end(run)

    def _end(self, run: Running) -> None:
        """Go on, or let a run sleep to its end if by now nothing can slow it."""
        now = self.env._now
        run.ends.append(now)
        index = run.index + 1
        if index < len(run.activity.ends) and not self.links.fit(run.holder, now):
            self._enter(run, index, now)
            return
        run.ahead()
        self.links.rest(run.holder, run.ends[-1])
        run.over(run)

    def _move(self, run: Running) -> None:
        """Let the bytes of a flow move, its latency being over."""
        flow = run.activity.segments[run.index // 2].flow
        assert flow is not None
        lands = run.begun + flow.idle
        if run.on_time and not run.activity.segments[run.index // 2].beside:
            lands = run.alone()
        if not len(flow.links):
            self._at(run, lands, self._landed)
            return
        gone = self.env.now - run.begun - flow.latency
        slot = self.flows.add(flow, flow.size - max(gone, 0.0) * flow.bound, self.env.now, lands)
        self.moving[slot] = next(self.begun), run
        self._touch()

    def _touch(self) -> None:
        """Solve once, after all that happens at this time."""
        if not self.dirty:
            self.dirty = True
            _at(self.env, self.env._now, self._solve, priority=_LAST)

    def _solve(self, _: simpy.Event) -> None:
        """Bring the rates up to date, and set the one timer of all moving flows to the first that lands."""
        self.dirty = False
        first = self.flows.solve(self.env._now)
        if first != self.armed:
            self.armed = first
            if self.moving:
                _at(self.env, first, self._due, first)

    def _due(self, timer: Timer) -> None:
        time = timer.what
        if self.armed != time:
            return
        self.armed = math.inf
        slots = self.flows.due(time)
        late = {slot for slot in slots if not self.flows.on_time(slot)}
        landed = sorted([(*self.moving.pop(slot), slot) for slot in slots], key=itemgetter(0))  # as they began
        self.flows.remove(*slots)
        self._touch()
        for _, run, slot in landed:
            run.on_time &= slot not in late
            self._landed(run)


def _called(timer: Timer) -> None:
    call, run = timer.what
    call(run)


def _at(
    env: simpy.Environment, time: float, call: Callable[[Any], None], what: object = None, priority: int = NORMAL
) -> None:
    heappush(env._queue, (max(time, env._now), cast("Any", priority), next(env._eid), Timer([call], what)))


class Fabric:
    """The links of a cluster. capacity: bytes/s of each link that can be short."""

    def __init__(self, env: simpy.Environment, capacity: Iterable[float]) -> None:
        limit = np.array(list(capacity), float)
        self.env, self.links = env, Occupancy(limit)
        self.transfers = Transfers(env, self.links, limit)
        self.running: dict[Holder, Running] = {}
        self.started = count()

    def start(self, activity: Activity, done: Callable[[list[float] | None], None]) -> None:
        """Start `activity` now; call `done` at its end with the ends of its half segments (None: as if idle)."""
        env, asked = self.env, activity.asked
        if not len(asked.links):
            _at(env, env.now + activity.idle, lambda _: done(None))
            return
        holder = Holder(next(self.started), asked, env._now + activity.idle)
        run = self.running[holder] = Running([self._over], activity, env._now, holder, self._settled, done)
        tight = self.links.take(holder, env._now)
        if not tight:  # its links cannot be full, as the peaks of all that hold them fit
            heappush(env._queue, (holder.until, NORMAL, next(env._eid), run))
            return
        self._wake(tight)
        self.transfers.wake(run)

    def _wake(self, links: Sequence[int]) -> None:
        """Wake whoever sleeps on one of the links; he holds his links as before."""
        for one in self.links.asleep(links, self.env.now):
            self.links.wake(one)
            self.transfers.wake(self.running[one])

    def _settled(self, run: Running) -> None:
        """End a run when it is over, as far as is known now."""
        if run.ends[-1] > self.env._now:
            _at(self.env, run.ends[-1], lambda _: self._over(run))
        else:
            self._end(run)

    def _over(self, run: Running) -> None:
        """End what slept until its end, if it still does."""
        if run.holder.until == self.env._now and run.holder in self.running:
            self._end(run)

    def _end(self, run: Running) -> None:
        del self.running[run.holder]
        assert run.done is not None
        run.done(run.ends or None)
