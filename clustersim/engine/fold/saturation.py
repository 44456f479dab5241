"""Which links could have been short in a simulation that did not know them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries, summed
from clustersim.engine.contention import peaks
from clustersim.engine.fold.refinement import alike
from clustersim.engine.network import Demand, Network
from clustersim.engine.record import Record
from clustersim.engine.traffic import FITS

_MOST = 4_000_000  # beginnings of transfers that are looked at in one go
_CELL = 32  # bits of a group cell's number


class _Shares(NamedTuple):
    """The share of a link that all groups of a group cell take at most: those of link i are start[i] to start[i + 1]."""

    start: Ints
    cell: Ints
    share: Floats


class _Times(NamedTuple):
    """When the groups of each cell were under way, in seconds: those of cell c are start[c] to start[c + 1]."""

    start: Ints
    begun: Floats
    over: Floats


def overfull(demand: Demand, nets: Sequence[Network], records: Sequence[Sequence[Record]]) -> Mask:
    """Return the mask of `demand.links` that all that was under way at one time could fill at its bounds.

    nets, records: of each of its jobs, from a simulation of them, whether or not that knew these links; each has all steps.
    """
    number, shares = _numbers(nets), _shares(demand, nets)
    if len(records) == 1 and any(one.skipped and one.skipped.lateness for one in records[0]):
        drifting: Mask = np.diff(shares.start) > 0
        return drifting  # parts that drift apart meet at all times
    asking = np.zeros(number[-1][""], bool)
    asking[shares.cell] = True
    times = _times(records, number, asking)
    link = np.repeat(np.arange(len(demand.links)), np.diff(shares.start))
    first, of = alike(len(demand.links), link, shares.cell, shares.share)
    most = [_peaks(shares, times, part) for part in _parts(shares, times, first)]
    short: Mask = np.concatenate([np.empty(0), *most])[of] > FITS
    return short


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
    some = (summed(link, most, links) > FITS)[link]
    start = np.searchsorted(link[some], np.arange(links + 1))
    return _Shares(start, key[some] & ((1 << _CELL) - 1), most[some])


def _times(records: Sequence[Sequence[Record]], numbers: Sequence[dict[str, int]], asking: Mask) -> _Times:
    """Return when each group cell was under way, of those that ask for any link; ranks of one group say so several times."""
    several = len(records) > 1  # else each period has what the others have
    every = [
        _moved(record, own, asking, several) for steps, own in zip(records, numbers, strict=True) for record in steps
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
    each = np.append(0, np.cumsum(np.diff(times.start)[shares.cell]))
    count = np.cumsum(each[shares.start[links + 1]] - each[shares.start[links]])
    cuts = np.flatnonzero(np.diff(count // _MOST)) + 1
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
