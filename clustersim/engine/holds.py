"""Which links activities hold, by how much at most, and which of them are sure not to be full.

Most activities hold one link or two, where an array costs more than what it does. So these are counted one by one, in
the same memory.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from clustersim.engine.maxmin import Floats, Ints

_FITS = 1 + 1e-9
_FEW = 4  # links that are counted sooner one by one


class Asked(NamedTuple):
    """The links that an activity holds, each once, and the most bytes/s that it asks of each; `few` says both once more."""

    links: Ints
    peaks: Floats
    few: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, links: Ints, peaks: Floats) -> Asked:
        """Return what is asked of `links`."""
        few = zip(links.tolist(), peaks.tolist(), strict=True) if len(links) <= _FEW else ()
        return cls(links, peaks, tuple(few))


class Holds:
    """Links of `capacity` bytes/s, and what is held of them.

    reserved: the peaks of all that hold a link, `holders` their number, `asleep` the number of those that sleep. limit: the
    capacity of a link, or infinite as long as somebody sleeps on it, since then it cannot be full.
    """

    def __init__(self, capacity: Floats) -> None:
        self.capacity, self.limit = capacity.copy(), capacity.copy()
        self.most = capacity * _FITS
        self.reserved = np.zeros(len(capacity))
        self.holders, self.asleep = np.zeros((2, len(capacity)), np.int64)
        rows: tuple[Floats | Ints, ...] = (
            self.capacity,
            self.limit,
            self.most,
            self.reserved,
            self.holders,
            self.asleep,
        )
        self.scalars = tuple(cast("memoryview[float]", row.data) for row in rows)

    def take(self, asked: Asked) -> list[int]:
        """Hold links; return those that all that hold them could overfill."""
        if not asked.few:
            links = asked.links
            self.reserved[links] += asked.peaks
            self.holders[links] += 1
            tight: list[int] = links[self.reserved[links] > self.most[links]].tolist()
            return tight
        _, _, most, reserved, holders, _ = self.scalars
        short = []
        for link, peak in asked.few:
            reserved[link] += peak
            holders[link] += 1
            if reserved[link] > most[link]:
                short.append(link)
        return short

    def give(self, asked: Asked) -> None:
        """Hold links no more."""
        if not asked.few:
            links = asked.links
            self.holders[links] -= 1
            self.reserved[links] = np.where(self.holders[links] > 0, self.reserved[links] - asked.peaks, 0.0)
            return
        _, _, _, reserved, holders, _ = self.scalars
        for link, peak in asked.few:
            left = holders[link] = holders[link] - 1
            reserved[link] = reserved[link] - peak if left else 0.0

    def rest(self, asked: Asked) -> None:
        """Fall asleep on links."""
        if not asked.few:
            self.asleep[asked.links] += 1
            self.limit[asked.links] = np.inf
            return
        _, limit, _, _, _, asleep = self.scalars
        for link, _ in asked.few:
            asleep[link] += 1
            limit[link] = np.inf

    def rise(self, asked: Asked) -> None:
        """Wake up from links."""
        if not asked.few:
            links = asked.links
            self.asleep[links] -= 1
            awake = links[self.asleep[links] == 0]
            self.limit[awake] = self.capacity[awake]
            return
        capacity, limit, _, _, _, asleep = self.scalars
        for link, _ in asked.few:
            left = asleep[link] = asleep[link] - 1
            if not left:
                limit[link] = capacity[link]
