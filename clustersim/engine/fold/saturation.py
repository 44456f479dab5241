"""Which links could have been short in a simulation that did not know them."""

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
    """The share of a link that all groups of a group cell take at most: those of link i are start[i] to start[i + 1]."""

    start: Ints
    cell: Ints
    share: Floats

    @property
    def link(self) -> Ints:
        """The link of each row."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def some(self, rows: Mask) -> _Shares:
        """Return those of some rows."""
        start = offsets(rows)[self.start]
        return _Shares(start, self.cell[rows], self.share[rows])


class _Times(NamedTuple):
    """When the groups of each cell were under way, in seconds: those of cell c are start[c] to start[c + 1]."""

    start: Ints
    begun: Floats
    over: Floats


def saturated_links(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> Mask:
    """Return the mask of `demand.links` that all that was under way at one time could fill at its bounds.

    nets, records: of each of its jobs, from a simulation of them, whether or not that knew these links; each has all steps.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    first = [0, *(own[""] for own in number)]
    each = np.array(
        [
            _most_of_job(shares.some((shares.cell >= begin) & (shares.cell < own[""])), steps, own)
            for begin, own, steps in zip(first, number, records, strict=False)
        ]
    )
    most: Floats = each.max(axis=0)
    several = (most <= FITS) & (each.sum(axis=0) > FITS)
    if several.any():
        most = np.maximum(most, _most(shares.some(several[shares.link]), records, number, copies=True))
    short: Mask = most > FITS
    return short


def jobs_contend(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> bool:
    """Return whether transfers of several jobs could have filled a link together; the arguments are those of `saturated_links`.

    Where none could, each job moves as if it was alone, also on links that it fills itself at other times.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    ends = [own[""] for own in number]
    pairs = distinct(shares.link * len(nets) + np.searchsorted(ends, shares.cell, side="right"))
    shares = shares.some((np.bincount(pairs // len(nets), minlength=len(demand.links)) > 1)[shares.link])
    if not len(shares.cell):
        return False
    if any(step.skipped and step.skipped.lateness for steps in records for step in steps):  # as in _most_of_job
        return True
    asking = np.zeros(ends[-1], bool)
    asking[shares.cell] = True
    times = _times(records, number, asking, copies=True)
    transfer, often = entries(times.start, shares.cell), np.diff(times.start)[shares.cell]
    job = np.searchsorted(ends, np.repeat(np.arange(ends[-1]), np.diff(times.start)), side="right")
    link, share = np.repeat(shares.link, often), np.repeat(shares.share, often)
    found = contended(transfer, link, share, times.begun, times.over)
    return any(len(distinct(job[group])) > 1 for group in found.groups())


def _most_of_job(shares: _Shares, steps: Sequence[Record], number: dict[str, int]) -> Floats:
    """Return the largest share of each link that a job asks for at one time: each of its skipped periods has what others have."""
    if any(step.skipped and step.skipped.lateness for step in steps):  # parts that drift apart meet at all times
        return summed(shares.link, shares.share, len(shares.start) - 1)
    return _most(shares, [steps], [number], copies=False)


def _most(
    shares: _Shares, records: Sequence[Sequence[Record]], number: Sequence[dict[str, int]], copies: bool
) -> Floats:
    """Return the largest share of each link that was asked for at one time; copies: in skipped periods too."""
    asking = np.zeros(number[-1][""], bool)
    asking[shares.cell] = True
    times = _times(records, number, asking, copies)
    first, of = alike(len(shares.start) - 1, shares.link, shares.cell, shares.share)
    found: Floats = np.concatenate(
        [np.empty(0), *(_peaks(shares, times, part) for part in _parts(shares, times, first))]
    )[of]
    return found


def _numbers(nets: Sequence[Network]) -> list[dict[str, int]]:
    """Return, by job, where the group cells of each family begin when those of all are numbered through, and where they end."""
    number, result = 0, []
    for net in nets:
        own = {}
        for family, cells in net.cells.groups.items():
            own[family] = number
            number += len(cells.first)
        result.append({**own, "": number})
    return result


def _shares(demand: Demand, nets: Sequence[Network]) -> _Shares:
    """Return what each group cell takes of each link that all could fill: the most of its phases, of which one runs at a time."""
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


def _times(
    records: Sequence[Sequence[Record]], numbers: Sequence[dict[str, int]], asking: Mask, copies: bool
) -> _Times:
    """Return when each group cell was under way, of those that ask for any link; ranks of one group say so several times."""
    every = [
        _moved(record, own, asking, copies) for steps, own in zip(records, numbers, strict=True) for record in steps
    ]
    columns = np.concatenate(every, axis=1)
    columns = columns[:, np.lexsort(columns[::-1])]
    new = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))[: columns.shape[1]]
    start = np.searchsorted(columns[0, new], np.arange(numbers[-1][""] + 1))
    return _Times(start, columns[1, new], columns[2, new])


def _moved(record: Record, number: dict[str, int], asking: Mask, copies: bool) -> Floats:
    """Return of a step the group cells that were under way, from when, and until when: three rows.

    copies: those of skipped periods too.
    """
    cells = [
        [one for variant, c in task.activity.carried if asking[one := number[variant[0]] + c]]
        for task in record.tasks.alike
    ]
    first = np.cumsum([0, *map(len, cells)])
    cell, parts = np.array([c for own in cells for c in own], np.int64), record.graph.occurrences
    cell, node = cell[entries(first, parts.task)], np.repeat(parts.node, np.diff(first)[parts.task])
    if not copies:
        return np.array([cell, record.starts[node], record.ends[node]])
    row, late = record.occurring(node)
    cell, node = cell[row], node[row]
    return np.array([cell, record.starts[node] + late, record.ends[node] + late])


def _parts(shares: _Shares, times: _Times, links: Ints) -> Iterator[Ints]:
    """Cut `links` so that no part has too many transfers."""
    each = offsets(np.diff(times.start)[shares.cell])
    count = np.cumsum(each[shares.start[links + 1]] - each[shares.start[links]])
    cuts = np.flatnonzero(np.diff(count // _MAX_TRANSFERS)) + 1
    yield from np.split(links, cuts)


def _peaks(shares: _Shares, times: _Times, links: Ints) -> Floats:
    """Return the largest share of each link that was asked for at one time; what ends makes room for what begins then."""
    asked = entries(shares.start, links)
    cell = shares.cell[asked]
    when = entries(times.start, cell)
    often = np.diff(times.start)[cell]
    row = np.repeat(np.repeat(np.arange(len(links)), np.diff(shares.start)[links]), often)
    share = np.repeat(shares.share[asked], often)
    return peaks(row, times.begun[when], times.over[when], share, len(links))
