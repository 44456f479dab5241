"""Who holds which link until when, as long as all run as if alone, and who could overfill one together."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from math import fsum, inf
from typing import cast

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.flows import FITS, Asked


class Holder:
    """Somebody who holds links."""

    __slots__ = ("asked", "number", "until")

    def __init__(self, number: int, asked: Asked, until: float) -> None:
        self.number = number
        """What tells it from others."""
        self.asked = asked
        self.until = until
        """When it needs its links no more; infinite while that is not known, as others may slow it."""


class Occupancy:
    """Which links are held, by whom.

    Most hold a few links that nobody else holds: for them it is known by link until when that is so, and nothing is done when
    they end. What is asked by those that hold many links is added up by arrays.
    """

    def __init__(self, capacity: Floats) -> None:
        """capacity: bytes/s by link."""
        self._most = capacity * FITS
        self.most = cast("memoryview[float]", self._most.data)
        self.users: list[tuple[Holder, ...]] = [()] * len(capacity)
        """By link, those that hold it and few others …"""
        self._until = np.zeros(len(capacity))
        self.until = cast("memoryview[float]", self._until.data)
        """… and when the last one of them ends."""
        self.wide: dict[Holder, None] = {}
        """Those that hold many links …"""
        self.over: list[tuple[float, int, Holder]] = []
        """… when they end, the first one first, if they run as if alone …"""
        self._rests = count()
        self._reserved, self._holders = np.zeros(len(capacity)), np.zeros(len(capacity), np.int64)
        self.reserved, self.holders = cast("memoryview[float]", self._reserved.data), self._holders.data
        """… what they ask of each link, and how many of them hold it."""

    def take(self, holder: Holder, time: float) -> list[int]:
        """Hold links from `time` on. Return those that could be overfilled: then all are held until the holder gives them."""
        self._release(time)
        few, until, holders, most = holder.asked.few, self.until, self.holders, self.most
        if not few:
            return self._take_many(holder, time)
        for link, peak in few:
            if until[link] > time or holders[link] or peak > most[link]:
                return self._share(holder, time)
        alone = (holder,)
        for link, _ in few:
            until[link] = holder.until
            self.users[link] = alone
        return []

    def asleep(self, links: Sequence[int], time: float) -> list[Holder]:
        """Return who runs as if alone and holds some of these links."""
        found = {one for link in links for one in self.users[link] if time < one.until < inf}
        if self.wide:
            mark = np.zeros(len(self.most), bool)
            mark[list(links)] = True
            found.update(one for one in self.wide if time < one.until < inf and mark[one.asked.links].any())
        return sorted(found, key=_number)

    def wake(self, holder: Holder) -> None:
        """Hold the links of a holder until it rests."""
        holder.until = inf
        for link, _ in holder.asked.few:
            self.until[link] = inf

    def rest(self, holder: Holder, until: float) -> None:
        """Hold the links of a holder, which was awake, until a time: that of its end, now or later."""
        holder.until = until
        if holder in self.wide:
            heappush(self.over, (until, next(self._rests), holder))
        for link, _ in holder.asked.few:
            self.until[link] = max([one.until for one in self.users[link]])

    def fit(self, holder: Holder, time: float) -> bool:
        """Return whether nobody who holds links now can slow a holder."""
        self._release(time)
        if not holder.asked.few:
            return not len(self._tight(holder, time))
        return all(self._asked(link, time) <= self.most[link] for link, _ in holder.asked.few)

    def _release(self, time: float) -> None:
        """Give the links of those that hold many, and are over."""
        while self.over and self.over[0][0] <= time:
            over, _, holder = heappop(self.over)
            if holder.until == over and holder in self.wide:
                links, peaks, _ = holder.asked
                del self.wide[holder]
                self._holders[links] -= 1
                self._reserved[links] = np.where(self._holders[links] > 0, self._reserved[links] - peaks, 0.0)

    def _share(self, holder: Holder, time: float) -> list[int]:
        """Hold a few links of which others hold some."""
        tight, end = list[int](), holder.until
        for link, _ in holder.asked.few:
            live = [one for one in self.users[link] if one.until > time]
            self.users[link] = (*live, holder)
            self.until[link] = max(self.until[link], end)
            if self._asked(link, time) > self.most[link]:
                tight.append(link)
        if tight:
            self.wake(holder)
        return tight

    def _asked(self, link: int, time: float) -> float:
        """Return what is asked of a link."""
        live = [one for one in self.users[link] if one.until > time]
        few = fsum([peak for one in live for other, peak in one.asked.few if other == link])
        return self.reserved[link] + few

    def _take_many(self, holder: Holder, time: float) -> list[int]:
        """Hold many links."""
        links, peaks, _ = holder.asked
        self._reserved[links] += peaks
        self._holders[links] += 1
        self.wide[holder] = None
        tight: list[int] = self._tight(holder, time).tolist()
        if tight:
            self.wake(holder)
        else:
            heappush(self.over, (holder.until, next(self._rests), holder))
        return tight

    def _tight(self, holder: Holder, time: float) -> Ints:
        """Return which of the links of one who holds many could be overfilled."""
        links = holder.asked.links
        asked = self._reserved[links]
        for place in np.flatnonzero(self._until[links] > time).tolist():
            asked[place] = self._asked(int(links[place]), time)
        found: Ints = links[asked > self._most[links]]
        return found


def _number(holder: Holder) -> int:
    return holder.number
