"""The activities of tasks, computations alternating with transfers, and SimPy's fabric, where transfers are fluids.

The bytes of concurrent transfers move at max-min fair rates, which are solved again whenever a transfer starts or ends on a link
that is too short for all on it. An activity sleeps until its end while none of its links could be. This is the reference of the
event loop (`_loop.c`): plain before fast.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL

from clustersim.arrays import Floats
from clustersim.engine.flows import FITS, Flow, solve
from clustersim.model.operator import Collective

HOST = "host"
"""Name of waits for the host, next to the families of flows."""
_SAME = 1e-12
"""Relative change of a rate that counts as rounding."""


class Segment(NamedTuple):
    """`compute` seconds, then at most one flow; overlapping computation (`beside`) starts with it, and both must end."""

    compute: float
    flow: Flow | None
    launched: float = 0.0
    """Seconds after the start of the activity before which the computation cannot end, because of late launches."""
    beside: float = 0.0
    """Seconds of computation while the flow moves, or after it."""
    share: float = 0.0
    """Share of the GPU's SMs that the flow takes from that computation while it moves …"""
    memory: float = 0.0
    """… and share of the memory bandwidth, which overlapping GEMMs of the same activity do not need."""

    def over(self, moving: float) -> float:
        """Return the seconds of a flow that moves for `moving` seconds, together with its overlapping computation."""
        return max(moving, self.beside + self.share * moving) if self.beside else moving


SegmentRow = tuple[float, float, float, float, float]
"""A segment without its flow: compute, launched, beside, share, memory."""


class SegmentTimes:
    """Seconds of segments in order, shared by activities whose flows take equal times on other links."""

    __slots__ = ("compute", "ends", "flows", "idle", "launched", "memory", "moving", "order", "rows", "source")

    def __init__(
        self,
        rows: Sequence[SegmentRow],
        flows: Sequence[Flow],
        order: Sequence[int],
        memory: float = 0.0,
        source: Any = None,
    ) -> None:
        """Compute the times on an idle fabric.

        flows: those of an activity with these times. order: index of the flow of each segment among them, -1 for none. memory:
        seconds of kernels that the GPU's memory bounds. source: the activity's content without seconds (engine.compile.Source);
        None if its kernels are unknown.
        """
        self.rows, self.flows, self.order, self.memory, self.source = rows, flows, order, memory, source
        alone, moving = [(flow.idle, flow.family) for flow in flows], defaultdict[str, float](float)
        self.moving: Mapping[str, float] = moving
        """Seconds of flows by family that no computation overlaps with, and of waiting for the host."""
        self.ends: list[float] = []
        """End of the computation and of the flow of each segment."""
        now = seconds = latest = 0.0
        for (compute, launched, beside, share, _), place in zip(rows, order, strict=True):
            seconds += compute + beside
            latest = launched or latest
            now += compute
            if launched > now:
                moving[HOST] += launched - now
                now = launched
            computed = now
            if place >= 0:
                took, family = alone[place]
                if beside:
                    took = max(took, beside + share * took)
                now += took
                moving[family] += took - beside
            self.ends += computed, now
        self.idle, self.compute = now, seconds
        self.launched = latest > 0.0
        """Whether any segment may wait for the host's launches."""


