"""Transfers of jobs as loads on links, before folding.

A family is a set of similar groups of ranks: all tensor-parallel groups, all data-parallel groups, all pairs of neighbouring
pipeline stages. One phase of one collective over all groups of a family is one `Traffic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct, entries, lengths, summed
from clustersim.collectives.idle import loads
from clustersim.collectives.loads import Feeders, bytes_on_links, node_loads, pair_latency, unbounded_loads
from clustersim.collectives.model import AllPairs, Phase
from clustersim.model.router import ExpertRouter
from clustersim.topology.host_links import transfer
from clustersim.topology.model import Topology

FITS = 1 + 1e-9
Variant = tuple[str, str, str, tuple[int, ...], tuple[int, ...]]
"""A collective by (family, op, algorithm, levels, sizes)."""


class Family(NamedTuple):
    """Groups of GPUs that communicate."""

    name: str
    ranks: Ints
    """GPUs of the groups, by position (groups, n)."""
    levels: tuple[int, ...]
    """As in collectives.Group."""
    algorithm: str
    eras: Mapping[str, int] = MappingProxyType({})
    """{collective: era}; collectives of one job in different eras never run at the same time."""
    job: int = 0
    """Index of its job."""
    shares: tuple[float, ...] = ()
    """Shares by position, as in collectives.Group."""
    router: ExpertRouter | None = None
    """As in collectives.Group."""
    communicators: Ints | None = None
    """GPUs of the communicators that messages use (communicators, m), assigned to groups in rotation; None: one per group."""
    host: tuple[str, int | None] | None = None
    """For copies to and from hosts and updates there: the links that they use and the threads of an update; None for others."""


class Traffic(NamedTuple):
    """One phase of collective `op` over all groups of a family of a job.

    The arrays `group`, `link` and `weight` have equal length and are sorted by group.
    """

    family: str
    op: str
    era: int
    latency: Floats
    """Latency in seconds of each group (groups,)."""
    bound: Floats
    """Bytes/s of the collective's size on an idle fabric (groups,)."""
    group: Ints
    link: Ints
    weight: Floats
    """Bytes that cross a link per byte of the collective."""
    find: Callable[[], tuple[Feeders, Feeders]]
    """Function that computes `feeders`, as in PhaseLoads."""
    job: int = 0
    near: tuple[Ints, Phase] | None = None
    """GPUs of the groups and the phase, if links that are never a bottleneck are left out; None: all links are present."""

    @property
    def feeders(self) -> tuple[Feeders, Feeders]:
        """The first and the last feeders, (link, feeder) each."""
        return self.find()

    def bare(self) -> Traffic:
        """Return the traffic without its loads if `everywhere` can recompute them: they take a hundred times the memory."""
        none = np.empty(0, np.int64)
        return self if self.near is None else self._replace(group=none, link=none, weight=np.empty(0), find=_no_feeders)

    def everywhere(self, topology: Topology) -> Traffic:
        """Return the traffic with its loads on all links."""
        if self.near is None:
            return self
        _, _, group, link, weight, find = unbounded_loads(topology, *self.near)
        return self._replace(group=group, link=link, weight=weight, find=find, near=None)

    def of_groups(self, topology: Topology, groups: Ints) -> tuple[Ints, Ints, Floats]:
        """Return the loads on all links of the groups with indices `groups` in the family, as three arrays of equal length.

        They are the position in `groups`, the link, and the bytes that cross it per byte of the collective.
        """
        if self.near is not None:
            ranks, phase = self.near
            return unbounded_loads(topology, ranks[groups], phase)[2:5]
        start = np.searchsorted(self.group, np.arange(len(self.bound) + 1))
        own = entries(start, groups)
        return np.repeat(np.arange(len(groups)), lengths(start)[groups]), self.link[own], self.weight[own]

    def bytes_on_links(self, topology: Topology, size: Floats) -> Floats:
        """Return the bytes that all groups together put on every link, given the size of each one's collective in bytes."""
        if self.near is not None:
            return bytes_on_links(topology, *self.near, size)
        return summed(self.link, self.weight * size[self.group], len(topology.capacity))


