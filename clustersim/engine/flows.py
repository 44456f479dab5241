"""Transfers under way at max-min fair rates, kept up to date as they come and go.

Rates rise together from zero until a link is full. Up to the level at which a change first makes a difference the rise is as
it was: a transfer that is gone did not decide anything below its own rate, and one that is new decides nothing before one of
its links could be full. So what stopped below that level keeps its rate, and the rest is solved on what that leaves.
"""

from __future__ import annotations

import math
from math import inf
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats, Ints, entries, offsets

_SAME = 1e-12  # relative change of a rate that is no change
_BELOW = 1 - 1e-9
_NEARLY = 0.98
_NEAR = 16  # flows that are solved sooner one by one


class Flow(NamedTuple):
    """One phase of a collective on the fabric: `latency` seconds, then `size` bytes at no more than `bound` bytes/s."""

    family: str
    latency: float
    size: float
    bound: float
    links: Ints
    """Those that can be short, each once."""
    weights: Floats
    """The bytes over each link for each byte of `size`."""

    @classmethod
    def of(cls, family: str, latency: float, size: float, bound: float, *loads: tuple[int, float]) -> Flow:
        """Return a flow from its loads as (link, weight)."""
        links, weights = (
            np.array([link for link, _ in loads], np.int64),
            np.array([weight for _, weight in loads], float),
        )
        return cls(family, latency, size, bound, links, weights)

    @property
    def idle(self) -> float:
        """Seconds on an idle fabric."""
        return self.latency + (self.size / self.bound if self.size else 0.0)


_FREE = Flow.of("", 0.0, 0.0, np.inf)


class SlotRows(NamedTuple):
    """Rows by slot, one number at a time."""

    rate: memoryview[float]
    remaining: memoryview[float]
    """Bytes left …"""
    since: memoryview[float]
    """… at this time."""
    lands: memoryview[float]
    """When it is over; a free slot never is."""
    bound: memoryview[float]
    alone: memoryview[float]
    """When it lands if nothing slows it, infinite once that has happened."""


