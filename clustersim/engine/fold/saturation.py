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
    skipped = [record.skipped for steps in records for record in steps]
    if any(one is not None and one.lateness is not None for one in skipped):  # parts that drift apart meet at all times
        together: Mask = (
            summed(np.repeat(np.arange(len(demand.links)), np.diff(shares.start)), shares.share, len(demand.links))
            > FITS
        )
        return together
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
    """Return what each group cell takes of each link: the most of its phases, of which one runs at a time."""
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
    link = key >> _CELL
    start = np.searchsorted(link, np.arange(len(demand.links) + 1))
    return _Shares(start, key & ((1 << _CELL) - 1), most / demand.topology.capacity[demand.links[link]])


def _times(records: Sequence[Sequence[Record]], numbers: Sequence[dict[str, int]], asking: Mask) -> _Times:
    """Return when each group cell was under way, of those that ask for any link; ranks of one group say so several times."""
    every = [_moved(record, own, asking) for steps, own in zip(records, numbers, strict=True) for record in steps]
    columns = np.concatenate(every, axis=1)
    columns = columns[:, np.lexsort(columns[::-1])]
    new = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))[: columns.shape[1]]
    start = np.searchsorted(columns[0, new], np.arange(numbers[-1][""] + 1))
    return _Times(start, columns[1, new], columns[2, new])


def _moved(record: Record, number: dict[str, int], asking: Mask) -> Floats:
    """Return of a step the group cells that were under way, from when, and until when: three rows."""
    cells = [
        [one for variant, c in task.activity.carried if asking[one := number[variant[0]] + c]]
        for task in record.tasks.alike
    ]
    first = np.cumsum([0, *map(len, cells)])
    cell, parts = np.array([c for own in cells for c in own], np.int64), record.graph.occurrences
    node = np.repeat(parts.node, np.diff(first)[parts.task])
    return np.array([cell[entries(first, parts.task)], record.starts[node], record.ends[node]])


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