@dataclass(slots=True, eq=False)
class Activity:
    """A fixed sequence of segments that can be started any number of times: its times, and flows on the links of its ranks."""

    timing: SegmentTimes
    flows: tuple[Flow, ...]
    """Flows with the durations and in the order of the times."""
    calls: Mapping[Collective, float]
    """The collectives and messages inside, and the bytes of each in all."""

    @classmethod
    def alone(cls, *seconds: float) -> Activity:
        """Return an activity without flows: a computation per value of `seconds`, in order. Without values it lasts 0 s."""
        rows = [(own, 0.0, 0.0, 0.0, 0.0) for own in seconds]
        return cls(SegmentTimes(rows, (), [-1] * len(rows)), (), {})

    @property
    def segments(self) -> list[Segment]:
        """Segments in order, with the flows of this activity."""
        own = zip(self.timing.rows, self.timing.order, strict=True)
        return [Segment(row[0], None if place < 0 else self.flows[place], *row[1:]) for row, place in own]

    @property
    def compute(self) -> float:
        """Seconds of computation."""
        return self.timing.compute

    @property
    def idle(self) -> float:
        """Seconds on an idle fabric."""
        return self.timing.idle

    @property
    def ends(self) -> list[float]:
        """End of the computation and of the flow of each segment on an idle fabric, in seconds."""
        return self.timing.ends

    @property
    def moving(self) -> Mapping[str, float]:
        """Seconds of flows by family that no computation overlaps with, and of waiting for the host."""
        return self.timing.moving


class Environment(simpy.Environment):
    """SimPy's environment, which also counts events."""

    events = 0

    def schedule(self, event: simpy.Event, priority: Any = NORMAL, delay: float = 0.0) -> None:
        """Schedule and count an event."""
        self.events += 1
        super().schedule(event, priority, delay)


LinkRates = Sequence[tuple[int, float]]
"""Links, and the bytes/s that is taken of each if nothing is slowed."""


def link_rates(flow: Flow) -> LinkRates:
    """Return the bytes/s that a flow at its bound takes of each of its links."""
    return list(zip(flow.links.tolist(), (flow.bound * flow.weights).tolist(), strict=True))


