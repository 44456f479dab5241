"""Activities of tasks (computations alternating with transfers), and the links on which SimPy runs them.

The bytes of concurrent transfers move at max-min fair rates. These are solved again whenever a transfer starts or ends on a link
with too little capacity for all of its transfers. An activity sleeps until its end while all of its links have enough. This is
the reference of the event loop (`_loop.c`): plain before fast.
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
    """`compute` seconds, then at most one flow; overlapping computation starts with the flow, and both must end."""

    compute: float
    flow: Flow | None
    launched: float = 0.0
    """Seconds after the start of the activity before which the computation cannot end, because of late launches."""
    overlapped: float = 0.0
    """Seconds of computation that starts with the flow."""
    share: float = 0.0
    """Share (0 to 1) of the GPU's SMs that the flow takes from overlapping computation while it moves."""
    memory: float = 0.0
    """Share of the memory bandwidth that the flow takes from other activities; overlapping GEMMs of this one do not need it."""

    def flow_seconds(self, moving: float) -> float:
        """Return the seconds of a flow that moves for `moving` seconds and of its overlapping computation: both must end."""
        return max(moving, self.overlapped + self.share * moving) if self.overlapped else moving


SegmentRow = tuple[float, float, float, float, float]
"""A segment without its flow: compute, launched, overlapped, share, memory, as in Segment."""


class SegmentTimes:
    """Seconds of segments in order, shared by activities whose flows take equal times on different links.

    idle: seconds of all segments on an idle fabric. compute: seconds of computation.
    """

    __slots__ = ("compute", "ends", "exposed", "flows", "idle", "launched", "memory", "order", "rows", "source")

    def __init__(
        self,
        rows: Sequence[SegmentRow],
        flows: Sequence[Flow],
        order: Sequence[int],
        memory: float = 0.0,
        source: Any = None,
    ) -> None:
        """Compute the times on an idle fabric.

        flows: flows of one of these activities. order: index in `flows` of each segment's flow, -1 for none. memory: seconds of
        memory-bound kernels. source: the activity's content without seconds (engine.compile.Source), None for unknown kernels.
        """
        self.rows, self.flows, self.order, self.memory, self.source = rows, flows, order, memory, source
        idle_flows, exposed = [(flow.idle, flow.family) for flow in flows], defaultdict[str, float](float)
        self.exposed: Mapping[str, float] = exposed
        """{family: seconds of flows on an idle fabric that no computation overlaps}; waits for launches have the key HOST."""
        self.ends: list[float] = []
        """End of the computation and of the flow of each segment, in seconds from the start of the activity."""
        now = seconds = latest = 0.0
        for (compute, launched, overlapped, share, _), flow_index in zip(rows, order, strict=True):
            seconds += compute + overlapped
            latest = launched or latest
            now += compute
            if launched > now:
                exposed[HOST] += launched - now
                now = launched
            computed = now
            if flow_index >= 0:
                flow_seconds, family = idle_flows[flow_index]
                if overlapped:
                    flow_seconds = max(flow_seconds, overlapped + share * flow_seconds)
                now += flow_seconds
                exposed[family] += flow_seconds - overlapped
            self.ends += computed, now
        self.idle, self.compute = now, seconds
        self.launched = latest > 0.0
        """Whether any segment may wait for the host's launches."""


@dataclass(slots=True, eq=False)
class Activity:
    """A fixed sequence of segments: its times, and its flows on the links of its ranks. It can be started any number of times."""

    timing: SegmentTimes
    flows: tuple[Flow, ...]
    """Flows in the order of `timing.flows`, with equal durations."""
    calls: Mapping[Collective, float]
    """{collective or message inside: bytes of all its calls}"""

    @classmethod
    def without_flows(cls, *seconds: float) -> Activity:
        """Return an activity without flows: a computation per value of `seconds`, in order. Without values it lasts 0 s."""
        rows = [(value, 0.0, 0.0, 0.0, 0.0) for value in seconds]
        return cls(SegmentTimes(rows, (), [-1] * len(rows)), (), {})

    @property
    def segments(self) -> list[Segment]:
        """Segments in order, with the flows of this activity."""
        pairs = zip(self.timing.rows, self.timing.order, strict=True)
        return [
            Segment(row[0], None if flow_index < 0 else self.flows[flow_index], *row[1:]) for row, flow_index in pairs
        ]


class Environment(simpy.Environment):
    """SimPy's environment, which also counts the events that were scheduled."""

    events = 0

    def schedule(self, event: simpy.Event, priority: Any = NORMAL, delay: float = 0.0) -> None:
        """Schedule an event in `delay` seconds, as SimPy does, and count it in `events`."""
        self.events += 1
        super().schedule(event, priority, delay)


LinkRates = Sequence[tuple[int, float]]
"""(link, bytes/s that unslowed flows use of it) for each link."""


def link_rates(flow: Flow) -> LinkRates:
    """Return (link, bytes/s that the flow uses of it at its bound) for each of its links."""
    return list(zip(flow.links.tolist(), (flow.bound * flow.weights).tolist(), strict=True))


