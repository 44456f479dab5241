"""Which tasks hold a link while all that hold it could overfill it, given when they begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, connected, entries, offsets
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.tasks import SlotTimes


class Met(NamedTuple):
    """Nodes that hold a link while all that hold it could overfill it, one row a node and link.

    On each link the times without a break at which that is so are numbered; a node sees those from `first` to `last`.
    """

    node: Ints
    first: Ints
    last: Ints

    def together(self) -> list[Ints]:
        """Return the nodes that meet each other, each array sorted; of different ones none meets another."""
        if not len(self.node):
            return []
        nodes, vertex = np.unique(self.node, return_inverse=True)
        seen = np.zeros(int(self.last.max()) + 2, np.int64)  # by how many at a time and the next one, once summed up
        np.add.at(seen, self.first, 1)
        np.add.at(seen, self.last, -1)
        run = np.cumsum(np.append(True, np.cumsum(seen)[:-1] == 0))[self.first]
        part = connected(len(nodes) + int(run.max()) + 1, vertex, len(nodes) + run)[: len(nodes)]
        order = np.argsort(part, kind="stable")
        nodes, begin = nodes[order], np.flatnonzero(np.diff(part[order], prepend=-1)).tolist()
        return [nodes[first:last] for first, last in pairwise([*begin, len(nodes)])]


class Holdings:
    """Which links are held by whom, and what share of each: one row a holder and link.

    What was found is kept with the order in which links were taken and given then. As long as that order is the same, so is
    who meets; where it changed on some links, these alone are looked at anew.
    """

    def __init__(self, of: Ints, link: Ints, share: Floats) -> None:
        """By row, whose it is, the link, and its share of that at most."""
        self.of = of
        self.link = np.concatenate([link, link])
        """By change, first those of rows that begin, then those of the same that end …"""
        self.change = np.concatenate([share, -share])
        """… what it adds to what is held of the link."""
        count = 2 * np.bincount(link)
        count = count[count > 0]
        self.start = np.cumsum(count) - count
        """Where the changes of each link begin …"""
        self.order: Ints | None = None
        """… when they stand link after link, those of a link in the order of time …"""
        self.moments: Ints | None = None
        """… when each is, as a place among `over` and `begun` of all …"""
        self.tight = np.empty(0, bool)
        """… and whether what is held after it does not fit …"""
        self.crowded = False
        """… anywhere."""
        self.found: Met | None = None

    @property
    def held(self) -> tuple[Ints, Floats]:
        """By row, the link and the share of it."""
        return self.link[: len(self.of)], self.change[: len(self.of)]

    def met(self, over: Floats, begun: Floats) -> Met:
        """Return which holders meet, given when each ends and begins; what ends makes room for what begins then."""
        moments = np.concatenate([over, begun])
        if self.order is None:
            self._sort(moments)
        else:
            self._sort_again(self.order, moments)
        if self.found is None:
            self.found = self._met()
        return self.found

    def _sort(self, moments: Floats) -> None:
        turn = np.empty(len(moments), np.int64)  # in which all holders end and begin
        turn[np.argsort(moments, kind="stable")] = np.arange(len(moments))
        half = len(moments) // 2
        self.order = np.argsort(self.link * len(moments) + np.concatenate([turn[half:][self.of], turn[self.of]]))
        self.tight = _levels(self.start, self.change[self.order]) > FITS
        self.crowded = bool(self.tight.any())

    def _sort_again(self, order: Ints, moments: Floats) -> None:
        """Sort the changes of those links again where they are not in order any more."""
        if self.moments is None:
            self.moments = np.concatenate([self.of + len(moments) // 2, self.of])[order]
        moment = self.moments
        time = moments[moment]
        late = time[1:] < time[:-1]
        if self.crowded:  # else nobody meets even if those that end at a moment do so after others begin
            late |= (time[1:] == time[:-1]) & (moment[1:] < moment[:-1])
        late[self.start[1:] - 1] = False  # there another link follows
        if not late.any():
            return
        places = _links(np.append(False, late), self.start)
        own = order[places]
        again = np.lexsort((moment[places], time[places], self.link[own]))
        order[places], moment[places] = own[again], moment[places[again]]
        own = own[again]
        tight = _levels(_begins(self.link[own]), self.change[own]) > FITS
        if tight.any() or self.crowded:
            self.tight[places], self.found = tight, None
            self.crowded = bool(self.tight.any())

    def _met(self) -> Met:
        if self.order is None or not self.crowded:
            return Met(*[self.of[:0]] * 3)
        places = _links(self.tight, self.start)
        tight, before = self.tight[places], np.zeros(len(self.link), np.int64)
        before[self.order[places]] = np.append(0, np.cumsum(tight)[:-1])  # how many tight moments are before each
        first, last = before.reshape(2, -1)
        some, moments = np.flatnonzero(last > first), np.flatnonzero(tight)
        time = np.cumsum(tight & ~np.append(False, tight[:-1]))[moments]
        return Met(self.of[some], time[first[some]], time[last[some] - 1])


def _links(some: Mask, start: Ints) -> Ints:
    """Return the places of all changes of links of which `some` are; start: where those of each link begin."""
    return np.flatnonzero(np.repeat(np.logical_or.reduceat(some, start), np.diff(np.append(start, len(some)))))


def _begins(row: Ints) -> Ints:
    """Return where the entries of each row begin; row: that of each, sorted."""
    return np.flatnonzero(np.diff(row, prepend=-1))


class Holders:
    """Which links the nodes of a graph hold, and what share of each they take at most, whatever their times."""

    def __init__(self, graph: StepGraph, activities: Sequence[Activity], capacity: Floats) -> None:
        """activities: of each slot. capacity: bytes/s of each link that can be short."""
        self.asked = asked = [activity.asked for activity in activities]
        """By slot, what is asked of links."""
        count = np.array([len(one.links) for one in asked] or [0])
        slot = graph.arrays[2]
        self.node = np.flatnonzero((slot >= 0) & (count[slot] > 0))
        self.slot = slot[self.node]
        of = np.repeat(np.arange(len(self.node)), count[self.slot])
        self.row = offsets(count[self.slot])
        """By holder, its first row; and their number."""
        held = entries(offsets(count), self.slot)
        link = np.concatenate([one.links for one in asked] or [held])
        peak = np.concatenate([one.peaks for one in asked] or [np.empty(0)])
        self.holdings = Holdings(of, link[held], (peak / capacity[link])[held])

    @property
    def rows(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Nodes, their slots, the links that they hold, and what share of each: one row a node and link."""
        own = self.holdings
        return self.node[own.of], self.slot[own.of], *own.held

    def met(self, times: SlotTimes, starts: Floats, ends: Floats) -> Met:
        """Return who meets, given when each node begins and ends."""
        holder, first, last = self.holdings.met(*self.held(times, starts, ends))
        return Met(self.node[holder], first, last)

    def held(self, times: SlotTimes, starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
        """Return until when and from when on each of `node` holds its links, given when nodes begin and end."""
        return ends[self.node] - times.after[self.slot], starts[self.node] + times.before[self.slot]


def peaks(row: Ints, begun: Floats, over: Floats, share: Floats, rows: int) -> Floats:
    """Return the most of `share` that each of so many rows has at one time; what ends makes room for what begins then."""
    change, time, row = np.concatenate([share, -share]), np.concatenate([begun, over]), np.concatenate([row, row])
    order = np.lexsort((change, time, row))
    most, row = np.zeros(rows), row[order]
    start = _begins(row)
    if len(start):
        most[row[start]] = np.maximum.reduceat(_levels(start, change[order]), start)
    return most


def _levels(start: Ints, change: Floats) -> Floats:
    """Return what is held of each row after each of its changes; start: where those of each row begin."""
    level: Floats = np.cumsum(change)
    before = level[start - 1]
    before[:1] = 0.0
    level -= np.repeat(before, np.diff(np.append(start, len(change))))
    return level
