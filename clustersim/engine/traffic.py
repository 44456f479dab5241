"""The transfers of jobs as loads on links, before anything is folded.

A family is a set of like groups of ranks: all tensor-parallel groups, all data-parallel groups, all pairs of neighbouring
pipeline stages. One phase of one collective over all groups of a family is one `Traffic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct
from clustersim.collectives.idle import loads
from clustersim.collectives.loads import Feeders
from clustersim.collectives.model import AllPairs, Phase
from clustersim.topology.model import Topology

FITS = 1 + 1e-9


class Family(NamedTuple):
    """Groups of GPUs that communicate: `ranks` is (groups, n), position by position. `levels` as in collectives.Group.

    job: the number of the job that it belongs to. `shares`, by
    position, are those of collectives.Group.
    """

    name: str
    ranks: Ints
    levels: tuple[int, ...]
    algorithm: str
    eras: Mapping[str, int] = MappingProxyType({})  # by collective; a job's of different eras never run at once
    job: int = 0
    shares: tuple[float, ...] = ()


class Traffic(NamedTuple):
    """One phase of collective `op` over all groups of a family of a job.

    latency (s) and bound (bytes/s of the collective's size on an idle fabric) are by group. The arrays `group`, `link`,
    `weight` list, sorted by group, the bytes that cross a link for each byte of the collective; `find`, `feeders`: as in
    PhaseLoads.
    """

    family: str
    op: str
    era: int
    latency: Floats
    bound: Floats
    group: Ints
    link: Ints
    weight: Floats
    find: Callable[[], tuple[Feeders, Feeders]]
    job: int = 0

    @property
    def feeders(self) -> tuple[Feeders, Feeders]:
        """The first and the last feeders, (link, feeder) each."""
        return self.find()


def traffic(topology: Topology, family: Family, op: str, phases: Sequence[Phase | AllPairs]) -> tuple[Traffic, ...]:
    """Return the phases of collective `op` over every group of `family`; none where there is no group of two or more."""
    groups, n = family.ranks.shape
    return tuple(_phase(topology, family, op, part) for part in phases) if groups and n > 1 else ()


def _phase(topology: Topology, family: Family, op: str, part: Phase | AllPairs) -> Traffic:
    latency, bound, group, link, weight, find = loads(topology, family.ranks, part)
    era = family.eras.get(op, 0)
    return Traffic(family.name, op, era, latency, bound, group, link, weight, find, family.job)


class Held(NamedTuple):
    """The part of a Traffic that matters to max-min rates: loads on scarce links, these by their place in the list of them."""

    family: str
    op: str
    group: Ints
    link: Ints
    weight: Floats


def scarce(topology: Topology, all_traffic: Sequence[Traffic]) -> tuple[Ints, tuple[Held, ...]]:
    """Return the links that could ever be short, sorted, and what each traffic puts on them.

    A link is left out of an era of a job when nothing can fill it: (a) the bounds of all that may use it at once, everything
    of other jobs included, fit, counting each group once, or (b) the narrowest links on the way of its bytes, being full
    themselves, could not fill it. Both are exact: such a link never decides a max-min rate. Whatever eras meet, each job has
    judged a superset of what is under way, so a link that this can fill is left out by none of them.
    """
    masks = {when: _scarce(topology, _together(all_traffic, *when)) for when in {(t.job, t.era) for t in all_traffic}}
    union = np.flatnonzero(np.logical_or.reduce([*masks.values(), np.zeros(len(topology.capacity), bool)]))
    place = np.full(len(topology.capacity), -1)
    place[union] = np.arange(len(union))
    held = []
    for t in all_traffic:
        kept = np.flatnonzero(masks[t.job, t.era][t.link])
        held.append(Held(t.family, t.op, t.group[kept], place[t.link[kept]], t.weight[kept]))
    return union, tuple(held)


def _together(all_traffic: Sequence[Traffic], job: int, era: int) -> list[Traffic]:
    """Return what can be under way while a job is in an era."""
    return [t for t in all_traffic if t.era == era or t.job != job]


def _scarce(topology: Topology, all_traffic: Sequence[Traffic]) -> Mask:
    candidates: Mask = _demand(topology, all_traffic) > topology.capacity * FITS
    if not candidates.any():
        return candidates
    # links that imply others must stay, or two could excuse each other
    feeding = np.zeros(len(topology.capacity) + 1, bool)
    for t in all_traffic:
        for _, feeder in t.feeders:
            feeding[feeder] = True
    for side in (0, 1):
        candidates &= feeding[:-1] | ~_implied(topology, all_traffic, candidates & ~feeding[:-1], side)
    return candidates


def _demand(topology: Topology, all_traffic: Sequence[Traffic]) -> Floats:
    """Return the bytes/s over each link when every group runs its heaviest phase at its bound."""
    links = len(topology.capacity)
    demand = np.zeros(links)
    for name in dict.fromkeys(t.family for t in all_traffic):
        own = [np.bincount(t.link, _asked(t), links) for t in all_traffic if t.family == name]
        demand += np.max(own, axis=0)
    return demand


def _asked(t: Traffic) -> Floats:
    """Return the bytes/s of each entry at the bound of its group."""
    bound: Floats = t.bound if len(t.bound) == 1 else t.bound[t.group]
    return t.weight * bound


def _implied(topology: Topology, all_traffic: Sequence[Traffic], candidates: Mask, side: int) -> Mask:
    """Return the mask of candidates whose distinct first (side 0) or last (side 1) feeders together fit into them."""
    capacity = np.append(topology.capacity, np.inf)  # of a feeder beyond the last link
    links = len(capacity)
    pairs = distinct(np.concatenate([_pairs(t, candidates, side, links) for t in all_traffic] or [np.empty(0, int)]))
    feed = np.bincount(pairs // links, capacity[pairs % links], links)[:-1]
    implied: Mask = feed <= topology.capacity * FITS
    return implied


def _pairs(t: Traffic, ask: Mask, side: int, links: int) -> Ints:
    link, feeder = t.feeders[side]
    kept = ask[link]
    return distinct(link[kept] * links + feeder[kept])
