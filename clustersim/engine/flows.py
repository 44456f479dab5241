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
"""Ratio of bounds to a link's capacity up to which they fit: bounds may be long sums, with rounding errors."""
_SAME = 1 + 1e-12
"""Ratio up to which two shares are equal: they may be sums of equal weights in different order."""


class Flow(NamedTuple):
    """One phase of a collective on the fabric: `latency` seconds, then `size` bytes at no more than `bound` bytes/s."""

    family: str
    """Name of the family of the collective's group."""
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
    """Return the max-min fair rate of every variable (a flow), in bytes/s (variables,).

    variable, link, weight: variable, link and bytes over the link per byte of the variable, for each load; sorted by variable.
    bound: largest rate of each variable, in bytes/s; finite for variables without a load. capacity: bytes/s of each link.
    """
    # Instead of following the rising level, every link that is the tightest one of all its variables is settled at once: its
    # share can no longer change, whatever happens elsewhere. A few rounds do where the level has a hundred steps.
    rate, level = bound.copy(), bound.copy()
    free = capacity.astype(float)
    while len(variable):
        first = np.ones(len(variable), bool)
        np.not_equal(variable[1:], variable[:-1], out=first[1:])
        [start] = first.nonzero()
        owner, entry = variable[start], _shares(link, weight, free)[link]
        owner_bound = bound[owner]
        reached = level[owner] = np.minimum(owner_bound, np.minimum.reduceat(entry, start))
        tightest = _tightest(link, entry, level[variable], len(free))
        settled = np.logical_or.reduceat(tightest, start) | (reached >= owner_bound)
        rate[owner], moving = reached, np.zeros(len(rate), bool)
        moving[owner[~settled]] = True
        still_moving = moving[variable]
        settled_entries = ~still_moving
        np.subtract.at(free, link[settled_entries], weight[settled_entries] * level[variable[settled_entries]])
        np.maximum(free, 0.0, out=free)
        variable, link, weight = variable[still_moving], link[still_moving], weight[still_moving]
    return rate


def _shares(link: Ints, weight: Floats, free: Floats) -> Floats:
    """Return the bytes/s that each link has left per unit of weight on it (links,); infinity for links without weight.

    free: bytes/s of each link that settled variables leave.
    """
    total = np.bincount(link, weight, len(free))
    share: Floats = np.divide(free, total, out=np.full(len(free), np.inf), where=total > 0)
    return share


def _tightest(link: Ints, share: Floats, limit: Floats, links: int) -> NDArray[np.bool_]:
    """Return a mask of the loads whose link limits all variables that load it, which neither other links nor bounds do.

    share: bytes/s per weight on each load's link. limit: lowest share or bound of its variable (bytes/s). links: number of links.
    """
    looser = np.zeros(links, bool)  # whether one of its variables has a tighter link or bound
    looser[link[share > limit * _SAME]] = True
    tightest: NDArray[np.bool_] = ~looser[link]
    return tightest
