"""Demands of transfers on links, and their rates: weighted max-min fair.

All rates rise together; a transfer stops when it reaches its own bound or when one of its links is full. The result is the
unique allocation in which no rate can rise without lowering a smaller one (Bertsekas & Gallager, Data Networks, 6.5.2).
A transfer of weight w on a link takes w bytes/s of it for every byte/s of its own rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats, Ints

FITS = 1 + 1e-9
"""Tolerance by which bounds may exceed a link's capacity and still fit: they may be long sums."""
_SAME = 1 + 1e-12
"""Ratio below which shares are equal: sums of equal weights in different order."""


class Flow(NamedTuple):
    """One phase of a collective on the fabric: `latency` seconds, then `size` bytes at no more than `bound` bytes/s."""

    family: str
    latency: float
    size: float
    bound: float
    links: Ints
    """Distinct links that can be a bottleneck."""
    weights: Floats
    """Bytes over each link per byte of `size`."""

    @property
    def idle(self) -> float:
        """Seconds on an idle fabric."""
        return self.latency + (self.size / self.bound if self.size else 0.0)


def solve(variable: Ints, link: Ints, weight: Floats, bound: Floats, capacity: Floats) -> Floats:
    """Return the max-min fair rate of every variable, in bytes/s.

    variable, link, weight: the loads, one entry each, sorted by variable. bound: the largest rate of each variable; finite
    for those without a load. capacity: bytes/s of each link.
    """
    # Instead of following the rising level, every link that is the tightest of all that its variables use is settled at once:
    # its share can only be what it is now, whatever happens elsewhere. A few passes do where the level has a hundred steps.
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
    """Return the bytes/s that each link has per unit of weight on it."""
    total = np.bincount(link, weight, len(free))
    share: Floats = np.divide(free, total, out=np.full(len(free), np.inf), where=total > 0)
    return share


def _tightest(link: Ints, share: Floats, limit: Floats, links: int) -> NDArray[np.bool_]:
    """Return a mask of the entries whose link is the tightest of all its variables, and tighter than their bounds.

    share: of the link of each entry. limit: of the variable of each entry.
    """
    looser = np.zeros(links, bool)  # than another link of one of its variables, or than its bound
    looser[link[share > limit * _SAME]] = True
    tightest: NDArray[np.bool_] = ~looser[link]
    return tightest