def _no_feeders() -> tuple[Feeders, Feeders]:
    """Return empty feeders of sources and of destinations."""
    none = np.empty(0, np.int64)
    return (none, none), (none, none)


def traffic(
    topology: Topology, family: Family, op: str, phases: Sequence[Phase | AllPairs], hops: bool = True
) -> tuple[Traffic, ...]:
    """Return the phases of collective `op` over every group of `family`; () if no group has two or more ranks.

    Links between switches that can never be bottlenecks are left out. hops: whether to compute the latency of routes.
    """
    groups, n = family.ranks.shape
    if family.host:
        return (_of_hosts(topology, family, op),)
    return tuple(_phase(topology, family, op, part, hops) for part in phases) if groups and n > 1 else ()


def _phase(topology: Topology, family: Family, op: str, part: Phase | AllPairs, hops: bool) -> Traffic:
    """Return the traffic of one phase of a collective on the links; latencies are zero without `hops`."""
    close, near = topology.up_to_nics(), None
    if close and isinstance(part, Phase):
        near = family.ranks, part
        latency, bound, group, link, weight, find = node_loads(close, *near)
        latency = pair_latency(topology, *near) if hops else latency
    else:
        latency, bound, group, link, weight, find = loads(topology, family.ranks, part)
    era = family.eras.get(op, 0)
    latency = latency if hops else np.zeros(len(latency))
    return Traffic(family.name, op, era, latency, bound, group, link, weight, find, family.job, near)


def _of_hosts(topology: Topology, family: Family, op: str) -> Traffic:
    """Return the copies of ranks to or from their hosts, or their updates there."""
    way, threads = family.host or ("", None)
    latency, bound, links, weight = transfer(topology, way, family.ranks[:, 0], threads)
    group, link = np.repeat(np.arange(len(links)), links.shape[1]), links.ravel()
    nobody = link, np.full(len(link), len(topology.capacity))  # that is narrow
    return Traffic(
        family.name, op, 0, latency, bound, group, link, weight.ravel(), lambda: (nobody, nobody), family.job
    )


def scarce(topology: Topology, all_traffic: Sequence[Traffic]) -> tuple[Ints, tuple[Traffic, ...]]:
    """Return the links that could ever be short, sorted, and each traffic with its loads on them alone, by place in that list.

    A link is left out of an era of a job when nothing can fill it: (a) the bounds of all that may use it at once, everything
    of other jobs included, fit, counting each group once, or (b) the narrowest links on the way of its bytes, being full
    themselves, could not fill it. Both are exact: such a link never decides a max-min rate. Whatever eras meet, each job has
    judged a superset of what is under way, so a link that this can fill is left out by none of them.
    """
    masks = {  # of what can run at the same time as an era of a job
        (job, era): _scarce(topology, [t for t in all_traffic if t.era == era or t.job != job])
        for job, era in {(t.job, t.era) for t in all_traffic}
    }
    union = np.flatnonzero(np.logical_or.reduce([*masks.values(), np.zeros(len(topology.capacity), bool)]))
    place = np.full(len(topology.capacity), -1)
    place[union] = np.arange(len(union))
    found = []
    for t in all_traffic:
        kept = np.flatnonzero(masks[t.job, t.era][t.link])
        found.append(t.bare()._replace(group=t.group[kept], link=place[t.link[kept]], weight=t.weight[kept]))
    return union, tuple(found)


def _scarce(topology: Topology, all_traffic: Sequence[Traffic]) -> Mask:
    """Return which links can be overfilled, shape (links,), without links that another scarce link implies."""
    candidates: Mask = _demand(topology, all_traffic) > topology.capacity * FITS
    if not candidates.any():
        return candidates
    loading = [t for t in all_traffic if candidates[t.link].any()]
    # links that imply others must stay, or two could excuse each other
    feeding = np.zeros(len(topology.capacity) + 1, bool)
    for t in loading:
        for _, feeder in t.feeders:
            feeding[feeder] = True
    for side in (0, 1):
        asked = candidates & ~feeding[:-1]
        if asked.any():
            candidates &= ~asked | ~_implied(topology, loading, asked, side)
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
    """Return the bytes/s of each load if its group runs at its bound."""
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
