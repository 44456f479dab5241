"""Links that could have been bottlenecks in a simulation that ignored them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct, entries, offsets, summed
from clustersim.engine.contention import contended, peaks
from clustersim.engine.fold.refinement import alike
from clustersim.engine.network import Demand, Network
from clustersim.engine.record import Record
from clustersim.engine.traffic import FITS

_MAX_TRANSFERS = 4_000_000  # beginnings of transfers that are looked at in one go
_CELL = 32  # bits of a group cell's number


class _Shares(NamedTuple):
    """Largest share of a link that all groups of a group cell take: rows of link i are start[i] to start[i + 1]."""

    start: Ints
    cell: Ints
    share: Floats

    @property
    def link(self) -> Ints:
        """Link of each row (rows,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def some(self, rows: Mask) -> _Shares:
        """Return the shares of the masked rows."""
        start = offsets(rows)[self.start]
        return _Shares(start, self.cell[rows], self.share[rows])


class _Times(NamedTuple):
    """Times in seconds when the groups of each cell were active: those of cell c are start[c] to start[c + 1]."""

    start: Ints
    begun: Floats
    over: Floats


def saturated_links(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> Mask:
    """Return a mask of `demand.links` that the transfers active at one time could fill at their bounds.

    nets, records: of each job, from a simulation with or without these links; each record list has all steps.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    first = [0, *(own[""] for own in number)]
    each = np.array(
        [
            _most(shares.some((shares.cell >= begin) & (shares.cell < own[""])), [steps], [own])
            for begin, own, steps in zip(first, number, records, strict=False)
        ]
    )
    most: Floats = each.max(axis=0)
    several = (most <= FITS) & (each.sum(axis=0) > FITS)
    if several.any():
        most = np.maximum(most, _most(shares.some(several[shares.link]), records, number))
    short: Mask = most > FITS
    return short


def jobs_contend(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> bool:
    """Return whether transfers of several jobs could have filled a link together; the arguments are those of `saturated_links`.

    If none could, each job moves as if alone, also on links that it fills itself at other times.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    ends = [own[""] for own in number]
    pairs = distinct(shares.link * len(nets) + np.searchsorted(ends, shares.cell, side="right"))
    shares = shares.some((np.bincount(pairs // len(nets), minlength=len(demand.links)) > 1)[shares.link])
    if not len(shares.cell):
        return False
    asking = np.zeros(ends[-1], bool)
    asking[shares.cell] = True
    times = _times(records, number, asking)
    transfer, often = entries(times.start, shares.cell), np.diff(times.start)[shares.cell]
    job = np.searchsorted(ends, np.repeat(np.arange(ends[-1]), np.diff(times.start)), side="right")
    link, share = np.repeat(shares.link, often), np.repeat(shares.share, often)
    found = contended(transfer, link, share, times.begun, times.over)
    return any(len(distinct(job[group])) > 1 for group in found.groups())


def _most(shares: _Shares, records: Sequence[Sequence[Record]], number: Sequence[dict[str, int]]) -> Floats:
    """Return the largest share of each link that was in use at one time (links,)."""
    asking = np.zeros(number[-1][""], bool)
    asking[shares.cell] = True
    times = _times(records, number, asking)
    first, of = alike(len(shares.start) - 1, shares.link, shares.cell, shares.share)
    found: Floats = np.concatenate(
        [np.empty(0), *(_peaks(shares, times, part) for part in _parts(shares, times, first))]
    )[of]
    return found


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


def _shares(demand: Demand, nets: Sequence[Network]) -> _Shares:
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
    found = _Shares(np.searchsorted(link, np.arange(links + 1)), key & ((1 << _CELL) - 1), most)
    return found.some((summed(link, most, links) > FITS)[link])


def _times(records: Sequence[Sequence[Record]], numbers: Sequence[dict[str, int]], asking: Mask) -> _Times:
    """Return the distinct (begin, end) times of the collectives of each group cell that uses a link of interest."""
    every = [_moved(record, own, asking) for steps, own in zip(records, numbers, strict=True) for record in steps]
    columns = np.concatenate(every, axis=1)
    columns = columns[:, np.lexsort(columns[::-1])]
    new = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))[: columns.shape[1]]
    start = np.searchsorted(columns[0, new], np.arange(numbers[-1][""] + 1))
    return _Times(start, columns[1, new], columns[2, new])


def _moved(record: Record, number: dict[str, int], asking: Mask) -> Floats:
    """Return group cell, begin and end of each collective of a step (3, collectives)."""
    plan, cells = record.shape.plan, list[list[int]]()
    sides = [{(call.group, "send" if call.op == "send" else "") for call in one.calls} for one in plan.activities]
    for rank, activity in zip(record.shape.task_rank.tolist(), plan.does.tolist(), strict=True):
        own = [number[family] + plan.group(rank, family, side) for family, side in sides[activity]]
        cells.append([one for one in own if asking[one]])
    first = np.cumsum([0, *map(len, cells)])
    cell, task = np.array([c for own in cells for c in own], np.int64), record.shape.event_task
    event = np.repeat(np.arange(len(task)), np.diff(first)[task])
    return np.array([cell[entries(first, task)], record.starts[event], record.ends[event]])


def _parts(shares: _Shares, times: _Times, links: Ints) -> Iterator[Ints]:
    """Yield parts of `links` with at most _MAX_TRANSFERS transfers each."""
    each = offsets(np.diff(times.start)[shares.cell])
    count = np.cumsum(each[shares.start[links + 1]] - each[shares.start[links]])
    cuts = np.flatnonzero(np.diff(count // _MAX_TRANSFERS)) + 1
    yield from np.split(links, cuts)


def _peaks(shares: _Shares, times: _Times, links: Ints) -> Floats:
    """Return the largest share of each link in use at one time (links,)."""
    asked = entries(shares.start, links)
    cell = shares.cell[asked]
    when = entries(times.start, cell)
    often = np.diff(times.start)[cell]
    row = np.repeat(np.repeat(np.arange(len(links)), np.diff(shares.start)[links]), often)
    share = np.repeat(shares.share[asked], often)
    return peaks(row, times.begun[when], times.over[when], share, len(links))
