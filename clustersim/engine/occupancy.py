"""Who holds which link until when, as long as all run as if alone, and who could overfill one together."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import cast

import numpy as np

from clustersim.arrays import Floats, distinct
from clustersim.engine.contention import Holders
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import FITS, Asked


class Occupancy:
    """Which nodes of a graph hold links.

    Most tasks hold a few links that nobody else holds: for them it is known by link until when that is so, and nothing is
    done when they end, other than with the fabric's reservations, where each end is an event. What tasks ask that hold many
    links is added up by arrays.
    """

    def __init__(self, capacity: Floats, activities: Sequence[Activity], slot: Sequence[int], holders: Holders) -> None:
        """capacity: bytes/s by link. activities: by slot, slot: by node."""
        self.asked: dict[int, Asked] = {place: activities[place].asked for place in distinct(holders.slot).tolist()}
        """By slot, of those that hold links."""
        self.slot = slot
        self.ends = [0.0] * len(slot)
        """By node, when it needs its links no more; infinite while that is not known."""
        self.most = capacity * FITS
        self.fits = {place: bool((one.peaks <= self.most[one.links]).all()) for place, one in self.asked.items()}
        """By slot, whether what is done there cannot overfill a link alone."""
        self.users: list[tuple[int, ...]] = [()] * len(capacity)
        """By link, those that hold it and few others …"""
        self._until = np.zeros(len(capacity))
        self.until = cast("memoryview[float]", self._until.data)
        """… and when the last one of them ends."""
        self.wide: dict[int, None] = {}
        """Those that hold many links …"""
        self.over: list[tuple[float, int]] = []
        """… when they end, the first one first, if they run as if alone …"""
        self._reserved, self._holders = np.zeros(len(capacity)), np.zeros(len(capacity), np.int64)
        self.reserved, self.holders = cast("memoryview[float]", self._reserved.data), self._holders.data
        """… what they ask of each link, and how many of them hold it."""

    def take(self, node: int, time: float, end: float) -> list[int]:
        """Hold links from `time` to `end`, return those that could be overfilled; then all are held until the node gives them."""
        while self.over and self.over[0][0] <= time:
            over, ended = heappop(self.over)
            if self.ends[ended] == over and ended in self.wide:
                self._release(ended)
        slot, until, holders = self.slot[node], self.until, self.holders
        few = self.asked[slot].few
        if not few:
            return self._take_many(node, time, end)
        if not self.fits[slot]:
            return self._share(node, time, end)
        for link, _ in few:
            if until[link] > time or holders[link]:
                return self._share(node, time, end)
        self.ends[node], alone = end, (node,)
        for link, _ in few:
            until[link] = end
            self.users[link] = alone
        return []

    def asleep(self, links: Sequence[int], time: float) -> list[int]:
        """Return who runs as if alone and holds some of these links."""
        found = {node for link in links for node in self.users[link] if time < self.ends[node] < inf}
        mark = np.zeros(len(self.most), bool)
        mark[list(links)] = True
        found.update(node for node in self.wide if self.ends[node] < inf and mark[self._of(node).links].any())
        return sorted(found)

    def wake(self, node: int) -> None:
        """Hold the links of a node until it gives them."""
        self.ends[node] = inf
        for link, _ in self._of(node).few:
            self.until[link] = inf

    def give(self, node: int, time: float) -> None:
        """Give the links of a node, which was awake."""
        self.ends[node] = time
        if node in self.wide:
            self._release(node)
        for link, _ in self._of(node).few:
            self.until[link] = max([self.ends[one] for one in self.users[link]])

    def _of(self, node: int) -> Asked:
        return self.asked[self.slot[node]]

    def _release(self, node: int) -> None:
        links, peaks, _ = self._of(node)
        del self.wide[node]
        self._holders[links] -= 1
        self._reserved[links] = np.where(self._holders[links] > 0, self._reserved[links] - peaks, 0.0)

    def _share(self, node: int, time: float, end: float) -> list[int]:
        """Hold a few links of which others hold some."""
        self.ends[node], tight = end, list[int]()
        for link, peak in self._of(node).few:
            live = [one for one in self.users[link] if self.ends[one] > time]
            self.users[link] = (*live, node)
            self.until[link] = max(self.until[link], end)
            if self._asked(link, live) + peak > self.most[link]:
                tight.append(link)
        if tight:
            self.wake(node)
        return tight

    def _asked(self, link: int, live: Sequence[int]) -> float:
        """Return what is asked of a link, `live` being those that hold few others."""
        few = sum([peak for one in live for other, peak in self._of(one).few if other == link])
        return self.reserved[link] + few

    def _take_many(self, node: int, time: float, end: float) -> list[int]:
        """Hold many links."""
        links, peaks, _ = self._of(node)
        self.ends[node] = end
        self._reserved[links] += peaks
        self._holders[links] += 1
        self.wide[node] = None
        asked = self._reserved[links]
        for place in np.flatnonzero(self._until[links] > time).tolist():
            link = int(links[place])
            asked[place] = self._asked(link, [one for one in self.users[link] if self.ends[one] > time])
        tight: list[int] = links[asked > self.most[links]].tolist()
        if tight:
            self.wake(node)
        else:
            heappush(self.over, (end, node))
        return tight