class Flows:
    """Flows under way, by slot."""

    def __init__(self, limit: Floats) -> None:
        self.limit = limit
        """Bytes/s by link. Whoever sets one to infinity must know that the link cannot be full."""
        self.solves = 0
        self.used, self.weight = np.zeros((2, len(limit)))
        """By link, the bytes/s that cross it, and the sum of their weights."""
        self.crossing = np.zeros(len(limit), np.int64)
        """By link, how many flows cross it."""
        self.flow: list[Flow] = []
        self.free: list[int] = []
        self._rows(np.full((6, 0), np.inf))
        self.fresh: list[int] = []
        self.level = np.inf
        self.full = np.zeros(len(limit), bool)  # or nearly so, when last solved
        rows = (limit, self.used, self.weight, self.crossing, self.full)
        self.by_link = tuple(cast("memoryview[float]", row.data) for row in rows)
        self.place = np.zeros(len(limit), np.int64)
        self.few: dict[int, tuple[tuple[int, float], ...]] = {}  # (link, weight) of flows that cross few links, by slot
        self.on: dict[int, dict[int, float]] = {}  # of these the slots that cross a link, with their weights
        self.changed: set[int] = set()  # links on which such flows came or went since the last solution
        self.wide = False  # whether another one went since then

    def _rows(self, rows: Floats) -> None:
        self.rate, self.remaining, self.since, self.lands, self.bound, self.alone = rows
        self.by_slot = SlotRows(*(cast("memoryview[float]", row.data) for row in rows))

    def add(self, flow: Flow, left: float, now: float, alone: float = inf) -> int:
        """Return the slot of a flow that has `left` bytes to move; its rate is zero until `solve`.

        alone: when it lands if nothing slows it, as far as that is known to the last digit.
        """
        if not self.free:
            self._grow()
        slot = self.free.pop()
        self.flow[slot] = flow
        rates, remaining, since, _, bound, own = self.by_slot
        rates[slot], remaining[slot], since[slot], bound[slot], own[slot] = 0.0, left, now, flow.bound, alone
        self.fresh.append(slot)
        if len(flow.links) > _FEW:
            self.weight[flow.links] += flow.weights
            self.crossing[flow.links] += 1
            return slot
        self.few[slot] = loads = tuple(zip(flow.links.tolist(), flow.weights.tolist(), strict=True))
        _, _, weights, crossing, _ = self.by_link
        for link, weight in loads:
            weights[link] += weight
            crossing[link] += 1
            self.on.setdefault(link, {})[slot] = weight
            self.changed.add(link)
        return slot

    def remove(self, *slots: int) -> None:
        """Take away flows."""
        rates, lands = self.by_slot.rate, self.by_slot.lands
        wide = [slot for slot in slots if slot not in self.few]
        if wide:
            self._remove(wide)
        _, used, weights, crossing, _ = self.by_link
        for slot in slots:
            rate = rates[slot]
            self.level = min(self.level, rate)
            for link, weight in self.few.pop(slot, ()):
                left = crossing[link] = crossing[link] - 1
                used[link] = used[link] - weight * rate if left else 0.0
                weights[link] = weights[link] - weight if left else 0.0
                del self.on[link][slot]
                self.changed.add(link)
            self.flow[slot], lands[slot], rates[slot] = _FREE, inf, inf
        self.free += slots

    def _remove(self, slots: list[int]) -> None:
        """Take flows away that cross many links."""
        links, weights, lengths = self._joined(slots)
        np.subtract.at(self.crossing, links, 1)
        np.subtract.at(self.used, links, weights * np.repeat(self.rate[slots], lengths))
        np.subtract.at(self.weight, links, weights)
        idle = links[self.crossing[links] == 0]
        self.used[idle] = self.weight[idle] = 0.0
        self.wide = True

    def solve(self, now: float) -> float:
        """Bring rates up to date and return when the first transfer lands (infinite: none moves)."""
        self.solves += 1
        near = self._near()
        if near is None:
            slots = self._touched()
            if len(slots):
                self._settle(slots, self._rates(slots), now)
        elif near:
            self._settle_few(self._filled(near), now)
        self.fresh.clear()
        self.changed.clear()
        self.level, self.wide = np.inf, False
        if self._all_few:
            lands = self.by_slot.lands
            return min([lands[slot] for slot in self.few], default=inf)
        return float(self.lands.min(initial=np.inf))

    def due(self, time: float) -> list[int]:
        """Return the slots of what lands by `time`."""
        if self._all_few:
            lands = self.by_slot.lands
            return sorted(slot for slot in self.few if lands[slot] <= time)
        due: list[int] = np.flatnonzero(self.lands <= time).tolist()
        return due

    def on_time(self, slot: int) -> bool:
        """Return whether nothing has slowed a flow so far."""
        return bool(self.by_slot.alone[slot] < inf)

    @property
    def _all_few(self) -> bool:
        """Whether no flow crosses many links."""
        return len(self.few) == len(self.flow) - len(self.free)

    def _grow(self) -> None:
        count = len(self.flow)
        more = max(64, count)
        rows = (self.rate, self.remaining, self.since, self.lands, self.bound, self.alone)
        self._rows(np.concatenate([np.array(rows), np.full((6, more), np.inf)], axis=1))
        self.flow += [_FREE] * more
        self.free += range(count + more - 1, count - 1, -1)

    def _touched(self) -> Ints:
        """Return the slots whose rate may change: the new ones, and those that did not stop below the level of the change."""
        level = min(self.level, self._meets()) * _BELOW
        return np.flatnonzero((self.rate < np.inf) & ((self.rate >= level) | (self.rate == 0.0)))

    def _near(self) -> list[int] | None:
        """Return the flows that share links with those that came or went, or with others that do; None if they are many.

        What no such chain joins to a change is not touched by it.
        """
        if self.wide or not self._all_few:
            return None
        links, seen, found = list(self.changed), set(self.changed), dict.fromkeys(self.fresh)
        for link in links:  # grows while it is read
            for slot in self.on[link]:
                if slot not in found:
                    found[slot] = None
                    more = [other for other, _ in self.few[slot] if other not in seen]
                    links += more
                    seen.update(more)
            if len(found) > _NEAR:
                return None
        return list(found)

    def _filled(self, slots: list[int]) -> dict[int, float]:
        """Return the rates of a few flows that share links with no others: what rises with all until it is full, by hand."""
        limits, used, _, _, full = self.by_link
        bounds = self.by_slot.bound
        on, few, rates = self.on, self.few, dict[int, float]()
        if len(slots) == 1:  # half of all solutions: one begins before it meets another, or goes on behind it
            [slot] = slots
            rates[slot] = rate = min([bounds[slot], *[limits[link] / weight for link, weight in few[slot]]])
            for link, weight in few[slot]:
                used[link] = taken = weight * rate
                full[link] = taken > _NEARLY * limits[link]
            return rates
        room = {link: limits[link] for slot in slots for link, _ in few[slot]}
        left = {slot: bounds[slot] for slot in slots}
        while left:
            share = {}
            for link, free in room.items():
                weights = [weight for slot, weight in on[link].items() if slot in left]
                if weights:
                    share[link] = free / (math.fsum(weights) if len(weights) > 1 else weights[0])
            most = {slot: min([bound, *[share[link] for link, _ in few[slot]]]) for slot, bound in left.items()}
            level = min(most.values()) * _SAME_maxmin
            for slot, rate in most.items():
                if rate <= level:
                    rates[slot] = rate
                    del left[slot]
                    for link, weight in few[slot]:
                        room[link] = max(room[link] - weight * rate, 0.0)
        for link in room:
            used[link] = taken = math.fsum([weight * rates[slot] for slot, weight in on[link].items()])
            full[link] = taken > _NEARLY * limits[link]
        return rates

    def _settle_few(self, found: dict[int, float], now: float) -> None:
        """Give flows their new rates from now on; what hardly changes stays."""
        rates, remaining, since, lands, bounds, alone = self.by_slot
        for slot, rate in found.items():
            old = rates[slot]
            if abs(rate - old) > _SAME * old:
                left = remaining[slot] = remaining[slot] - old * (now - since[slot])
                rates[slot], since[slot] = rate, now
                if rate < bounds[slot]:
                    alone[slot] = inf
                lands[slot] = now + max(left, 0.0) / rate if alone[slot] == inf else alone[slot]

    def _meets(self) -> float:
        """Return a level below which no link of a new transfer is full.

        At a level x, transfers take no more than x times their weights, old ones no more than before, new ones no more than
        at their bounds.
        """
        if not self.fresh:
            return np.inf
        links, weights, lengths = self._joined(self.fresh)
        own, place = self._own(links)
        most = np.bincount(place, weights * np.repeat(self.bound[self.fresh], lengths))
        room = self.limit[own] - self.used[own]
        level = np.maximum(self.limit[own] / self.weight[own], room / np.bincount(place, weights))
        return float(np.where(most <= room, np.inf, level).min(initial=np.inf))

    def _joined(self, slots: list[int]) -> tuple[Ints, Floats, Ints]:
        """Return the links and weights of slots, one after the other, and how many each has."""
        flows = [self.flow[slot] for slot in slots]
        links, weights = np.concatenate([one.links for one in flows]), np.concatenate([one.weights for one in flows])
        return links, weights, np.array([len(one.links) for one in flows])

    def _own(self, links: Ints) -> tuple[Ints, Ints]:
        """Return the different ones of `links`, and the place of each of `links` there."""
        order = np.arange(len(links))
        self.place[links] = order
        own = links[self.place[links] == order]
        self.place[own] = np.arange(len(own))
        return own, self.place[links]

    def _rates(self, slots: Ints) -> Floats:
        """Return the rates of `slots` on what the others leave of the links; what hardly changes stays.

        They are solved on the links that are known to be full, and again with those that this would overfill, until there
        are none: of thousands of links a hundred are full, and a solution that keeps within a limit stays when that limit is
        added. Only rates that change can overfill a link.
        """
        links, weights, lengths = self._joined(slots.tolist())
        start, old = offsets(lengths), self.rate[slots]
        while True:
            kept = np.flatnonzero(self.full[links])
            flow = np.searchsorted(start, kept, side="right") - 1
            rates = self._solved(links[kept], weights[kept], flow, slots, old)
            changed = np.flatnonzero(rates != old)
            moved = entries(start, changed)
            own, place = self._own(links[moved])
            more = np.repeat(rates[changed] - old[changed], lengths[changed])
            used, limit = self.used[own] + np.bincount(place, weights[moved] * more, len(own)), self.limit[own]
            over = (used > limit * (1 + _SAME)) & ~self.full[own]
            if not over.any():
                break
            self.full[own[over]] = True
        self.used[own] = used
        for some in (own, links[kept]):
            self.full[some] = self.used[some] > _NEARLY * self.limit[some]
        return rates

    def _solved(self, links: Ints, weights: Floats, flow: Ints, slots: Ints, old: Floats) -> Floats:
        """Return the rates of `slots` on some of their links; flow: the place in `slots` that each entry belongs to."""
        own, place = self._own(links)
        others = self.used[own] - np.bincount(place, weights * old[flow], len(own))
        rates = solve(flow, place, weights, self.bound[slots], np.maximum(self.limit[own] - others, 0.0))
        return np.where(np.abs(rates - old) > _SAME * old, rates, old)

    def _settle(self, slots: Ints, rates: Floats, now: float) -> None:
        """Give transfers their new rates from now on."""
        changed = rates != self.rate[slots]
        slots, rates = slots[changed], rates[changed]
        self.remaining[slots] -= self.rate[slots] * (now - self.since[slots])
        self.rate[slots], self.since[slots] = rates, now
        self.alone[slots[rates < self.bound[slots]]] = inf
        lands = now + np.maximum(self.remaining[slots], 0.0) / rates
        self.lands[slots] = np.where(self.alone[slots] < inf, self.alone[slots], lands)


