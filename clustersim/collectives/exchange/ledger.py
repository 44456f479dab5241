"""Bytes on links, summed up block by block, so that memory follows the links and not the pairs."""

from __future__ import annotations

import numpy as np

from clustersim.collectives.loads import Loads, Pins, TooManyWaysError, width
from clustersim.topology.alike import Alike
from clustersim.topology.model import Floats, Ints, Mask, Routes, Topology
from clustersim.topology.rows import distinct

MOST = 1 << 26
"""Links of the ways that are laid one by one at most: 8.4 million ways of 8 links, some 8 s."""
_DENSE = 1 << 22
"""Groups times links up to which every group has a sum for every link."""
_FITS = 1 + 1e-9
_NOWHERE = np.iinfo(np.int64).max


class Ledger:
    """The loads of one phase in `groups` groups while its ways are laid.

    latency: of the slowest way so far, by group. Of every link between NICs it keeps from which to which NIC, in the order of
    rails and numbers, its bytes come, and to which they go: these are its pins.
    """

    def __init__(self, topology: Topology, alike: Alike, groups: int) -> None:
        self.topology, self.alike, self.links = topology, alike, len(topology.capacity)
        self.latency = np.zeros(groups)
        self.between: Mask = ~(alike.leaves | alike.enters)
        self.nics = _ordered(alike.up, np.arange(alike.up.shape[1])), _ordered(alike.down[:, None], alike.rail[:, None])
        self.place = np.full((2, self.links), -1)
        for place, nics in zip(self.place, self.nics, strict=True):
            place[nics] = np.arange(len(nics))
        self.low = np.full((2, self.links), _NOWHERE)
        self.high = np.full((2, self.links), -1)
        self.dense = np.zeros(groups * self.links) if groups * self.links <= _DENSE else None
        self.sums: list[tuple[Ints, Floats]] = []

    def lay(
        self, routes: Routes, group: Ints, weight: Floats, part: Mask | None = None, spans: Ints | None = None
    ) -> None:
        """Add the bytes `weight` of each way on its links, or on those in `part`.

        spans: the places of the first and last NIC by which the bytes of each way leave, and of those by which they arrive,
        an array (4, ways); None for ways inside nodes.
        """
        way, link, share = np.repeat(np.arange(len(weight)), np.diff(routes.start)), routes.links, routes.share
        if part is not None:
            kept = np.flatnonzero(part[link])
            way, link, share = way[kept], link[kept], share[kept]
        self._add(group[way] * self.links + link, weight[way] * share)
        if spans is not None:
            inner = np.flatnonzero(self.between[link])
            way, link = way[inner], link[inner]
            for side in (0, 1):
                np.minimum.at(self.low[side], link, spans[2 * side][way])
                np.maximum.at(self.high[side], link, spans[2 * side + 1][way])

    def check(self, ways: int) -> None:
        """Raise TooManyWaysError when there are too many ways to lay them one by one."""
        most = MOST // width(self.topology)
        if ways > most:
            raise TooManyWaysError(
                f"the routing and the faults of this cluster give the pairs of an all-to-all {ways} different ways, more than "
                f"{most} at once; use smaller groups, or adaptive routing"
            )

    def nics_of(self, routes: Routes) -> Ints | None:
        """Return the spans of ways that each have one NIC at either end; None in a cluster that does not tell."""
        if self.between.all():
            return None
        way, link = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start)), routes.links
        found = np.full((2, len(routes.latency)), -1)
        for side in (0, 1):
            crossed = np.flatnonzero(self.place[side][link] >= 0)
            found[side][way[crossed]] = self.place[side][link[crossed]]
        return found.repeat(2, axis=0)

    def seconds(self, routes: Routes, part: Mask) -> Floats:
        """Return the seconds that each way takes on the links in `part`."""
        way = np.repeat(np.arange(len(routes.latency)), np.diff(routes.start))
        kept = np.flatnonzero(part[routes.links])
        latency = self.topology.latency[routes.links[kept]] * routes.share[kept]
        return np.asarray(np.bincount(way[kept], latency, len(routes.latency)), np.float64)

    def wait(self, group: Ints, latency: Floats) -> None:
        """Take note of the seconds that ways of groups take."""
        np.maximum.at(self.latency, group, latency)

    def _add(self, key: Ints, weight: Floats) -> None:
        if self.dense is not None:
            self.dense += np.bincount(key, weight, len(self.dense))
        elif len(key):
            self.sums.append(_summed(key, weight))

    def close(self) -> Loads:
        """Return the loads of all that has been laid."""
        if self.dense is not None:
            key = np.flatnonzero(self.dense)
            weight = self.dense[key]
        else:
            key, weight = _summed(*(np.concatenate(arrays) for arrays in zip(*self.sums, strict=True)))
        link = key % self.links
        used = distinct(link)
        pins = self._pins(used, 0), self._pins(used, 1)
        return Loads(self.latency, key // self.links, link, weight, lambda: pins)

    def _pins(self, used: Ints, side: int) -> Pins:
        """Return the NICs of each link between NICs if they could not fill it; links of nodes and NICs pin themselves."""
        low, high = self.low[side][used], self.high[side][used]
        fed = np.concatenate(([0.0], np.cumsum(self.topology.capacity[self.nics[side]])))
        fits = high >= 0
        fits[fits] = fed[high[fits] + 1] - fed[low[fits]] <= self.topology.capacity[used[fits]] * _FITS
        count = np.where(fits, high - low + 1, 0)
        first = np.repeat(low - np.cumsum(count) + count, count)
        feeding = self.nics[side][first + np.arange(len(first))]
        rest = used[~fits]
        itself = np.where(self.between[rest], self.links, rest)
        return np.concatenate([used.repeat(count), rest]), np.concatenate([feeding, itself])


def _ordered(nics: Ints, rails: Ints) -> Ints:
    """Return each NIC once, rail by rail."""
    rail = np.broadcast_to(rails, nics.shape).ravel()
    found, first = np.unique(nics.ravel(), return_index=True)
    return found[np.argsort(rail[first], kind="stable")]


def _summed(key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Return each key once, and the sum of its weights."""
    found, inverse = np.unique(key, return_inverse=True)
    return found, np.asarray(np.bincount(inverse, weight, len(found)), np.float64)
