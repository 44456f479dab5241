"""Tasks that meet on links which they could fill: SimPy plays those alone, and the longest path all others.

The times of a step are found again and again: with those of the last round it is known which tasks meet, SimPy plays these
from the times at which they begin, and the longest path is taken anew with the seconds that they needed. When neither who
meets nor when they begin changes any more, the times are those of the step: what a task takes depends on what began before
its end alone, so that there is only one way for the times to agree, and each round is right for longer than the one before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import simpy

from clustersim.arrays import Floats, Ints, Mask, entries
from clustersim.engine.fabric import Activity, Fabric
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.tasks import SlotTimes

MOST = 64
"""Different meetings that SimPy plays by themselves: with more, each shifts others, and the rounds would not end soon."""
_ULP = 2.0**-52  # of the step, by which begins may differ that are equal but for rounding


class Met(NamedTuple):
    """Nodes that hold a link while all that hold it could overfill it, one row a node and link.

    On each link the times without a break at which that is so are numbered; a node sees those from `first` to `last`.
    """

    node: Ints
    first: Ints
    last: Ints

    def together(self) -> list[list[int]]:
        """Return the nodes that meet each other, each list sorted; of different lists none meets another."""
        known: dict[int, int] = {}  # of each time the first one that it belongs with

        def root(time: int) -> int:
            while known.setdefault(time, time) != time:
                known[time] = time = known[known[time]]
            return time

        seen: dict[int, int] = {}
        for node, first, last in zip(*(row.tolist() for row in self), strict=True):
            times = {root(time) for time in range(first, last + 1)} | {root(seen.get(node, first))}
            seen[node] = least = min(times)
            known.update(dict.fromkeys(times, least))
        found: dict[int, list[int]] = {}
        for node, time in sorted(seen.items()):
            found.setdefault(root(time), []).append(node)
        return list(found.values())


class Holders:
    """Which links the nodes of a graph hold, and what share of each they take at most, whatever their times."""

    def __init__(self, graph: StepGraph, activities: Sequence[Activity], capacity: Floats) -> None:
        """activities: of each slot. capacity: bytes/s of each link that can be short."""
        asked = [activity.asked for activity in activities]
        count = np.array([len(one.links) for one in asked] or [0])
        slot = graph.arrays[2]
        self.node = np.flatnonzero((slot >= 0) & (count[slot] > 0))
        self.slot = slot[self.node]
        self.of = np.repeat(np.arange(len(self.node)), count[self.slot])
        """By row, one a node and link, which of `node` holds the link."""
        if len(self.node):
            held = entries(np.append(0, np.cumsum(count)), self.slot)
            link = np.concatenate([one.links for one in asked])
            row, share = link[held], (np.concatenate([one.peaks for one in asked]) / capacity[link])[held]
            self.row, self.change = np.concatenate([row, row]), np.concatenate([share, -share])
        self.alone: Ints | None = None
        """Moments at which nodes end and begin, link after link in an order in which nobody met."""

    @property
    def rows(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Nodes, their slots, the links that they hold, and what share of each: one row a node and link."""
        count = len(self.of)
        if not count:
            return self.of, self.of, self.of, np.empty(0)
        return self.node[self.of], self.slot[self.of], self.row[:count], self.change[:count]

    def met(self, times: SlotTimes, starts: Floats, ends: Floats) -> Met:
        """Return who meets, given when each node begins and ends; what ends makes room for what begins then."""
        nodes, count = len(self.node), len(self.of)
        if not nodes:
            return Met(self.node, self.node, self.node)
        over, begun = ends[self.node] - times.after[self.slot], starts[self.node] + times.before[self.slot]
        moments = np.concatenate([over, begun])
        if self.alone is not None and self._in_order(moments[self.alone]):
            return Met(*[self.node[:0]] * 3)
        order = np.argsort(moments, kind="stable")
        turn = np.empty(2 * nodes, np.int64)  # in which all nodes end and begin
        turn[order] = np.arange(2 * nodes)
        order = np.argsort(self.row * 2 * nodes + np.concatenate([turn[nodes:][self.of], turn[self.of]]))
        tight = _levels(self.row[order], self.change[order]) > FITS
        if not tight.any():
            self.alone = np.concatenate([nodes + self.of, self.of])[order]
            return Met(*[self.node[:0]] * 3)
        place = np.empty(2 * count, np.int64)
        place[order] = np.arange(2 * count)
        until = np.append(0, np.cumsum(tight))  # how many tight moments there are before each place
        first, last = until[place[:count]], until[place[count:]]
        some = np.flatnonzero(last > first)
        moments = np.flatnonzero(tight)
        time = np.cumsum(tight & ~np.append(False, tight[:-1]))[moments]
        return Met(self.node[self.of[some]], time[first[some]], time[last[some] - 1])

    def _in_order(self, moments: Floats) -> bool:
        """Return whether the moments of each link, one link after the other, still come one after the other."""
        return bool(((moments[1:] >= moments[:-1]) | self.next_link).all())

    @cached_property
    def next_link(self) -> Mask:
        """Whether the next moment, link after link, is the first one of another link."""
        found: Mask = np.diff(np.sort(self.row)) > 0
        return found


