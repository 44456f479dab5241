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
from clustersim.engine.flows import FITS
from clustersim.model.router import ExpertRouter
from clustersim.topology.host_links import transfer
from clustersim.topology.model import Topology

Variant = tuple[str, str, str, tuple[int, ...], tuple[int, ...]]
"""(family, op, algorithm, levels, sizes) of a collective; collectives of one variant load links equally per byte."""


class Family(NamedTuple):
    """Groups of GPUs, or of a job's ranks, that run the same collectives, messages or copies."""

    name: str
    ranks: Ints
    """GPUs or ranks of the groups, by position (groups, n)."""
    levels: tuple[int, ...]
    """Fan-outs of a group, as in `collectives.model.Group`; () if the algorithm does not use them."""
    algorithm: str
    """Name of the algorithm; empty for messages and copies."""
    eras: Mapping[str, int] = MappingProxyType({})
    """{op: era}, default 0; collectives of one job in different eras never run at the same time."""
    job: int = 0
    """Index of the job."""
    shares: tuple[float, ...] = ()
    """Share of all rows for each position's experts, as in `collectives.model.Group`; () if equal."""
    router: ExpertRouter | None = None
    """Distribution of tokens over experts, as in `collectives.model.Group`."""
    communicators: Ints | None = None
    """GPUs or ranks of the communicators that messages use (communicators, m), assigned to groups in rotation; None: each group
    is a communicator."""
    host: tuple[str, int | None] | None = None
    """(column of `Topology.hosts` with the links, threads of an update; None: all) for copies to and from hosts and updates
    there; None for others."""


class Traffic(NamedTuple):
    """One phase of collective `op` over all groups of a family of a job.

    The arrays `group`, `link` and `weight` have an entry per load and are sorted by group.
    """

    family: str
    op: str
    era: int
    """Era of the collective, as in `Family.eras`."""
    latency: Floats
    """Latency in seconds of each group (groups,)."""
    bound: Floats
    """Bytes/s of the collective's size on an idle fabric (groups,)."""
    group: Ints
    """Group of each load."""
    link: Ints
    """Link of each load: an index into all links, or into the scarce ones after `scarce`."""
    weight: Floats
    """Bytes that cross the link per byte of the collective's size."""
    find: Callable[[], tuple[Feeders, Feeders]]
    """Function that computes `feeders`, as in PhaseLoads."""
    job: int = 0
    """Index of the job."""
    near: tuple[Ints, Phase] | None = None
    """(GPUs of the groups, phase) if links that are never a bottleneck are left out; None: all links are present."""

    @property
    def feeders(self) -> tuple[Feeders, Feeders]:
        """Feeders of links, near the sources and near the destinations, as in `PhaseLoads.feeders`."""
        return self.find()

    def bare(self) -> Traffic:
        """Return the traffic without its loads, which take most memory, if `everywhere` can recompute them; else itself."""
        none = np.empty(0, np.int64)
        empty = self._replace(group=none, link=none, weight=np.empty(0), find=lambda: ((none, none), (none, none)))
        return self if self.near is None else empty

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
        rows = entries(start, groups)
        return np.repeat(np.arange(len(groups)), lengths(start)[groups]), self.link[rows], self.weight[rows]

    def bytes_on_links(self, topology: Topology, size: Floats) -> Floats:
        """Return the bytes that all groups put on every link (links,). size: bytes of each group's collective (groups,)."""
        if self.near is not None:
            return bytes_on_links(topology, *self.near, size)
        return summed(self.link, self.weight * size[self.group], len(topology.capacity))


def traffic(
    topology: Topology, family: Family, op: str, phases: Sequence[Phase | AllPairs], hops: bool = True
) -> tuple[Traffic, ...]:
    """Return the traffic of each phase of collective `op` over all groups of `family`; () if groups have fewer than two ranks.

    A family with `host` has one phase of copies, whatever `phases` are. Links between switches that can never be bottlenecks are
    left out. hops: whether to compute the latency of routes; else latencies are 0.
    """
    groups, n = family.ranks.shape
    if family.host:
        return (_host_traffic(topology, family, op),)
    return tuple(_phase(topology, family, op, phase, hops) for phase in phases) if groups and n > 1 else ()


def _phase(topology: Topology, family: Family, op: str, phase: Phase | AllPairs, hops: bool) -> Traffic:
    """Return the traffic of one phase over all groups of `family`; latencies are 0 without `hops`."""
    near_topology, group_phase = topology.up_to_nics(), None
    if near_topology and isinstance(phase, Phase):
        group_phase = family.ranks, phase
        latency, bound, group, link, weight, find = node_loads(near_topology, *group_phase)
        latency = pair_latency(topology, *group_phase) if hops else latency
    else:
        latency, bound, group, link, weight, find = loads(topology, family.ranks, phase)
    era = family.eras.get(op, 0)
    latency = latency if hops else np.zeros(len(latency))
    return Traffic(family.name, op, era, latency, bound, group, link, weight, find, family.job, group_phase)


