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
    rate = bound.copy()
    free = capacity.astype(float)
    first = np.flatnonzero(np.diff(variable, prepend=-1))
    owner, lengths = variable[first], np.diff(np.append(first, len(variable)))
    while len(owner):
        share = _shares(link, weight, free)
        entry = share[link]
        limit = np.minimum(bound[owner], np.minimum.reduceat(entry, np.cumsum(lengths) - lengths))
        settled = _settled(link, entry, lengths, limit, bound[owner], len(free))
        rate[owner[settled]] = limit[settled]
        done = np.repeat(settled, lengths)
        np.subtract.at(free, link[done], weight[done] * np.repeat(limit[settled], lengths[settled]))
        np.maximum(free, 0.0, out=free)
        left = ~done
        link, weight, owner, lengths = link[left], weight[left], owner[~settled], lengths[~settled]
    return rate


def _shares(link: Ints, weight: Floats, free: Floats) -> Floats:
    """Return what each link could give to each unit of weight on it."""
    total = np.bincount(link, weight, len(free))
    share: Floats = np.divide(free, total, out=np.full(len(free), np.inf), where=total > 0)
    return share


def _settled(link: Ints, share: Floats, lengths: Ints, limit: Floats, bound: Floats, links: int) -> NDArray[np.bool_]:
    """Return the variables whose limit is final: at their bound, or on a link that is the tightest of all its variables.

    share: of the link of each entry. lengths: entries of each variable; limit, bound: of each variable.
    """
    looser = np.zeros(links, bool)  # than another link of one of its variables, or than its bound
    looser[link[share > np.repeat(limit, lengths) * _SAME]] = True
    tightest = np.logical_or.reduceat(~looser[link], np.cumsum(lengths) - lengths)
    settled: NDArray[np.bool_] = tightest | (limit >= bound)
    return settled
