"""The bytes that the phases of a collective put on links, for many groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Exchange, Phase
from clustersim.collectives.paths import route
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
    groups, hops = len(ranks), len(phase.source)
    routes = route(topology, ranks, phase)
    return Loads(
        routes.latency.reshape(groups, hops).max(axis=1),
        np.repeat(np.arange(groups), np.diff(routes.start[:: max(hops, 1)])),
        routes.links,
        np.repeat(np.tile(phase.fraction, groups), np.diff(routes.start)) * routes.share,
        cache(partial(_pins, topology, routes)),
    )


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
