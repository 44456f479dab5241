"""What tasks do, computation and transfers in turn, and the fabric on which SimPy plays those: transfers are fluids.

The bytes of transfers under way move at max-min fair rates, which are solved anew whenever one begins or ends, for all that
share full links with it. This is the reference of the event loop (`loop.py`): plain before fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import simpy

from clustersim.engine.flows import FITS, Flow, LinkDemand, solve
from clustersim.model.operator import Collective

HOST = "host"
"""Name of waiting for the host, beside the families of flows."""
NO_CALLS: Mapping[Collective, float] = {}
_SAME = 1e-12
"""A relative change of a rate that is none: it differs by rounding."""


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


class Activity:
    """A fixed sequence of segments that can be started any number of times.

    calls: the collectives and messages inside, and the bytes of each in all. ends: idle time at which each segment's
    computation and flow end. moving: idle seconds of its flows by family, without those beside
    computation, and of waiting for the host. peak_link_demand: the most bytes/s that its flows take of each link.
    memory: seconds of kernels that its GPU's memory bounds.
    """

    __slots__ = (
        "_flows",
        "_segments",
        "_times",
        "calls",
        "compute",
        "ends",
        "idle",
        "memory",
        "moving",
        "peak_link_demand",
    )

    NONE: ClassVar[Activity]

    def __init__(
        self, segments: Iterable[Segment], calls: Mapping[Collective, float] = NO_CALLS, memory: float = 0.0
    ) -> None:
        self._segments = tuple(segments)
        self._times: Activity | None = None  # itself; it would keep itself alive
        self._flows: Sequence[Flow | None] | None = None  # those of its segments, until these are asked for
        self.calls, self.memory = calls, memory
        self.compute = math.fsum(s.compute + s.beside for s in self._segments)
        self.ends, self.moving = _idle(self._segments)
        self.idle = self.ends[-1] if self.ends else 0.0
        self.peak_link_demand = _peaks(s.flow for s in self._segments)

    @property
    def times(self) -> Activity:
        """The activity from which this one takes its seconds; itself unless `over` or `like` made it."""
        return self._times or self

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments in order."""
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
        """Whether any segment may wait for the host's launches."""
        return any(segment.launched for segment in self.times.segments)

    @property
    def around(self) -> tuple[float, float]:
        """Seconds before its first byte moves, and after its last one has."""
        first, last = self.times.segments[0], self.times.segments[-1]
        return first.compute + (first.flow.latency if first.flow else 0.0), 0.0 if last.flow else last.compute

    def timed(self, segments: Sequence[Segment], memory: float) -> Activity:
        """Return the activity with the seconds of `segments`, whose flows are its own. memory: memory-bound seconds."""
        one = self.calling(self.calls)
        one.memory = memory
        one._segments, one._flows, one._times = tuple(segments), None, None
        one.compute = math.fsum(s.compute + s.beside for s in segments)
        one.ends, one.moving = _idle(one._segments)
        one.idle = one.ends[-1]
        return one

    def like(self, other: Activity) -> Activity:
        """Return the activity with the seconds of `other`, which has as many flows of the same durations."""
        one = other.calling(self.calls)
        one._flows, one.peak_link_demand = self.flows, self.peak_link_demand
        return one

    def over(self, flows: Sequence[Flow | None], calls: Mapping[Collective, float]) -> Activity:
        """Return the activity with other flows, of the same durations on other links, and their calls."""
        one = self.calling(calls)
        one._flows, one.peak_link_demand = flows, _peaks(flows)
        return one

    def calling(self, calls: Mapping[Collective, float]) -> Activity:
        """Return the activity with other calls."""
        one = Activity.__new__(Activity)
        one._segments, one._flows, one._times = self._segments, self._flows, self.times
        one.compute, one.memory, one.ends, one.idle = self.compute, self.memory, self.ends, self.idle
        one.moving, one.peak_link_demand, one.calls = self.moving, self.peak_link_demand, calls
        return one


def _idle(segments: Iterable[Segment]) -> tuple[list[float], dict[str, float]]:
    """Return the ends of all half segments on an idle fabric, and {family: exposed seconds}; the host counts as a family."""
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


def _peaks(flows: Iterable[Flow | None]) -> LinkDemand:
    """Return the distinct links of `flows`, and the largest bytes/s that one flow takes of each."""
    distinct = {(id(one.links), one.bound): one for one in flows if one is not None and len(one.links)}.values()
    if not distinct:
        return _NOTHING
    if len(distinct) == 1:
        [flow] = distinct
        return LinkDemand(flow.links, flow.weights * flow.bound)
    links = np.concatenate([flow.links for flow in distinct])
    peaks = np.concatenate([flow.weights * flow.bound for flow in distinct])
    links, place = np.unique(links, return_inverse=True)
    most = np.zeros(len(links))
    np.maximum.at(most, place, peaks)
    return LinkDemand(links, most)


_NOTHING = LinkDemand(np.empty(0, np.int64), np.empty(0))
Activity.NONE = Activity(())