class Signal:
    """An occurrence whose time is not known yet. Processes that wait for it resume within the SimPy event that calls `give`."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: list[Callable[[object], None]] = []
        """Functions that `give` calls with this signal, like the callbacks of a SimPy event."""

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
    """A flow while its bytes move, and the signal that all have moved. lands: time when it ends if nothing slows it."""

    __slots__ = ("demand", "flow", "lands", "left", "rate", "since", "slowed", "timer")

    def __init__(self, flow: Flow, demand: LinkRates, since: float, lands: float) -> None:
        super().__init__()
        self.flow, self.demand, self.lands = flow, demand, lands
        self.rate, self.left, self.since = 0.0, flow.size, since
        """Current rate in bytes/s, and the bytes that were left at time `since`."""
        self.slowed = False
        """Whether it ever moved below its bound."""
        self.timer: simpy.Event | None = None
        """Event at which all bytes have moved if the rate does not change."""


Parts = Sequence[tuple[Segment, LinkRates, float, float]]
"""(segment, rates of its flow, end of its computation, end of its flow) for each segment of an activity. The ends are those on an
idle fabric, in seconds after the start."""


Done = Callable[[list[float] | None], None]
"""Function that is called when an activity ends, with the ends of its half segments (absolute seconds; None: as on an idle
fabric)."""


class Running:
    """An activity on links, from its begin to its end. demand: largest bytes/s that one of its flows uses of each link."""

    __slots__ = ("begin", "demand", "done", "parts", "timer")

    def __init__(self, parts: Parts, demand: LinkRates, done: Done, begin: float) -> None:
        self.parts, self.demand, self.done, self.begin = parts, demand, done, begin
        self.timer: simpy.Event | None = None
        """Event of its end while it sleeps; None while it runs segment by segment."""


def _parts_of(activity: Activity) -> tuple[Parts, LinkRates]:
    """Return the parts of an activity, and the largest bytes/s that one flow uses of each link. Both are empty without links."""
    demands, peak_rates = [link_rates(flow) for flow in activity.flows], dict[int, float]()
    for link, rate in chain(*demands):
        peak_rates[link] = max(peak_rates.get(link, 0.0), rate)
    ends, order = activity.timing.ends, activity.timing.order
    segment_rates = [demands[flow_index] if flow_index >= 0 else [] for flow_index in order]
    parts = list(zip(activity.segments, segment_rates, ends[::2], ends[1::2], strict=True))
    return parts if peak_rates else [], list(peak_rates.items())


class Fabric:
    """Links that the transfers of activities share. capacity: bytes/s of each link that can be a bottleneck."""

    def __init__(self, env: simpy.Environment, capacity: Floats | Sequence[float]) -> None:
        self.env, self.capacity = env, np.asarray(capacity, float)
        self.limit: list[float] = (FITS * self.capacity).tolist()
        """Bytes/s of each link up to which it slows nothing."""
        self.transfers: dict[Transfer, None] = {}
        """Transfers under way, in the order of their starts."""
        self.crossing = [0] * len(self.limit)
        """Number of transfers that cross each link."""
        self.demanded = [0.0] * len(self.limit)
        """Bytes/s of each link that the transfers across it would use if none was slowed."""
        self.short = [False] * len(self.limit)
        """Whether each link has less capacity than demanded; other links slow nothing."""
        self.solving = False
        """Whether rates are to be solved at the end of the current time."""
        self.solves = 0
        """Number of max-min problems solved so far."""
        self.reserved = [0.0] * len(self.limit)
        """Largest bytes/s of each link that all activities on it could use at one time."""
        self.holders: list[dict[Running, None]] = [{} for _ in self.limit]
        """Activities under way that use each link in some segment."""
        self._parts: dict[Activity, tuple[Parts, LinkRates]] = {}
        """{activity started so far: its `_parts_of`}"""

    def start(self, activity: Activity, done: Done) -> None:
        """Start `activity` now. done: called at its end, as in `Done`."""
        if (known := self._parts.get(activity)) is None:
            known = self._parts[activity] = _parts_of(activity)
        parts, demand = known
        if not parts:  # without links nothing is slowed: one time-out for all of its segments
            self.env.timeout(activity.timing.idle).callbacks.append(lambda _: done(None))
            return
        running, tight = Running(parts, demand, done, self.env.now), list[int]()
        for link, rate in demand:
            self.holders[link][running] = None
            self.reserved[link] += rate
            if self.reserved[link] > self.limit[link]:
                tight.append(link)
        if tight:
            # all activities on a link that may be overfilled now run segment by segment, sleeping ones from here on
            for holder in dict.fromkeys(chain(*(self.holders[link] for link in tight))):
                # others are awake already, maybe because of an activity started a moment ago
                if holder.timer is not None:
                    holder.timer.callbacks.clear()
                    holder.timer = None
                    follow(self._run_segments(holder))
            follow(self._run_segments(running))
        else:  # while all of its links have room nothing slows it: it sleeps until its end on an idle fabric
            running.timer = self.env.timeout(activity.timing.idle)
            running.timer.callbacks.append(partial(self._end_activity, running, None))

    def _end_activity(self, running: Running, segment_ends: list[float] | None, _: object = None) -> None:
        """End an activity now: release its links and call its `done`. segment_ends: as in `Done`."""
        running.timer = None
        for link, rate in running.demand:
            del self.holders[link][running]
            self.reserved[link] = self.reserved[link] - rate if self.holders[link] else 0.0
        running.done(segment_ends)

    def _run_segments(self, running: Running) -> ProcessGenerator:
        """Run the segments of an activity that are not over yet, as a process. What ended while it slept was not slowed."""
        env, begin, ends, slowed = self.env, running.begin, list[float](), False
        now = env.now
        for segment, demand, computed, over in running.parts:
            # what nothing has slowed ends exactly at its ideal time: sums of its parts would differ in the last digit, and
            # each further contention could double that difference
            start = max(now + segment.compute, begin + segment.launched) if slowed else begin + computed
            if start > now:
                yield self.at(start)
                now = env.now
            ends.append(start)
            end = start
            if (flow := segment.flow) is not None:
                end = start + segment.flow_seconds(flow.idle) if slowed else begin + over
                lands = start + flow.idle if segment.overlapped else end
                if flow.size and len(flow.links) and lands > now:
                    if start + flow.latency > now:
                        yield self.at(start + flow.latency)
                    transfer = self.move(flow, demand, lands, start + flow.latency)
                    yield transfer
                    now = env.now
                    if transfer.slowed:  # overlapping computation began with the flow, and both are waited for
                        slowed, end = True, start + segment.flow_seconds(now - start)
                if end > now:
                    yield self.at(end)
                    now = env.now
            ends.append(end)
        self._end_activity(running, ends if slowed else None)

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
        """Start a transfer and return it. demand: `link_rates(flow)`. lands: time when it ends if nothing slows it.

        since: time when its bytes began to move at their bound, now or in the past.
        """
        transfer = Transfer(flow, demand, since, lands)
        self.transfers[transfer] = None
        if since < self.env.now:
            transfer.rate = flow.bound
        if not self._load(transfer, 1) or transfer.rate:
            self._settle(transfer, flow.bound)
        return transfer

    def _end_transfer(self, transfer: Transfer, _: object = None) -> None:
        """Remove a transfer whose bytes have all moved."""
        del self.transfers[transfer]
        self._load(transfer, -1)
        transfer.give()

    def _load(self, transfer: Transfer, sign: int) -> bool:
        """Add a transfer to the demand on its links (sign 1), or remove it (-1). Return whether rates must be solved again.

        They must if one of its links was short before or is now; the solution is then scheduled for the end of this time.
        """
        changes = False
        for link, rate in transfer.demand:
            self.crossing[link] += sign
            # an idle link begins from zero again: else the rounding of all sums would stay
            demanded = self.demanded[link] = self.demanded[link] + sign * rate if self.crossing[link] else 0.0
            before, self.short[link] = self.short[link], demanded > self.limit[link]
            changes |= before or self.short[link]
        if changes and not self.solving:  # once for all changes at this time
            self.solving = True
            self.env.timeout(0.0).callbacks.append(self._solve)
        return changes

    def _solve(self, _: object) -> None:
        """Solve the max-min rates of all transfers on the short links, and change the rates that differ."""
        self.solving, self.solves = False, self.solves + 1
        flows, is_short = [transfer.flow for transfer in self.transfers], np.array(self.short)
        if not flows:
            return
        link = np.concatenate([flow.links for flow in flows])
        weight = np.concatenate([flow.weights for flow in flows])
        variable = np.repeat(np.arange(len(flows)), [len(flow.links) for flow in flows])
        short, bound = is_short[link], np.array([flow.bound for flow in flows])
        short_index = (np.cumsum(is_short) - 1)[link[short]]
        rates = solve(variable[short], short_index, weight[short], bound, self.capacity[is_short])
        for transfer, rate in zip(self.transfers, rates.tolist(), strict=True):
            # a rate that differs by rounding alone would move the end by some digits, and cost an event
            if abs(rate - transfer.rate) > _SAME * transfer.rate:
                self._settle(transfer, rate)

    def _settle(self, transfer: Transfer, rate: float) -> None:
        """Change the rate (bytes/s) of a transfer from now on, and set the time of its end."""
        now = self.env.now
        transfer.left -= transfer.rate * (now - transfer.since)
        transfer.rate, transfer.since = rate, now
        transfer.slowed |= rate < transfer.flow.bound
        if transfer.timer is not None:
            # SimPy cannot cancel a scheduled event, so the old timer stays queued without callbacks
            transfer.timer.callbacks.clear()
        transfer.timer = self.at(now + max(transfer.left, 0.0) / rate if transfer.slowed else transfer.lands)
        transfer.timer.callbacks.append(partial(self._end_transfer, transfer))