def peaks(row: Ints, begun: Floats, over: Floats, share: Floats, rows: int) -> Floats:
    """Return the most of `share` that each of so many rows has at one time; what ends makes room for what begins then."""
    change, time, row = np.concatenate([share, -share]), np.concatenate([begun, over]), np.concatenate([row, row])
    order = np.lexsort((change, time, row))
    most, row = np.zeros(rows), row[order]
    start = np.flatnonzero(np.diff(row, prepend=-1))
    if len(start):
        most[row[start]] = np.maximum.reduceat(_levels(row, change[order]), start)
    return most


def _levels(row: Ints, change: Floats) -> Floats:
    """Return what is held of each row after each of its changes; these are sorted by row."""
    level = np.cumsum(change)
    start = np.flatnonzero(np.diff(row, prepend=-1))
    before = np.append(0.0, level)[start]
    held: Floats = level - np.repeat(before, np.diff(np.append(start, len(row))))
    return held


class Uncontended(NamedTuple):
    """A step if nobody slows anybody: what nodes take, when they end, and who would meet."""

    seconds: Floats
    ends: Floats
    met: Met


class Slowed(NamedTuple):
    """What SimPy found of tasks that meet, by node."""

    seconds: dict[int, float]
    """What each took."""
    segment_ends: dict[int, list[float]]
    """As in engine.record.Record."""


class Meetings:
    """Lets SimPy play tasks that meet, each group by itself; what it played once it knows.

    slot: of each node, its place in activities. events, solves: as in engine.record.Record.
    """

    def __init__(self, capacity: Floats, activities: Sequence[Activity], slot: Sequence[int]) -> None:
        self.capacity, self.activities, self.slot = capacity, activities, slot
        self.known: dict[Hashable, list[tuple[float, list[float] | None]]] = {}
        self.events = self.solves = 0

    def play(self, groups: Sequence[Sequence[int]], starts: Floats) -> Slowed | None:
        """Return what nodes take that meet in these groups, None if these are too many; starts: when each node begins."""
        found, least = Slowed({}, {}), (float(starts.max()) or 1.0) * _ULP
        for nodes in groups:
            begun = starts[nodes]
            first = float(begun.min())
            slots, late = tuple(self.slot[node] for node in nodes), (begun - first).tolist()
            key = slots, tuple(round(seconds / least) for seconds in late)
            if key not in self.known:
                if len(self.known) == MOST:
                    return None
                self.known[key] = self.simulated(slots, late)
            for node, (seconds, ends) in zip(nodes, self.known[key], strict=True):
                found.seconds[node] = seconds
                if ends is not None:
                    found.segment_ends[node] = [first + end for end in ends]
        return found

    def simulated(self, slots: Sequence[int], late: Sequence[float]) -> list[tuple[float, list[float] | None]]:
        """Return of each activity its seconds, and when its half segments end if it shared a link; late: when it begins."""
        env = simpy.Environment()
        fabric = Fabric(env, self.capacity.tolist())
        found: list[tuple[float, list[float] | None]] = [(0.0, None)] * len(slots)

        def over(place: int, ends: list[float] | None) -> None:
            found[place] = env.now - late[place], ends

        def begin(place: int, _: simpy.Event) -> None:
            fabric.start(self.activities[slots[place]], partial(over, place))

        for place, start in enumerate(late):
            simpy.Timeout(env, start).callbacks.append(partial(begin, place))
        env.run()
        self.events += next(env._eid)
        self.solves += fabric.transfers.flows.solves
        return found
