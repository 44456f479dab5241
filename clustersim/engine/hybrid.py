"""A step of a job whose tasks slow each other here and there: SimPy plays those that do, and all others are sums.

Tasks that hold no link end when the later of their predecessors has ended and their own time has passed, so that nobody has
to wait for that in simulated time. Those that hold links are gone through in the order in which they begin. Each is taken to
run as if alone, and what follows from its end is found ahead of time. When another one begins meanwhile with which it could
overfill a link, what was found ahead is taken back, which nothing that has happened depends on, and SimPy plays both until
they are alone on their links again, or over. A task holds its links from begin to end, latencies included, as it does where
SimPy plays all: so both have the same sums, where a last digit would grow from one meeting to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL

from clustersim.arrays import Floats
from clustersim.engine.contention import Holders, Uncontended
from clustersim.engine.fabric import Activity, Running, Transfers
from clustersim.engine.graph import StepGraph
from clustersim.engine.occupancy import Holder, Occupancy
from clustersim.garbage import uncollected

NEVER = -1.0
"""When a task begins of which that is not known, or that has begun."""


class SimpyPart(NamedTuple):
    """What SimPy did for a step."""

    segment_ends: Mapping[int, list[float]]
    """As in engine.record.Record."""
    events: int
    solves: int


def hybrid(
    capacity: Floats, graph: StepGraph, activities: Sequence[Activity], holders: Holders, alone: Uncontended
) -> tuple[Floats, SimpyPart]:
    """Return when each node ends, and what SimPy did, which plays those that may slow each other.

    capacity: bytes/s of each link that can be short. activities: of each slot. alone: right until the first two meet.
    """
    with uncollected():
        return _Ahead(capacity, graph, activities, holders, alone).play()


class _Ahead:
    """A step under way. A node has its time of `ends` as soon as none of its predecessors is missing."""

    def __init__(
        self,
        capacity: Floats,
        graph: StepGraph,
        activities: Sequence[Activity],
        holders: Holders,
        alone: Uncontended,
    ) -> None:
        self.env = simpy.Environment()
        self.graph, self.activities, self.asked = graph, activities, holders.asked
        self.a, self.b, self.slot = (row.tolist() for row in graph.arrays)
        self.seconds: list[float] = alone.seconds.tolist()
        self.holds = bytearray(len(self.seconds))
        for node in holders.node.tolist():
            self.holds[node] = True
        over = alone.ends <= graph.starts(alone.ends)[alone.met.node].min(initial=inf)
        missing = 2 - over[graph.arrays[0]].astype(np.uint8) - over[graph.arrays[1]]
        self.missing = bytearray(missing)
        self.ends: list[float] = alone.ends.tolist()
        self.begins: list[tuple[float, int]] = []
        """When tasks begin that hold links, the first one first …"""
        self.begin = [NEVER] * len(self.seconds)
        """… and by node, unless it has begun or that was taken back."""
        self.links = Occupancy(capacity)
        self.transfers = Transfers(self.env, self.links, capacity)
        self.segment_ends: dict[int, list[float]] = {}
        for node in np.flatnonzero((missing == 0) & ~over).tolist():
            self.ready(node)

    def play(self) -> tuple[Floats, SimpyPart]:
        """Go through all beginnings, and through SimPy's events between them."""
        begins, begin, queue = self.begins, self.begin, self.env._queue
        ends, seconds, take = self.ends, self.seconds, self.links.take
        asked, slot = self.asked, self.slot
        while begins or queue:
            if queue and (not begins or queue[0][:2] <= (begins[0][0], NORMAL)):
                self.env.step()
                continue
            time, node = heappop(begins)
            if begin[node] != time:
                continue
            begin[node] = NEVER
            end = ends[node] = time + seconds[node]
            holder = Holder(node, asked[slot[node]], end)
            tight = take(holder, time)
            if tight:
                self.env._now = time  # nothing is left in SimPy's queue that happens before
                self.meet(holder, tight)
            else:
                self.ended(node)
        return np.array(ends), SimpyPart(self.segment_ends, next(self.env._eid), self.transfers.flows.solves)

    def meet(self, holder: Holder, tight: list[int]) -> None:
        """Let SimPy play a task that begins, and those that it wakes, which were alone on a link so far."""
        for one in self.links.asleep(tight, self.env.now):
            self.take_back(one.number)
            self.links.wake(one)
            self.wake(one)
        self.wake(holder)

    def wake(self, holder: Holder) -> None:
        """Let SimPy play a task from where it is by now."""
        node = holder.number
        started = max(self.ends[self.a[node]], self.ends[self.b[node]])
        run = Running([], self.activities[self.slot[node]], started, holder, self.done)
        run.ends = self.segment_ends.get(node, [])
        self.transfers.wake(run)

    def done(self, run: Running) -> None:
        """Go on from the end of a task that SimPy played, or that is alone from now on."""
        node = run.holder.number
        self.segment_ends[node] = run.ends
        self.ends[node] = run.ends[-1]
        self.ended(node)

    def ready(self, node: int) -> None:
        """Go on with a node whose predecessors are over."""
        if self.holds[node]:
            self.begin[node] = time = max(self.ends[self.a[node]], self.ends[self.b[node]])
            heappush(self.begins, (time, node))
        else:
            self.ended(node)

    def ended(self, node: int) -> None:
        """Find what follows from the end of a node, be it ahead of time."""
        a, b, after = self.a, self.b, self.graph.after
        ends, seconds, holds, missing, begin = self.ends, self.seconds, self.holds, self.missing, self.begin
        over = [node]
        for one in over:  # grows while it is read
            for following in after[one]:
                if missing[following] > 1:
                    missing[following] = 1
                    continue
                missing[following] = 0
                first, second = ends[a[following]], ends[b[following]]
                time = first if first > second else second
                if holds[following]:
                    begin[following] = time
                    heappush(self.begins, (time, following))
                else:
                    ends[following] = time + seconds[following]
                    over.append(following)

    def take_back(self, node: int) -> None:
        """Forget what was found ahead from the end of a task; none of it has begun in simulated time."""
        taken = [node]
        for one in taken:  # grows while it is read
            for following in self.graph.after[one]:
                if not self.missing[following]:
                    if self.begin[following] == NEVER:
                        taken.append(following)
                    self.begin[following] = NEVER
                self.missing[following] += 1
