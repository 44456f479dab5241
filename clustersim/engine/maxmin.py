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
    rate = np.zeros(len(bound))
    open_variables = np.ones(len(bound), bool)
    free = capacity.astype(float)
    while len(variable):
        share = _shares(link, weight, free)
        limit = _limits(variable, link, share, bound)
        settled = _settled(variable, link, share, limit, bound, open_variables)
        rate[settled] = limit[settled]
        open_variables[settled] = False
        done = settled[variable]
        np.subtract.at(free, link[done], weight[done] * rate[variable[done]])
        np.maximum(free, 0.0, out=free)
        variable, link, weight = variable[~done], link[~done], weight[~done]
    rate[open_variables] = bound[open_variables]
    return rate


def _shares(link: Ints, weight: Floats, free: Floats) -> Floats:
    """Return what each link could give to each unit of weight on it."""
    total = np.bincount(link, weight, len(free))
    share: Floats = np.divide(free, total, out=np.full(len(free), np.inf), where=total > 0)
    return share


def _limits(variable: Ints, link: Ints, share: Floats, bound: Floats) -> Floats:
    """Return the smaller of a variable's bound and the least share among its links."""
    limit = bound.copy()
    first = np.flatnonzero(np.diff(variable, prepend=-1))
    owner = variable[first]
    limit[owner] = np.minimum(bound[owner], np.minimum.reduceat(share[link], first))
    return limit


def _settled(
    variable: Ints, link: Ints, share: Floats, limit: Floats, bound: Floats, open_variables: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the variables whose limit is final: at their bound, or on a link that is the tightest of all its variables."""
    least = np.full(len(share), np.inf)
    np.minimum.at(least, link, limit[variable])
    tightest = share <= least * _SAME
    settled = limit >= bound
    settled[variable[tightest[link]]] = True
    return settled & open_variables