class Signal:
    """An end whose time is not known yet. Processes that wait for it resume within the same SimPy event."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: list[Callable[[object], None]] = []
        """Functions that `give` calls, like the callbacks of a SimPy event."""

    def give(self) -> None:
        """Resume all waiting processes."""
        for callback in self.callbacks:
            callback(self)


ProcessGenerator = Iterator[simpy.Event | Signal]
"""Generator of a process: it yields each event or signal for which the process waits."""


def follow(steps: ProcessGenerator, _: object = None) -> None:
    """Run a process to the next event or signal that it yields, and resume it when that occurs.

    A process of SimPy would cost an event of its own at the start, at the end and after each signal.
    """
    awaited = next(steps, None)
    if awaited is not None:
        awaited.callbacks.append(partial(follow, steps))


class Transfer(Signal):
    """A flow while its bytes move, and the signal that all have moved."""

    __slots__ = ("demand", "flow", "lands", "left", "rate", "since", "slowed", "timer")

    def __init__(self, flow: Flow, demand: LinkRates, since: float, lands: float) -> None:
        super().__init__()
        self.flow, self.demand, self.lands = flow, demand, lands
        self.rate, self.left, self.since = 0.0, flow.size, since
        """Bytes/s, and the bytes that were left at a time."""
        self.slowed = False
        """Whether it ever moved slower than alone."""
        self.timer: simpy.Event | None = None
        """Event at which all bytes have moved, as long as the rate stays."""


Parts = Sequence[tuple[Segment, LinkRates, float, float]]
"""Segments of an activity, each with its flow's demand, and its half segments' ends if alone, in seconds after the start."""


Done = Callable[[list[float] | None], None]


class Running:
    """An activity on links, from its begin to its end."""

    __slots__ = ("begin", "demand", "done", "parts", "timer")

    def __init__(self, parts: Parts, demand: LinkRates, done: Done, begin: float) -> None:
        self.parts, self.demand, self.done, self.begin = parts, demand, done, begin
        self.timer: simpy.Event | None = None
        """Its end, while it sleeps; None while it moves event by event."""


def _parts_of(activity: Activity) -> tuple[Parts, LinkRates]:
    """Return the segments of an activity that needs links, and the largest bytes/s that one of its flows takes of each link."""
    demands, most = [link_rates(flow) for flow in activity.flows], dict[int, float]()
    for link, rate in chain(*demands):
        most[link] = max(most.get(link, 0.0), rate)
    ends, own = activity.ends, [demands[place] if place >= 0 else [] for place in activity.timing.order]
    return list(zip(activity.segments, own, ends[::2], ends[1::2], strict=True)) if most else [], list(most.items())


class Fabric:
    """Links that transfers share. capacity: bytes/s of each link that can be a bottleneck."""

    def __init__(self, env: simpy.Environment, capacity: Floats | Sequence[float]) -> None:
        self.env, self.capacity = env, np.asarray(capacity, float)
        self.limit: list[float] = (FITS * self.capacity).tolist()
        """Bytes/s of each link up to which it slows nothing."""
        self.moving: dict[Transfer, None] = {}
        """The transfers under way, in the order in which they began."""
        self.crossing = [0] * len(self.limit)
        """Number of transfers that cross each link …"""
        self.wanted = [0.0] * len(self.limit)
        """… the bytes/s that they would take of it if none was slowed …"""
        self.short = [False] * len(self.limit)
        """… and whether it has less: other links slow nothing."""
        self.solving = False
        self.solves = 0
        self.reserved = [0.0] * len(self.limit)
        """Bytes/s of each link that all activities on it may take at one time …"""
        self.holders: list[dict[Running, None]] = [{} for _ in self.limit]
        """… and these activities."""
        self._parts: dict[Activity, tuple[Parts, LinkRates]] = {}
        """Segments of each activity that needs links, and the largest bytes/s that it takes of each link."""

    def start(self, activity: Activity, done: Done) -> None:
        """Start `activity` now. `done` is called at its end with the ends of its half segments (None: as if idle)."""
        if (known := self._parts.get(activity)) is None:
            known = self._parts[activity] = _parts_of(activity)
        parts, demand = known
        if not parts:  # on links that are never short nothing is slowed: one time-out for all of its segments
            self.env.timeout(activity.idle).callbacks.append(lambda _: done(None))
            return
        own, tight = Running(parts, demand, done, self.env.now), list[int]()
        for link, rate in demand:
            self.holders[link][own] = None
            self.reserved[link] += rate
            if self.reserved[link] > self.limit[link]:
                tight.append(link)
        if tight:
            # all that crosses a link which may be overfilled now moves event by event, those that sleep from here on
            for one in dict.fromkeys(chain(*(self.holders[link] for link in tight))):
                if one.timer is not None:  # else it moves already; what another one's end has started may have woken it
                    one.timer.callbacks.clear()
                    one.timer = None
                    follow(self._play(one))
            follow(self._play(own))
        else:  # nor is it slowed while all of its links have room: it sleeps until it would end alone
            own.timer = self.env.timeout(activity.idle)
            own.timer.callbacks.append(partial(self._over, own, None))

    def _over(self, own: Running, segment_ends: list[float] | None, _: object = None) -> None:
        """End an activity."""
        own.timer = None
        for link, rate in own.demand:
            del self.holders[link][own]
            self.reserved[link] = self.reserved[link] - rate if self.holders[link] else 0.0
        own.done(segment_ends)

    def _play(self, own: Running) -> ProcessGenerator:
        """Execute the segments of an activity in order, from now on: what was over while it slept ended as if alone."""
        env, begin, ends, slowed = self.env, own.begin, list[float](), False
        now = env.now
        for segment, demand, computed, over in own.parts:
            # what nothing has slowed ends exactly at its ideal time: sums of its parts would differ in the last digit, and
            # where transfers meet again and again, each meeting may double that
            start = max(now + segment.compute, begin + segment.launched) if slowed else begin + computed
            if start > now:
                yield self.at(start)
                now = env.now
            ends.append(start)
            end = start
            if (flow := segment.flow) is not None:
                end = start + segment.over(flow.idle) if slowed else begin + over
                lands = start + flow.idle if segment.beside else end
                if flow.size and len(flow.links) and lands > now:
                    if start + flow.latency > now:
                        yield self.at(start + flow.latency)
                    transfer = self.move(flow, demand, lands, start + flow.latency)
                    yield transfer
                    now = env.now
                    if transfer.slowed:  # what is computed beside the flow began with it, and both are waited for
                        slowed, end = True, start + segment.over(now - start)
                if end > now:
                    yield self.at(end)
                    now = env.now
            ends.append(end)
        self._over(own, ends if slowed else None)

    def at(self, time: float) -> simpy.Event:
        """Return a time-out at an absolute time in seconds; now if rounding puts it in the past."""
        now = self.env.now
        delay = max(time - now, 0.0)
        # SimPy adds delays to now, which may miss the time by its last digit: the next delay does not
        while now + delay < time:
            delay = math.nextafter(delay, math.inf)
        return self.env.timeout(delay)

    def call_at(self, time: float, action: Callable[[], None]) -> None:
        """Call `action` at an absolute time in seconds; now if rounding puts it in the past."""
        self.at(time).callbacks.append(lambda _: action())

    def move(self, flow: Flow, demand: LinkRates, lands: float, since: float) -> Transfer:
        """Start a transfer and return it. demand: `link_rates(flow)`. lands: time at which it ends if nothing slows it.

        since: time at which its bytes began to move, at their bound.
        """
        transfer = Transfer(flow, demand, since, lands)
        self.moving[transfer] = None
        if since < self.env.now:
            transfer.rate = flow.bound
        if not self._load(transfer, 1) or transfer.rate:
            self._settle(transfer, flow.bound)
        return transfer

    def _end(self, transfer: Transfer, _: object = None) -> None:
        """Remove a transfer whose bytes have all moved."""
        del self.moving[transfer]
        self._load(transfer, -1)
        transfer.give()

    def _load(self, transfer: Transfer, sign: int) -> bool:
        """Add a transfer (sign 1) to the demand on its links, or remove it (-1). Return whether rates must be solved anew."""
        changes = False
        for link, rate in transfer.demand:
            self.crossing[link] += sign
            # an idle link begins from zero again: else the rounding of all sums would stay
            wanted = self.wanted[link] = self.wanted[link] + sign * rate if self.crossing[link] else 0.0
            before, self.short[link] = self.short[link], wanted > self.limit[link]
            changes |= before or self.short[link]
        if changes and not self.solving:  # once for all that happens at this time
            self.solving = True
            self.env.timeout(0.0).callbacks.append(self._solve)
        return changes

    def _solve(self, _: object) -> None:
        """Solve the max-min rates of all transfers on the bottleneck links."""
        self.solving, self.solves = False, self.solves + 1
        flows, every = [one.flow for one in self.moving], np.array(self.short)
        if not flows:
            return
        link = np.concatenate([flow.links for flow in flows])
        weight = np.concatenate([flow.weights for flow in flows])
        variable = np.repeat(np.arange(len(flows)), [len(flow.links) for flow in flows])
        short, bound = every[link], np.array([flow.bound for flow in flows])
        place = (np.cumsum(every) - 1)[link[short]]
        rates = solve(variable[short], place, weight[short], bound, self.capacity[every])
        for one, rate in zip(self.moving, rates.tolist(), strict=True):
            # a rate that differs by rounding alone would move the end by some digits, and cost an event
            if abs(rate - one.rate) > _SAME * one.rate:
                self._settle(one, rate)

    def _settle(self, transfer: Transfer, rate: float) -> None:
        """Change the rate of a transfer from now on, and set the time of its end."""
        now = self.env.now
        transfer.left -= transfer.rate * (now - transfer.since)
        transfer.rate, transfer.since = rate, now
        transfer.slowed |= rate < transfer.flow.bound
        if transfer.timer is not None:
            # SimPy cannot cancel a scheduled event, so the old timer stays queued without callbacks
            transfer.timer.callbacks.clear()
        transfer.timer = self.at(now + max(transfer.left, 0.0) / rate if transfer.slowed else transfer.lands)
        transfer.timer.callbacks.append(partial(self._end, transfer))
