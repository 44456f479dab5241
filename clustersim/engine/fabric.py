"""The activities of tasks, computations alternating with transfers, and SimPy's fabric, where transfers are fluids.

The bytes of concurrent transfers move at max-min fair rates, which are solved again whenever a transfer starts or ends, for all
that share full links with it. This is the reference of the event loop (`loop.py`): plain before fast.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy

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
        """Return an activity without flows that computes for `seconds`; without arguments, one that does nothing."""
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
    """Links that transfers share. capacity: bytes/s of each link that can be a bottleneck."""

    def __init__(self, env: simpy.Environment, capacity: Iterable[float]) -> None:
        self.env, self.capacity = env, np.array(list(capacity), float)
        self.moving: dict[Transfer, None] = {}
        """The transfers under way, in the order in which they began."""
        self.crossing = np.zeros(len(self.capacity), np.int64)
        """Number of transfers that cross each link …"""
        self.wanted = np.zeros(len(self.capacity))
        """… the bytes/s that they would take of it if none was slowed …"""
        self.short = np.zeros(len(self.capacity), bool)
        """… and whether it has less: other links slow nothing."""
        self.solving = False
        self.solves = 0

    def start(self, activity: Activity, done: Callable[[list[float] | None], None]) -> None:
        """Start `activity` now. `done` is called at its end with the ends of its half segments (None: as if idle)."""
        if any(len(flow.links) for flow in activity.flows):
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
        """Solve the max-min rates of all transfers on the bottleneck links."""
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
