"""The times at which transfers use a link while all its users could overfill it, given when each starts and ends."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, connected
from clustersim.engine.flows import FITS


class Contention(NamedTuple):
    """Transfers that use a link while its users could overfill it; one row for each transfer and link.

    The contiguous times of contention on each link are numbered; a node uses the link during those from `first` to `last`.
    """

    node: Ints
    first: Ints
    last: Ints

    def groups(self) -> list[Ints]:
        """Return groups of nodes that may slow each other, each array sorted; nodes of different groups never do."""
        if not len(self.node):
            return []
        nodes, vertex = np.unique(self.node, return_inverse=True)
        seen = np.zeros(int(self.last.max()) + 2, np.int64)  # by how many at a time and the next one, once summed up
        np.add.at(seen, self.first, 1)
        np.add.at(seen, self.last, -1)
        run = np.cumsum(np.append(True, np.cumsum(seen)[:-1] == 0))[self.first]
        part = connected(len(nodes) + int(run.max()) + 1, vertex, len(nodes) + run)[: len(nodes)]
        order = np.argsort(part, kind="stable")
        nodes, begin = nodes[order], np.flatnonzero(np.diff(part[order], prepend=-1)).tolist()
        return [nodes[first:last] for first, last in pairwise([*begin, len(nodes)])]


NO_CONTENTION = Contention(*[np.empty(0, np.int64)] * 3)


def contended(user: Ints, link: Ints, share: Floats, begun: Floats, over: Floats) -> Contention:
    """Return which transfers contend for links, given when each starts and ends. At equal times, ends come before starts.

    user, link, share: one row each: index of the user, a link, and the largest share of it that the user takes.
    """
    users, links = len(begun), np.concatenate([link, link]).astype(np.int64)
    turn = np.empty(
        2 * users, np.int64
    )  # of one time, ends come first: else what follows would contend with what it follows
    turn[np.argsort(np.concatenate([over, begun]), kind="stable")] = np.arange(2 * users)
    # one sort of whole numbers: users are fewer than rows, and sorting rows by link and time takes five times as long
    order = np.argsort(links * 2 * users + np.concatenate([turn[users:][user], turn[:users][user]]))
    tight = _levels(_begins(links[order]), np.concatenate([share, -share])[order]) > FITS
    if not tight.any():
        return NO_CONTENTION
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(tight) - tight  # how many tight moments are before each change
    first, last = before.reshape(2, -1)
    some, time = np.flatnonzero(last > first), np.cumsum(tight & ~np.append(False, tight[:-1]))[tight]
    return Contention(user[some], time[first[some]], time[last[some] - 1])


def _begins(row: Ints) -> Ints:
    """Return the index of the first entry of each row. row: row of each entry, sorted."""
    return np.flatnonzero(np.diff(row, prepend=-1))


def peaks(row: Ints, begun: Floats, over: Floats, share: Floats, rows: int) -> Floats:
    """Return the largest sum of `share` of each row at any time (rows,). At equal times, ends come before starts."""
    change, time, row = np.concatenate([share, -share]), np.concatenate([begun, over]), np.concatenate([row, row])
    order, most = np.lexsort((change, time, row)), np.zeros(rows)
    row = row[order]
    if len(start := _begins(row)):
        most[row[start]] = np.maximum.reduceat(_levels(start, change[order]), start)
    return most


def _levels(start: Ints, change: Floats) -> Floats:
    """Return the running sum of `change` within each row; `start` has the first change of each row."""
    level: Floats = np.cumsum(change)
    before = level[start - 1]
    before[:1] = 0.0
    level -= np.repeat(before, np.diff(np.append(start, len(change))))
    return level