def _host_traffic(topology: Topology, family: Family, op: str) -> Traffic:
    """Return the traffic of a family with `host`: each rank's copies to or from its host, or its updates there."""
    column, threads = family.host or ("", None)
    latency, bound, links, weight = transfer(topology, column, family.ranks[:, 0], threads)
    group, link = np.repeat(np.arange(len(links)), links.shape[1]), links.ravel()
    no_feeder = link, np.full(len(link), len(topology.capacity))  # no link, so that the copies can fill theirs
    return Traffic(
        family.name, op, 0, latency, bound, group, link, weight.ravel(), lambda: (no_feeder, no_feeder), family.job
    )


def scarce(topology: Topology, all_traffic: Sequence[Traffic]) -> tuple[Ints, tuple[Traffic, ...]]:
    """Return the scarce links, sorted, and each traffic with only its loads on them, as indices into that list.

    A scarce link can be a bottleneck. Other links are left out of an era of a job because nothing can fill them: (a) the bounds
    of all flows that may use the link at once, those of other jobs included, fit, counting each group once; or (b) the narrowest
    links on the routes of its bytes, even if full, could not fill it. Both are exact: such a link never decides a max-min rate.
    Whichever eras run at the same time, each job has judged a superset of the flows under way, so no job leaves out a link that
    these flows can fill.
    """
    masks = {  # links that can be filled by all traffic that can run at the same time as an era of a job
        (job, era): _overfillable(topology, [t for t in all_traffic if t.era == era or t.job != job])
        for job, era in {(t.job, t.era) for t in all_traffic}
    }
    union = np.flatnonzero(np.logical_or.reduce([*masks.values(), np.zeros(len(topology.capacity), bool)]))
    scarce_index = np.full(len(topology.capacity), -1)
    scarce_index[union] = np.arange(len(union))
    reduced = []
    for t in all_traffic:
        kept = np.flatnonzero(masks[t.job, t.era][t.link])
        reduced.append(t.bare()._replace(group=t.group[kept], link=scarce_index[t.link[kept]], weight=t.weight[kept]))
    return union, tuple(reduced)


def _overfillable(topology: Topology, all_traffic: Sequence[Traffic]) -> Mask:
    """Return which links the traffic can overfill (links,), without links whose feeders cannot fill them."""
    candidates: Mask = _peak_demand(topology, all_traffic) > topology.capacity * FITS
    if not candidates.any():
        return candidates
    loading = [t for t in all_traffic if candidates[t.link].any()]
    # feeders of other links must stay, or two links could excuse each other
    feeding = np.zeros(len(topology.capacity) + 1, bool)
    for t in loading:
        for _, feeder in t.feeders:
            feeding[feeder] = True
    for side in (0, 1):
        removable = candidates & ~feeding[:-1]
        if removable.any():
            candidates &= ~removable | ~_fed_within_capacity(topology, loading, removable, side)
    return candidates


def _peak_demand(topology: Topology, all_traffic: Sequence[Traffic]) -> Floats:
    """Return the bytes/s over each link if every group runs its heaviest phase on that link at its bound (links,)."""
    links = len(topology.capacity)
    demand = np.zeros(links)
    for name in dict.fromkeys(t.family for t in all_traffic):
        phases = [t for t in all_traffic if t.family == name]
        rates = [t.weight * (t.bound if len(t.bound) == 1 else t.bound[t.group]) for t in phases]
        demand += np.max([np.bincount(t.link, rate, links) for t, rate in zip(phases, rates, strict=True)], axis=0)
    return demand


def _fed_within_capacity(topology: Topology, all_traffic: Sequence[Traffic], candidates: Mask, side: int) -> Mask:
    """Return which candidates are links whose distinct feeders have together no more capacity than the link (links,).

    side: 0 for feeders near the sources, 1 for those near the destinations.
    """
    capacity = np.append(topology.capacity, np.inf)  # infinite for a feeder beyond the last link
    links = len(capacity)
    pairs = distinct(
        np.concatenate([_feeder_pairs(t, candidates, side, links) for t in all_traffic] or [np.empty(0, int)])
    )
    feeder_rates = np.bincount(pairs // links, capacity[pairs % links], links)[:-1]
    fed: Mask = feeder_rates <= topology.capacity * FITS
    return fed


def _feeder_pairs(t: Traffic, candidates: Mask, side: int, links: int) -> Ints:
    """Return link · `links` + feeder of each candidate link and feeder, each pair once. side: as in `_fed_within_capacity`."""
    link, feeder = t.feeders[side]
    kept = candidates[link]
    return distinct(link[kept] * links + feeder[kept])