class Transfer:
    """A flow while its bytes move."""

    __slots__ = ("flow", "lands", "left", "over", "rate", "since", "slowed", "timer")

    def __init__(self, env: simpy.Environment, flow: Flow, lands: float) -> None:
        self.flow, self.lands = flow, lands
        self.rate, self.left, self.since = 0.0, flow.size, env.now
        """Bytes/s, and the bytes that were left at a time."""
        self.slowed = False
        """Whether it ever moved slower than alone."""
        self.over = env.event()
        """Succeeds when all bytes have moved …"""
        self.timer = env.event()
        """… which is when this happens, as long as its rate stays."""


class Fabric:
    """Links that transfers share. capacity: bytes/s of each that can be short."""

    def __init__(self, env: simpy.Environment, capacity: Iterable[float]) -> None:
        self.env, self.capacity = env, np.array(list(capacity), float)
        self.moving: dict[Transfer, None] = {}
        """The transfers under way, in the order in which they began."""
        self.crossing = np.zeros(len(self.capacity), np.int64)
        """By link, how many cross it …"""
        self.wanted = np.zeros(len(self.capacity))
        """… the bytes/s that they would take of it if none was slowed …"""
        self.short = np.zeros(len(self.capacity), bool)
        """… and whether it has less: other links slow nothing."""
        self.solving = False
        self.solves = 0

    def start(self, activity: Activity, done: Callable[[list[float] | None], None]) -> None:
        """Start `activity` now; call `done` at its end with the ends of its half segments (None: as if idle)."""
        if len(activity.peak_link_demand.links):
            self.env.process(self._play(activity, done))
        else:  # on links that are never short nothing is slowed: one time-out for all of its segments
            self.env.timeout(activity.idle).callbacks.append(lambda _: done(None))

    def _play(
        self, activity: Activity, done: Callable[[list[float] | None], None]
    ) -> Generator[simpy.Event, None, None]:
        """Execute the segments of an activity in order."""
        env, begin, ends, slowed = self.env, self.env.now, list[float](), False
        for segment, computed, over in zip(activity.segments, activity.ends[::2], activity.ends[1::2], strict=True):
            # what nothing has slowed ends exactly at its ideal time: sums of its parts would differ in the last digit, and
            # where transfers meet again and again, each meeting may double that
            start = max(env.now + segment.compute, begin + segment.launched) if slowed else begin + computed
            yield self.at(start)
            ends.append(env.now)
            if (flow := segment.flow) is not None:
                end = start + segment.over(flow.idle) if slowed else begin + over
                if flow.size and len(flow.links):
                    yield self.at(start + flow.latency)
                    transfer = self.move(flow, start + flow.idle if segment.beside else end)
                    yield transfer.over
                    if transfer.slowed:  # what is computed beside the flow began with it, and both are waited for
                        slowed, end = True, start + segment.over(env.now - start)
                yield self.at(end)
            ends.append(env.now)
        done(ends if slowed else None)

    def at(self, time: float) -> simpy.Event:
        """Return a time-out at an absolute time in seconds; now if rounding puts it in the past."""
        now = self.env.now
        delay = max(time - now, 0.0)
        # SimPy adds delays to now, which may miss the time by its last digit: the next delay does not
        while now + delay < time:
            delay = math.nextafter(delay, math.inf)
        return self.env.timeout(delay)

    def move(self, flow: Flow, lands: float) -> Transfer:
        """Start a transfer and return it. lands: time at which it ends if nothing slows it."""
        transfer = Transfer(self.env, flow, lands)
        self.moving[transfer] = None
        if not self._load(flow, 1):
            self._settle(transfer, flow.bound)
        return transfer

    def _end(self, transfer: Transfer) -> None:
        """Remove a transfer whose bytes have all moved."""
        del self.moving[transfer]
        self._load(transfer.flow, -1)
        transfer.over.succeed()

    def _load(self, flow: Flow, sign: int) -> bool:
        """Add a flow (sign 1) to the demand on its links, or remove it (-1). Return whether rates must be solved anew."""
        links = flow.links
        before = self.short[links].any()
        self.crossing[links] += sign
        # an idle link begins from zero again: else the rounding of all sums would stay
        self.wanted[links] = np.where(self.crossing[links], self.wanted[links] + sign * flow.bound * flow.weights, 0.0)
        self.short[links] = self.wanted[links] > FITS * self.capacity[links]
        changes = bool(before or self.short[links].any())
        if changes and not self.solving:  # once for all that happens at this time
            self.solving = True
            self.env.timeout(0.0).callbacks.append(lambda _: self._solve())
        return changes

    def _solve(self) -> None:
        """Solve the max-min rates of all transfers on the links that are short."""
        self.solving, self.solves = False, self.solves + 1
        flows = [one.flow for one in self.moving]
        if not flows:
            return
        link = np.concatenate([flow.links for flow in flows])
        weight = np.concatenate([flow.weights for flow in flows])
        variable = np.repeat(np.arange(len(flows)), [len(flow.links) for flow in flows])
        short, bound = self.short[link], np.array([flow.bound for flow in flows])
        place = (np.cumsum(self.short) - 1)[link[short]]
        rates = solve(variable[short], place, weight[short], bound, self.capacity[self.short])
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
        transfer.timer.callbacks.clear()  # nothing can be taken out of SimPy's queue: the timer of the old rate calls nobody
        transfer.timer = self.at(now + max(transfer.left, 0.0) / rate if transfer.slowed else transfer.lands)
        transfer.timer.callbacks.append(lambda _: self._end(transfer))
