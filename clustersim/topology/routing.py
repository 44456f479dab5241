"""Routes from GPU to GPU: inside a node its own links; else NIC, network, NIC.

Where the rail has to change, a step inside the node to the GPU of the other NIC comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, counted, divide, ones
from clustersim.topology.hops import EndpointClasses, FunctionHops, Hops, apart, no_symmetry
from clustersim.topology.lattice import Lattice
from clustersim.topology.model import Router, Routes
from clustersim.topology.node import Crossbars
from clustersim.topology.numbering import Numbering
from clustersim.topology.specs import BuiltFabric

_ROUNDED = 1 + 1e-12
_BATCH = 1 << 13  # pairs whose arrays stay in the cache


def router(numbering: Numbering, inner: Lattice | Crossbars, network: BuiltFabric | None, latency: Floats) -> GpuRouter:
    """Return the router of GPUs over the links that `assemble` numbers; `latency` is that of each link in seconds."""
    owner, padded = numbering.owners(), np.append(latency, 0.0)
    first, found = inner.firsts[-1], network.hops if network else _nowhere
    hops = found if isinstance(found, Hops) else FunctionHops(found)
    rails, paths = (network.rails, network.paths) if network else (1, 1)
    return GpuRouter(numbering, len(owner) if network else 0, owner, inner, first, hops, rails, paths, padded)


def _starts(count: int) -> range:
    """Return where batches begin, one at least."""
    return range(0, max(count, 1), _BATCH)


def joined(parts: Sequence[Routes]) -> Routes:
    """Return the routes of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.start) for part in parts])
    start = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=start[1:])
    links, latency = (np.concatenate([part[i] for part in parts]) for i in (1, 3))
    even = all(part.share.strides == (0,) for part in parts)  # as `ones` are
    share = ones(len(links)) if even else np.concatenate([part.share for part in parts])
    return Routes(start, links, share, latency)


def _nowhere(source: Ints, destination: Ints) -> Ints:
    return np.empty((len(source), 0), np.int64)


_NO_HOPS = FunctionHops(_nowhere)


