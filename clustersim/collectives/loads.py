"""The bytes that the phases of a collective put on links, for many groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Exchange, Phase
from clustersim.collectives.paths import route, split
from clustersim.errors import InputError
from clustersim.topology.model import Floats, Ints, Routes, Topology

Pins = tuple[Ints, Ints]
_MOST = 1 << 21
"""Links of all ways up to which an exchange is routed pair by pair: some 200 MB."""


class TooManyWaysError(InputError):
    """An exchange has more different ways than can be laid one by one."""


class Loads(NamedTuple):
    """What one phase puts on links, in every group.

    latency: seconds of the slowest pair, by group. The arrays `group`, `link`, `weight` list, sorted by group, the bytes over a
    link for each byte of the collective's size. pins, which `find` finds: two lists of (link, pin), so that all bytes over a
    link also cross one of its pins; the narrowest links of the way, the first and the last of them. A pin beyond the last link
    stands for more than fit through the link.
    """

    latency: Floats
    group: Ints
    link: Ints
    weight: Floats
    find: Callable[[], tuple[Pins, Pins]]

    @property
    def pins(self) -> tuple[Pins, Pins]:
        """The first and the last pins, (link, pin) each."""
        return self.find()


def loads(topology: Topology, ranks: Ints, phase: Phase | Exchange) -> Loads:
    """Return the loads of a phase; ranks: GPUs (groups, n) by position.

    Raises InputError when the cluster has no NICs for a pair that needs them, TooManyWaysError for an exchange.
    """
    if isinstance(phase, Phase):
        return _pairs(topology, ranks, phase)
    if ranks.size * ranks.shape[1] * width(topology) <= _MOST:
        return _pairs(topology, ranks, phase.pairs())
    from clustersim.collectives.exchange.lay import exchanged

    return exchanged(topology, ranks, phase)


def width(topology: Topology) -> int:
    """Return how many links a long way has about, all its paths together; no fewer than 8."""
    return max(8, len(topology.route(np.zeros(1, np.int64), np.full(1, topology.gpus - 1)).links))


def _pairs(topology: Topology, ranks: Ints, phase: Phase) -> Loads:
    parts = [_laid(topology, len(ranks), route(topology, ranks, part), part.fraction) for part in split(phase)]
    if len(parts) == 1:
        return parts[0]
    latency = np.max([part.latency for part in parts], axis=0)
    link, weight = (np.concatenate([part[i] for part in parts]) for i in (2, 3))
    find = cache(partial(_together, parts))
    if len(ranks) == 1:
        return Loads(latency, np.broadcast_to(0, len(link)), link, weight, find)  # which takes no memory
    group = np.concatenate([part.group for part in parts])
    order = np.argsort(group, kind="stable")
    return Loads(latency, group[order], link[order], weight[order], find)


def _laid(topology: Topology, groups: int, routes: Routes, fraction: Floats) -> Loads:
    """Return the loads of the pairs of each group on their routes."""
    hops = len(fraction)
    weight = np.repeat(np.tile(fraction.astype(float, copy=False), groups), np.diff(routes.start))
    weight *= routes.share
    each = np.diff(routes.start[:: max(hops, 1)])
    group: Ints = np.repeat(np.arange(groups), each) if groups > 1 else np.broadcast_to(0, len(weight))
    return Loads(
        routes.latency.reshape(groups, hops).max(axis=1),
        group,
        routes.links,
        weight,
        cache(partial(_pins, topology, routes)),
    )


def _together(parts: Sequence[Loads]) -> tuple[Pins, Pins]:
    """Return the pins of all parts."""
    pins = [part.pins for part in parts]
    a, b, c, d = (np.concatenate([p[side][i] for p in pins]) for side in (0, 1) for i in (0, 1))
    return (a, b), (c, d)


def _pins(topology: Topology, routes: Routes) -> tuple[Pins, Pins]:
    first, last = narrowest(topology.capacity[routes.links], routes)
    lengths = np.diff(routes.start)
    return (routes.links, np.repeat(first, lengths)), (routes.links, np.repeat(last, lengths))


def narrowest(capacity: Floats, routes: Routes) -> tuple[Ints, Ints]:
    """Return the first and the last link of least capacity on each route (0 where a route is empty)."""
    lengths = np.diff(routes.start)
    first, last = np.zeros((2, len(lengths)), np.int64)
    full = np.flatnonzero(lengths)
    if len(full):
        least = np.repeat(np.minimum.reduceat(capacity, routes.start[full]), lengths[full])
        narrow = np.flatnonzero(capacity == least)
        begins = np.searchsorted(narrow, routes.start[full])
        first[full] = routes.links[narrow[begins]]
        last[full] = routes.links[narrow[np.append(begins[1:], len(narrow)) - 1]]
    return first, last


def bounds(topology: Topology, groups: int, group: Ints, link: Ints, weight: Floats) -> Floats:
    """Return the idle rate of each group in bytes/s: the link with the least capacity for its load decides."""
    links = len(topology.capacity)
    if groups == 1:
        total = np.bincount(link, weight, links)
        used = total > 0
        return np.array([(topology.capacity[used] / total[used]).min()])
    key, inverse = np.unique(group * links + link, return_inverse=True)
    load = np.bincount(inverse, weight)
    bound = np.full(groups, np.inf)
    np.minimum.at(bound, key // links, topology.capacity[key % links] / load)
    return bound


class Idle(NamedTuple):
    """A phase on a fabric without other traffic, by group: it takes latency + S / bound on S bytes of the collective.

    latency: seconds, rounds times the slowest pair. bound: bytes/s of the collective's size.
    """

    latency: Floats
    bound: Floats
    loads: Loads


def idle(topology: Topology, ranks: Ints, phase: Phase | Exchange) -> Idle:
    """Return what a phase takes in each group of GPUs `ranks` (groups, n) on its own; raises as `loads` does."""
    found = loads(topology, ranks, phase)
    bound = bounds(topology, len(ranks), found.group, found.link, found.weight)
    return Idle(phase.rounds * found.latency, bound, found)


def idle_rates(topology: Topology, ranks: Ints, phases: Sequence[Phase | Exchange]) -> Floats:
    """Return bytes/s of the collective's size that the links give each group of GPUs `ranks` (groups, n) on its own."""
    seconds = np.zeros(len(ranks))
    for phase in phases:
        seconds += 1 / idle(topology, ranks, phase).bound
    with np.errstate(divide="ignore"):
        return 1 / seconds
