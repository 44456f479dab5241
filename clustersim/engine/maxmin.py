"""Weighted max-min fair rates.

All rates rise together; a variable stops when it reaches its own bound or when one of its links is full. The result is the
unique allocation in which no rate can rise without lowering a smaller one (Bertsekas & Gallager, Data Networks, 6.5.2).
A variable of weight w on a link takes w bytes/s of it for every byte/s of its own rate.

Instead of following the rising level, every link that is the tightest of all that its variables use is settled at once: its
share can only be what it is now, whatever happens elsewhere. That takes a few passes where the level has a hundred steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_SAME = 1 + 1e-12


def solve(variable: Ints, link: Ints, weight: Floats, bound: Floats, capacity: Floats) -> Floats:
    """Return the max-min fair rate of every variable, in bytes/s.

    variable, link, weight: the loads, one entry each, sorted by variable. bound: the largest rate of each variable; finite
    for those without a load. capacity: bytes/s of each link.
    """
    rate, level = bound.copy(), bound.copy()
    free = capacity.astype(float)
    while len(variable):
        start = np.append(0, np.flatnonzero(variable[1:] != variable[:-1]) + 1)
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
    looser[link[share > limit * _SAME]] = True
    tightest: NDArray[np.bool_] = ~looser[link]
    return tightest
