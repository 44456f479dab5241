"""Links that could have been bottlenecks in a simulation that ignored them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct, entries, lengths, offsets, summed
from clustersim.engine.fold.refinement import alike
from clustersim.engine.network import Demand, Network
from clustersim.engine.record import Record
from clustersim.engine.traffic import FITS

_MAX_TRANSFERS = 4_000_000  # beginnings of transfers that are looked at in one go
_CELL = 32  # bits of a group cell's number


class LinkShares(NamedTuple):
    """Largest share of a link that all groups of a group cell take: rows of link i are start[i] to start[i + 1]."""

    start: Ints
    cell: Ints
    share: Floats

    @property
    def link(self) -> Ints:
        """Link of each row (rows,)."""
        return np.repeat(np.arange(len(self.start) - 1), lengths(self.start))

    def some(self, rows: Mask) -> LinkShares:
        """Return the shares of the masked rows."""
        start = offsets(rows)[self.start]
        return LinkShares(start, self.cell[rows], self.share[rows])


class Transfers(NamedTuple):
    """Transfers of the groups of each cell, at distinct times: those of cell c are start[c] to start[c + 1]."""

    start: Ints
    turn: Ints
    """Index of the begin and of the end of each transfer in order of time (2, transfers); at equal times, ends come first."""

    @classmethod
    def of(cls, cells: int, cell: Ints, begun: Floats, over: Floats) -> Transfers:
        """Return the transfers of `cells` cells. cell: cell of each transfer, sorted. begun, over: its times in seconds."""
        turn = np.empty(2 * len(cell), np.int64)
        turn[np.argsort(np.concatenate([over, begun]), kind="stable")] = np.arange(2 * len(cell))
        return cls(np.searchsorted(cell, np.arange(cells + 1)), turn.reshape(2, -1)[::-1])


def saturated_links(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> Mask:
    """Return a mask of `demand.links` that the transfers active at one time could fill at their bounds.

    nets, records: of each job, from a simulation with or without these links; each record list has all steps.
    """
    shares = _shares(demand, nets)
    times = _times(records, _numbers(nets), shares)
    first, of = alike(len(shares.start) - 1, shares.link, shares.cell, shares.share)
    short = np.zeros(len(first), bool)
    for part in _parts(shares, times, first):
        row, _, level = levels(shares, times, first[part])
        short[part[row[level > FITS]]] = True
    found: Mask = short[of]
    return found


def jobs_contend(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> bool:
    """Return whether transfers of several jobs could have filled a link together; the arguments are those of `saturated_links`.

    If none could, each job moves as if alone, also on links that it fills itself at other times.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    ends = [own[""] for own in number]
    pairs = distinct(shares.link * len(nets) + np.searchsorted(ends, shares.cell, side="right"))
    shares = shares.some((np.bincount(pairs // len(nets), minlength=len(demand.links)) > 1)[shares.link])
    times, links = _times(records, number, shares), np.arange(len(demand.links))
    for part in _parts(shares, times, links):
        row, change, level = levels(shares, times, links[part])
        tight = level > FITS
        if tight.any():
            job = np.searchsorted(ends, np.abs(change) - 1, side="right")
            active = [_running(row, np.sign(change) * (job == own)) > 0 for own in range(len(nets))]
            if (np.sum(active, axis=0)[tight] > 1).any():
                return True
    return False


def _numbers(nets: Sequence[Network]) -> list[dict[str, int]]:
    """Return for each job the first number of each family's group cells in a consecutive numbering, and the total."""
    number, result = 0, []
    for net in nets:
        own = {}
        for family, cells in net.cells.groups.items():
            own[family] = number
            number += len(cells.first)
        result.append({**own, "": number})
    return result


def _shares(demand: Demand, nets: Sequence[Network]) -> LinkShares:
    """Return the largest share of each link that a group cell takes in any phase, if all cells could overfill it."""
    keys: list[Ints] = [np.empty(0, np.int64)]
    shares: list[Floats] = [np.empty(0)]
    flat = [
        (number[variant[0]], net.cells.groups[variant[0]].of, t)
        for number, net in zip(_numbers(nets), nets, strict=True)
        for variant, parts in net.traffic.items()
        for t in parts
    ]
    for (number, of, t), loads in zip(flat, demand.loads, strict=True):
        key, inverse = np.unique((loads.link << _CELL) + number + of[loads.group], return_inverse=True)
        keys.append(key)
        taken = np.bincount(inverse, loads.weight * t.bound[loads.group], len(key))
        shares.append(taken.astype(float, copy=False))
    key, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    most = np.zeros(len(key))
    np.maximum.at(most, inverse, np.concatenate(shares))
    link, links = key >> _CELL, len(demand.links)
    most /= demand.topology.capacity[demand.links[link]]
    found = LinkShares(np.searchsorted(link, np.arange(links + 1)), key & ((1 << _CELL) - 1), most)
    return found.some((summed(link, most, links) > FITS)[link])


def _times(records: Sequence[Sequence[Record]], numbers: Sequence[dict[str, int]], shares: LinkShares) -> Transfers:
    """Return the distinct transfers of the group cells that take a share of a link."""
    asking = np.zeros(numbers[-1][""], bool)
    asking[shares.cell] = True
    every = [_moved(record, own, asking) for steps, own in zip(records, numbers, strict=True) for record in steps]
    columns = np.concatenate(every, axis=1)
    columns = columns[:, np.lexsort(columns[::-1])]
    new = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))[: columns.shape[1]]
    return Transfers.of(len(asking), *columns[:, new])


def _moved(record: Record, number: dict[str, int], asking: Mask) -> Floats:
    """Return group cell, begin and end of each collective of a step (3, collectives)."""
    plan, cells = record.shape.plan, list[list[int]]()
    sides = [{(call.group, "send" if call.op == "send" else "") for call in one.calls} for one in plan.activities]
    for rank, activity in zip(record.shape.task_rank.tolist(), plan.does.tolist(), strict=True):
        own = [number[family] + plan.group(rank, family, side) for family, side in sides[activity]]
        cells.append([one for one in own if asking[one]])
    first = np.cumsum([0, *map(len, cells)])
    cell, task = np.array([c for own in cells for c in own], np.int64), record.shape.event_task
    event = np.repeat(np.arange(len(task)), lengths(first)[task])
    return np.array([cell[entries(first, task)], record.starts[event], record.ends[event]])


def _parts(shares: LinkShares, times: Transfers, links: Ints) -> Iterator[Ints]:
    """Yield indices into `links`, in parts of at most _MAX_TRANSFERS transfers."""
    each = offsets(lengths(times.start)[shares.cell])
    count = np.cumsum(each[shares.start[links + 1]] - each[shares.start[links]])
    cuts = np.flatnonzero(np.diff(count // _MAX_TRANSFERS)) + 1
    yield from np.split(np.arange(len(links)), cuts)


def levels(shares: LinkShares, times: Transfers, links: Ints) -> tuple[Ints, Ints, Floats]:
    """Return columns with a row for each begin and end of a transfer on `links`, in the order of links and times.

    They are: index of the link in `links`; cell of the transfer + 1, negative at its end; share of the link in use afterwards.
    """
    uses = entries(shares.start, links)
    cell = shares.cell[uses]
    when, often = entries(times.start, cell), lengths(times.start)[cell]
    row = np.repeat(np.repeat(np.arange(len(links)), lengths(shares.start)[links]), often)
    # one sort of whole numbers takes a fifth of sorting rows by link and time
    order = np.argsort(np.concatenate(row * times.turn.size + times.turn[:, when]))
    cell, share, row = np.repeat(cell + 1, often), np.repeat(shares.share[uses], often), np.tile(row, 2)[order]
    return row, np.append(cell, -cell)[order], _running(row, np.append(share, -share)[order])


def _running(row: Ints, change: Floats | Ints) -> Floats:
    """Return the running sum of `change` within each row; row: the row of each change, sorted."""
    level = np.cumsum(change, dtype=float)
    start = np.flatnonzero(np.diff(row, prepend=-1))
    level -= np.repeat(np.append(0.0, level)[start], np.diff(np.append(start, len(row))))
    return level