@dataclass(frozen=True, slots=True, eq=False)
class GpuRouter(Router):
    """From GPU to GPU: links of the node, its NIC, the network between nodes, the other NIC, links of the other node."""

    numbering: Numbering
    """Of the whole cluster."""
    endpoints: int
    """NICs of the cluster; 0 where nothing joins nodes."""
    owner: Ints
    """The first GPU of each NIC (NICs of the cluster,)."""
    inner: Hops
    """Paths from GPU to GPU of a node, on numbers of GPUs."""
    first: int
    """The link `nic-up[0]`; those before it are inside nodes."""
    hops: Hops
    """Paths from NIC to NIC, as in BuiltFabric."""
    rails: int
    """As in BuiltFabric."""
    paths: int
    """As in BuiltFabric."""
    latency: Floats
    """Seconds of each link, and a 0 at the end: -1, which pads the rows, costs nothing (links + 1,)."""
    lost: Mask | None = None
    """The NICs that have died, if any (NICs of the cluster,)."""

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs to GPUs."""
        return joined([self._part(source[i : i + _BATCH], destination[i : i + _BATCH]) for i in _starts(len(source))])

    def _part(self, source: Ints, destination: Ints) -> Routes:
        away = self.numbering.node_of(source) != self.numbering.node_of(destination)
        if not away.any():
            columns = self.inner(source, destination)
            return self._routes(columns, np.ones(columns.shape[1]))
        own, end = self.numbering.nic[source], self.numbering.nic[destination]
        # the NICs of every node are a multiple of the rails
        start = own - divide(own, self.rails)[1] + divide(end, self.rails)[1] if self.rails > 1 else own
        if self.lost is not None:
            start, end = self._alive(self.lost, away, start, end)
        turned = start != own
        if away.all() and not turned.any():
            return self._spread(np.empty((len(source), 0), np.int64), *self._outside(start, end))
        # PXN: bytes for another rail first go, inside the node, to the GPU that owns the NIC of that rail
        by_nic = np.where(turned, self.owner[start], source)
        columns = self.inner(source, np.where(away, by_nic, destination))
        found, shares = self._outside(start[away], end[away])
        outside = np.full((len(source), found.shape[1]), -1, np.int64)
        outside[away] = found
        if shares is None:
            return self._spread(columns, outside, None)
        parts = np.ones((len(source), shares.shape[1]))
        parts[away] = shares
        return self._spread(columns, outside, parts)

    def _spread(self, columns: Ints, outside: Ints, parts: Floats | None) -> Routes:
        """Return the routes through a node and then the network, which may spread them over several paths."""
        if parts is None:
            share = self._shares(columns.shape[1] + 1, outside[:, 1:-1])
        else:
            share = np.ones((len(outside), columns.shape[1] + outside.shape[1]))
            share[:, columns.shape[1] + 1 : -1] = parts
        return self._routes(np.concatenate([columns, outside], axis=1) if columns.shape[1] else outside, share)

    def _shares(self, before: int, hops: Ints) -> Floats:
        """Return the part of the bytes in each column: one row for all pairs if each takes every path, else a row a pair."""
        width = before + hops.shape[1] + 1
        if self.paths == 1:
            return np.ones(width)
        step = max(1, hops.shape[1] // self.paths)  # the first column of each path says whether a pair has it
        paths = counted(hops[:, ::step] >= 0)
        even = bool(((paths == 0) | (paths == self.paths)).all())
        share = np.ones(width if even else (len(hops), width))
        share[..., before:-1] = 1 / self.paths if even else 1 / np.maximum(paths, 1)[:, np.newaxis]
        return share

    def _alive(self, lost: Mask, away: Mask, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return NICs of the same rail that live at both ends: the next rail instead of one with a dead NIC."""
        start, end = start.copy(), end.copy()
        following, longest = self._turns()
        # a dead NIC at either end moves both ends to their next NIC: rails may be joined with themselves only. After one turn all
        # have been tried
        for _ in range(longest):
            bad = away & (lost[start] | lost[end])
            if not bad.any():
                return start, end
            for nic in (start, end):
                nic[bad] = following[nic[bad]]
        bad = away & (lost[start] | lost[end])
        if bad.any():
            pair = int(np.flatnonzero(bad)[0])
            ends = (self.numbering.node_of(self.owner[nic[pair]]) for nic in (start, end))
            raise apart(*(f"node {node}" for node in ends))
        return start, end

    def _turns(self) -> tuple[Ints, int]:
        """Return the NIC that stands in for each one, and how many at most stand in for each other: the rails, or a node's."""
        begin = np.arange(0, self.endpoints, self.rails) if self.rails > 1 else self.numbering.first_nic
        last = np.append(begin[1:], self.endpoints) - 1
        following = np.arange(1, self.endpoints + 1)
        following[last] = begin
        return following, int((last - begin).max()) + 1

    def _outside(self, nic: Ints, to_nic: Ints) -> tuple[Ints, Floats | None]:
        """Return the links from NIC to NIC with both of theirs, and the shares of those between if the network says them."""
        hops, parts = self.hops.spread(nic, to_nic)
        columns = np.empty((len(nic), hops.shape[1] + 2), np.int64)
        columns[:, 0] = self.first + nic
        columns[:, -1] = self.first + self.endpoints + to_nic
        between = columns[:, 1:-1]
        between[:] = hops
        np.add(between, self.first + 2 * self.endpoints, out=between, where=hops >= 0)
        return columns, parts

    def _routes(self, columns: Ints, share: Floats) -> Routes:
        used = columns >= 0
        start = np.zeros(len(columns) + 1, np.int64)
        np.cumsum(counted(used), out=start[1:])
        even = (
            share.min(initial=1.0) == 1
        )  # nearly always: `ones` is then one number that all links share, without memory
        shares = ones(int(start[-1])) if even else np.broadcast_to(share, columns.shape)[used]
        delay = self.latency[columns]
        return Routes(start, columns[used], shares, delay @ share if share.ndim == 1 else (delay * share).sum(axis=1))

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which GPUs the network cannot tell apart, of a cluster of so many GPUs and links."""
        if not self.endpoints:
            return no_symmetry(gpus, links)
        to = self.numbering.nic
        rail = to % self.rails
        # with rails a GPU leaves by the NIC of the other end's rail, else by its own: one column a rail, or one
        start = (to - rail)[:, np.newaxis] + np.arange(self.rails) if self.rails > 1 else to[:, np.newaxis]
        source, destination = self.hops.classes(np.arange(self.endpoints))
        entry, ports = self.first + self.endpoints, self.hops.ports
        leaves, enters = np.zeros((2, links), bool)
        leaves[:entry] = leaves[entry + self.endpoints :][:ports] = True
        enters[entry : entry + self.endpoints] = enters[entry + self.endpoints + ports :][:ports] = True
        lost = np.zeros(self.endpoints, bool) if self.lost is None else self.lost
        # where a NIC is dead, the pair of endpoints chooses the rail: nothing can be said of one alone
        unknown = np.logical_or.reduceat(lost, self.numbering.first_nic)
        return EndpointClasses(
            rail,
            source[start],
            destination[to],
            start + self.first,
            to + entry,
            leaves,
            enters,
            unknown[self.numbering.node_of(np.arange(gpus))],
            start,
            to,
            entry + self.endpoints,
            self.hops.segments,
        )

    @property
    def equal_nodes(self) -> bool:
        """Whether routes end at NICs and are the same in every node, as they are where nothing has died."""
        return (
            self.hops is _NO_HOPS and self.lost is None and isinstance(self.inner, Lattice) and self.numbering.width > 0
        )

    def up_to_nics(self, capacity: Floats) -> GpuRouter | None:
        """Return the routes up to the NICs, if all NICs together cannot fill a link between the switches."""
        first, nics = self.first + 2 * self.endpoints, capacity[self.first :][: 2 * self.endpoints]
        above = self.hops.above()
        if above is None:
            return None
        for sides in above:
            for links, rate in zip(sides, np.split(nics, 2), strict=True):
                fed = np.bincount(links, rate)
                if (fed > capacity[first:][: len(fed)] * _ROUNDED).any():
                    return None
        return replace(self, hops=_NO_HOPS, paths=1)

    def without(self, dead: Mask) -> GpuRouter:
        """Return the router that goes around dead links. Raises UnreachableError when no route is left."""
        nic, network = self.first, self.first + 2 * self.endpoints
        lost = dead[nic : nic + self.endpoints] | dead[nic + self.endpoints : network]
        inner = _without(self.inner, dead[:nic])
        found = replace(self, inner=inner, hops=_without(self.hops, dead[network:]))
        return found if not lost.any() else replace(found, lost=lost)


def _without(hops: Hops, dead: Mask) -> Hops:
    return hops.without(dead) if dead.any() else hops


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(Router):
    """Routes between the GPUs that are left of a cluster with dead nodes, numbered anew."""

    router: Router | Callable[[Ints, Ints], Routes]
    """That of the whole cluster."""
    gpus: Ints
    """The old number of each GPU that is left."""

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs to GPUs."""
        return self.router(self.gpus[source], self.gpus[destination])

    def up_to_nics(self, capacity: Floats) -> Remaining | None:
        """Return the routes up to the NICs, if there is no need to go beyond."""
        found = self.router.up_to_nics(capacity) if isinstance(self.router, Router) else None
        return None if found is None else replace(self, router=found)

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which of the GPUs that are left the network cannot tell apart."""
        of = self.router.endpoint_classes if isinstance(self.router, Router) else no_symmetry
        whole, kept = of(int(self.gpus.max()) + 1, links), self.gpus
        return whole._replace(
            rail=whole.rail[kept],
            source=whole.source[kept],
            destination=whole.destination[kept],
            up=whole.up[kept],
            down=whole.down[kept],
            unknown=whole.unknown[kept],
            start=whole.start[kept],
            to=whole.to[kept],
        )
