"""Which tasks use a link while all that use it could overfill it, given when they begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, connected, distinct, entries, narrow, offsets
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.tasks import SlotTimes, Tasks


class Contention(NamedTuple):
    """Nodes that use a link while all that use it could overfill it, one row a node and link.

    On each link the times without a break at which that is so are numbered; a node sees those from `first` to `last`.
    """

    node: Ints
    first: Ints
    last: Ints

    def groups(self) -> list[Ints]:
        """Return the nodes that may slow each other, each array sorted; no node of one slows one of another."""
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


ALL = slice(None)
NO_CONTENTION = Contention(*[np.empty(0, np.int64)] * 3)


def contended(user: Ints, link: Ints, share: Floats, begun: Floats, over: Floats) -> Contention:
    """Return which users of links contend, given when each begins and ends; what ends makes room for what begins then.

    user, link, share: a row each: which of the users, a link, and the share of it that the user takes at most.
    """
    users, links = len(begun), np.concatenate([link, link]).astype(np.int64)
    turn = np.empty(
        2 * users, np.int64
    )  # of one time, ends come first: else what follows would contend with what it follows
    turn[np.argsort(np.concatenate([over, begun]), kind="stable")] = np.arange(2 * users)
    # one sort of whole numbers: users are fewer than rows, and sorting rows by link and time takes five times as long
    order = np.argsort(links * 2 * users + np.concatenate([turn[users:][user], turn[:users][user]]))
    tight = _levels(_begins(links[order]), np.concatenate([share, -share])[order]) > FITS
    if not tight.any():
        return NO_CONTENTION
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(tight) - tight  # how many tight moments are before each change
    first, last = before.reshape(2, -1)
    some, time = np.flatnonzero(last > first), np.cumsum(tight & ~np.append(False, tight[:-1]))[tight]
    return Contention(user[some], time[first[some]], time[last[some] - 1])


def _begins(row: Ints) -> Ints:
    """Return where the entries of each row begin; row: that of each, sorted."""
    return np.flatnonzero(np.diff(row, prepend=-1))


class LinkUse:
    """The nodes of a graph that use links, and the share of each link that they take at most, whatever their times."""

    def __init__(self, graph: StepGraph, activities: Sequence[Activity], capacity: Floats) -> None:
        """activities: of each slot. capacity: bytes/s of each link that can be short."""
        demands = [activity.peak_link_demand for activity in activities]
        count = np.array([len(one.links) for one in demands] or [0])
        slot = graph.arrays[2]
        self.node = narrow(np.flatnonzero((slot >= 0) & (count[slot] > 0)))
        self.slot = slot[self.node]
        self.row = narrow(offsets(count[self.slot]))
        """By user of links, its first row; and their number."""
        self.user = narrow(np.repeat(np.arange(len(self.node)), count[self.slot]))
        """By row, which of the users …"""
        rows = entries(offsets(count), self.slot)
        link = np.concatenate([one.links for one in demands] or [rows])
        peak = np.concatenate([one.peaks for one in demands] or [np.empty(0)])
        self.link = narrow(link[rows])
        """… the link …"""
        self.share: Floats = (peak / capacity[link])[rows]
        """… and the share of it."""

    def contention(self, times: SlotTimes, starts: Floats, ends: Floats, streams: StreamUse) -> Contention:
        """Return which nodes contend for links, given when each node begins and ends; streams: of the same graph."""
        crowded = streams.crowded(self, times, starts, ends)
        if crowded is None:
            return NO_CONTENTION
        since, until = crowded
        begun, over = self.under_way(times, starts, ends)
        rows = np.flatnonzero((over[self.user] > since[self.link]) & (begun[self.user] < until[self.link]))
        users, user = np.unique(self.user[rows], return_inverse=True)
        found = contended(user, self.link[rows], self.share[rows], begun[users], over[users])
        return found._replace(node=self.node[users[found.node]])

    def under_way(
        self, times: SlotTimes, starts: Floats, ends: Floats, users: Ints | slice = ALL
    ) -> tuple[Floats, Floats]:
        """Return from when and until when each of some users uses its links, given when nodes begin and end."""
        node, slot = self.node[users], self.slot[users]
        return starts[node] + times.before[slot], ends[node] - times.after[slot]


class StreamUse(NamedTuple):
    """Which links each stream of each rank uses, one row a stream and link."""

    link: Ints
    first: Ints
    """The user of links with which the stream begins to use it …"""
    last: Ints
    """… and the one with which it ends."""
    share: Floats
    """The most of the link that one of them takes."""

    @classmethod
    def of(cls, graph: StepGraph, tasks: Tasks, links: LinkUse) -> StreamUse:
        """Return the link use of each stream of a graph; links: the use of each node."""
        user, slots = np.arange(len(links.node)), distinct(links.slot)
        first, last = np.zeros((2, len(graph.slots)), np.int64)
        # of several users written to one slot the last one stays
        first[links.slot[::-1]] = user[::-1]
        last[links.slot] = user
        number: dict[tuple[int, str], int] = {}
        rank_stream = [(graph.tasks[own[0]][0], tasks.alike[own[0]].stream) for own in graph.slots]
        stream = np.array([number.setdefault(one, len(number)) for one in rank_stream], np.int64)
        row, slot = entries(links.row, first[slots]), np.repeat(slots, np.diff(links.row)[first[slots]])
        key = links.link[row] * np.int64(len(number)) + stream[slot]
        order = np.argsort(key, kind="stable")
        row, slot, start = row[order], slot[order], _begins(key[order])
        if not len(start):
            return cls(row, row, row, np.empty(0))
        ends = np.minimum.reduceat(first[slot], start), np.maximum.reduceat(last[slot], start)
        return cls(links.link[row[start]], *ends, np.maximum.reduceat(links.share[row], start))

    def crowded(self, links: LinkUse, times: SlotTimes, starts: Floats, ends: Floats) -> tuple[Floats, Floats] | None:
        """Return since when and until when each link could be overfilled; None where none ever could.

        A stream counts from its first to its last use of a link with the most that it takes: its tasks run one after the other,
        in the order of nodes. So nearly all of the tens of thousands of uses are proved to be free without sorting their times.
        """
        begun, _ = links.under_way(times, starts, ends, self.first)
        _, over = links.under_way(times, starts, ends, self.last)
        link, time, level = _in_order(self.link, begun, over, self.share)
        [tight] = np.nonzero(level > FITS)
        if not len(tight):
            return None
        since, until = np.full(int(link[-1]) + 1, np.inf), np.zeros(int(link[-1]) + 1)
        since[link[tight[::-1]]] = time[tight[::-1]]  # the last one that is written stays: here the first of a link
        until[link[tight]] = time[tight + 1]
        return since, until


def peaks(row: Ints, begun: Floats, over: Floats, share: Floats, rows: int) -> Floats:
    """Return the most of `share` that each of so many rows has at one time; what ends makes room for what begins then."""
    most, (row, _, level) = np.zeros(rows), _in_order(row, begun, over, share)
    start = _begins(row)
    if len(start):
        most[row[start]] = np.maximum.reduceat(level, start)
    return most


def _in_order(row: Ints, begun: Floats, over: Floats, share: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the row and time of each change of what is taken, row by row in the order of time, and what is taken after it."""
    change, time, row = np.concatenate([share, -share]), np.concatenate([begun, over]), np.concatenate([row, row])
    order = np.lexsort((change, time, row))
    row = row[order]
    return row, time[order], _levels(_begins(row), change[order])


def _levels(start: Ints, change: Floats) -> Floats:
    """Return what is taken of each row after each of its changes; start: where those of each row begin."""
    level: Floats = np.cumsum(change)
    before = level[start - 1]
    before[:1] = 0.0
    level -= np.repeat(before, np.diff(np.append(start, len(change))))
    return level