FITS = 1 + 1e-9
_FEW = 4  # links that are counted sooner one by one


class Asked(NamedTuple):
    """What an activity asks of links while it runs."""

    links: Ints
    """Each once."""
    peaks: Floats
    """The most bytes/s that are asked of each."""
    few: tuple[tuple[int, float], ...]
    """Both once more, if the links are few."""

    @classmethod
    def of(cls, links: Ints, peaks: Floats) -> Asked:
        """Return what is asked of `links`."""
        few = zip(links.tolist(), peaks.tolist(), strict=True) if len(links) <= _FEW else ()
        return cls(links, peaks, tuple(few))


# Weighted max-min fair rates.
#
# All rates rise together; a variable stops when it reaches its own bound or when one of its links is full. The result is the
# unique allocation in which no rate can rise without lowering a smaller one (Bertsekas & Gallager, Data Networks, 6.5.2).
# A variable of weight w on a link takes w bytes/s of it for every byte/s of its own rate.
#
# Instead of following the rising level, every link that is the tightest of all that its variables use is settled at once: its
# share can only be what it is now, whatever happens elsewhere. That takes a few passes where the level has a hundred steps.

_SAME_maxmin = 1 + 1e-12


def solve(variable: Ints, link: Ints, weight: Floats, bound: Floats, capacity: Floats) -> Floats:
    """Return the max-min fair rate of every variable, in bytes/s.

    variable, link, weight: the loads, one entry each, sorted by variable. bound: the largest rate of each variable; finite
    for those without a load. capacity: bytes/s of each link.
    """
    rate, level = bound.copy(), bound.copy()
    free = capacity.astype(float)
    while len(variable):
        first = np.ones(len(variable), bool)
        np.not_equal(variable[1:], variable[:-1], out=first[1:])
        [start] = first.nonzero()
        owner, entry = variable[start], _shares(link, weight, free)[link]
        most = bound[owner]
        limit = level[owner] = np.minimum(most, np.minimum.reduceat(entry, start))
        tightest = _tightest(link, entry, level[variable], len(free))
        settled = np.logical_or.reduceat(tightest, start) | (limit >= most)
        rate[owner], moving = limit, np.zeros(len(rate), bool)
        moving[owner[~settled]] = True
        left = moving[variable]
        done = ~left
        np.subtract.at(free, link[done], weight[done] * level[variable[done]])
        np.maximum(free, 0.0, out=free)
        variable, link, weight = variable[left], link[left], weight[left]
    return rate


def _shares(link: Ints, weight: Floats, free: Floats) -> Floats:
    """Return what each link could give to each unit of weight on it."""
    total = np.bincount(link, weight, len(free))
    share: Floats = np.divide(free, total, out=np.full(len(free), np.inf), where=total > 0)
    return share


def _tightest(link: Ints, share: Floats, limit: Floats, links: int) -> NDArray[np.bool_]:
    """Return the entries whose link is the tightest of all its variables, and tighter than their bounds.

    share: of the link of each entry. limit: of the variable of each entry.
    """
    looser = np.zeros(links, bool)  # than another link of one of its variables, or than its bound
    looser[link[share > limit * _SAME_maxmin]] = True
    tightest: NDArray[np.bool_] = ~looser[link]
    return tightest
