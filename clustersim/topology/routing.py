"""Routes from GPU to GPU: links inside a node; otherwise NIC, network, NIC.

If the rail has to change, the route first goes inside the node to the GPU of the other NIC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, counted, divide, offsets, ones
from clustersim.topology.hops import EndpointClasses, FunctionHops, Hops, NoHops, no_route_error, no_symmetry
from clustersim.topology.lattice import Lattice
from clustersim.topology.model import Router, Routes
from clustersim.topology.node_graph import NodeGraph, SideBySide
from clustersim.topology.numbering import Numbering
from clustersim.topology.specs import BuiltFabric

InnerNetwork = Lattice | NodeGraph | SideBySide
"""Routes between GPUs of the same node."""
_ROUNDED = 1 + 1e-12
_BATCH = 1 << 13  # number of pairs whose arrays fit into the CPU cache


def router(numbering: Numbering, inner: InnerNetwork, network: BuiltFabric | None, latency: Floats) -> GpuRouter:
    """Return the router of GPUs over the links numbered by `assemble`. network: None for one node. latency: seconds (links,)."""
    owner, padded = numbering.owners(), np.append(latency, 0.0)
    first, network_routes = inner.firsts[-1], network.hops if network else NoHops()
    hops = network_routes if isinstance(network_routes, Hops) else FunctionHops(network_routes)
    rails, paths = (network.rails, network.paths) if network else (1, 1)
    return GpuRouter(numbering, len(owner) if network else 0, owner, inner, first, hops, rails, paths, padded)


def concatenated(parts: Sequence[Routes]) -> Routes:
    """Return the routes of all parts as one, in order. parts: at least one."""
    if len(parts) == 1:
        return parts[0]
    start = offsets(np.concatenate([np.diff(part.start) for part in parts]))
    links, latency = (np.concatenate([part[i] for part in parts]) for i in (1, 3))
    even = all(part.share.strides == (0,) for part in parts)  # a broadcast array, as from `ones`
    share = ones(len(links)) if even else np.concatenate([part.share for part in parts])
    return Routes(start, links, share, latency)


_NO_HOPS = NoHops()


@dataclass(frozen=True, slots=True, eq=False)
class GpuRouter(Router):
    """Routes from GPU to GPU: links of the node, its NIC, the network between nodes, the other NIC, links of the other node."""

    numbering: Numbering
    """Numbering of the whole cluster."""
    endpoints: int
    """Number of NICs of the cluster; 0 without a network."""
    owner: Ints
    """First GPU of each NIC (NICs,)."""
    inner: Hops
    """Paths between GPUs of a node, by GPU number."""
    first: int
    """Number of the link `nic-up[0]`; lower numbers are inside nodes."""
    hops: Hops
    """Paths between NICs, as in BuiltFabric."""
    rails: int
    paths: int
    """Rails and paths as in BuiltFabric."""
    latency: Floats
    """Seconds of each link, followed by a 0 for the padding index -1 (links + 1,)."""
    lost: Mask | None = None
    """Mask of dead NICs (NICs,), or None."""

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from each source GPU to its destination."""
        starts = range(0, max(len(source), 1), _BATCH)
        return concatenated([self._part(source[i : i + _BATCH], destination[i : i + _BATCH]) for i in starts])

    def _part(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes of pairs of GPUs, within a node or through NICs, with PXN where rails differ."""
        away = self.numbering.node_of(source) != self.numbering.node_of(destination)
        if not away.any():
            node_links = self.inner(source, destination)
            return self._routes(node_links, np.ones(node_links.shape[1]))
        nic, end_nic = self.numbering.nic[source], self.numbering.nic[destination]
        # the NICs of every node are a multiple of the rails
        first_nic = nic - divide(nic, self.rails)[1] + divide(end_nic, self.rails)[1] if self.rails > 1 else nic
        if self.lost is not None:
            first_nic, end_nic = self._alive(self.lost, away, first_nic, end_nic)
        turned = first_nic != nic
        if away.all() and not turned.any():
            return self._routes(*self._outside(first_nic, end_nic))
        # PXN: bytes for another rail first go, inside the node, to the GPU that owns the NIC of that rail
        by_nic = np.where(turned, self.owner[first_nic], source)
        node_links = self.inner(source, np.where(away, by_nic, destination))
        network_links, share = self._outside(first_nic[away], end_nic[away])
        outside = np.full((len(source), network_links.shape[1]), -1, np.int64)
        outside[away] = network_links
        if share.ndim > 1:
            parts = np.ones(outside.shape)
            parts[away] = share
            share = parts
        shares = np.concatenate([np.ones((*share.shape[:-1], node_links.shape[1])), share], axis=-1)
        return self._routes(np.concatenate([node_links, outside], axis=1) if node_links.shape[1] else outside, shares)

    def _shares(self, hops: Ints) -> Floats:
        """Return the share of bytes in each column of `hops`: (width,) if every pair uses all paths, else (pairs, width)."""
        step = max(1, hops.shape[1] // self.paths)  # the first column of each path says whether a pair has it
        paths = self.paths if self.paths == 1 else counted(hops[:, ::step] >= 0)
        if np.all((paths == 0) | (paths == self.paths)):
            return np.full(hops.shape[1], 1 / self.paths)
        return np.broadcast_to(1 / np.maximum(paths, 1)[:, np.newaxis], hops.shape)

    def _alive(self, lost: Mask, away: Mask, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the NICs (`start`, `end`) of each pair; a pair of nodes (`away`) with a dead NIC moves to the next NIC at both.

        lost: mask of dead NICs. Raises UnreachableError if a pair has no two live NICs on one rail.
        """
        start, end = start.copy(), end.copy()
        # a dead NIC is replaced by the next one of its rails, or of its node; the first follows the last
        begin = np.arange(0, self.endpoints, self.rails) if self.rails > 1 else self.numbering.first_nic
        last, following = np.append(begin[1:], self.endpoints) - 1, np.arange(1, self.endpoints + 1)
        following[last] = begin
        # a dead NIC at either end moves both ends to their next NIC, because rails may not be connected. After one turn all have
        # been tried
        for _ in range(int((last - begin).max()) + 2):
            blocked = away & (lost[start] | lost[end])
            if not blocked.any():
                return start, end
            for nic in (start, end):
                nic[blocked] = following[nic[blocked]]
        nodes = (self.numbering.node_of(self.owner[nic[blocked][:1]])[0] for nic in (start, end))
        raise no_route_error(*(f"node {node}" for node in nodes))

    def _outside(self, nic: Ints, to_nic: Ints) -> tuple[Ints, Floats]:
        """Return the links of each route from `nic` to `to_nic`, both NICs' included (pairs, width), and the share on each.

        The shares have the same shape, or (width,) if they are equal for all pairs.
        """
        hops, parts = self.hops.spread(nic, to_nic)
        columns = np.empty((len(nic), hops.shape[1] + 2), np.int64)
        columns[:, 0] = self.first + nic
        columns[:, -1] = self.first + self.endpoints + to_nic
        between = columns[:, 1:-1]
        between[:] = hops
        np.add(between, self.first + 2 * self.endpoints, out=between, where=hops >= 0)
        parts = self._shares(hops) if parts is None else parts
        all_bytes = np.ones((*parts.shape[:-1], 1))
        return columns, np.concatenate([all_bytes, parts, all_bytes], axis=-1)

    def _routes(self, columns: Ints, share: Floats) -> Routes:
        """Return the routes of `columns` of links (pairs, width; -1: none), with the `share` of bytes of each pair or column."""
        used = columns >= 0
        start = offsets(counted(used))
        # almost always: `ones` is then one number that all links share, without memory
        even = share.min(initial=1.0) == 1
        shares = ones(int(start[-1])) if even else np.broadcast_to(share, columns.shape)[used]
        delay = self.latency[columns]
        return Routes(start, columns[used], shares, delay @ share if share.ndim == 1 else (delay * share).sum(axis=1))

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which GPUs of a cluster of `gpus` GPUs and `links` links are equivalent to the network."""
        if not self.endpoints:
            return no_symmetry(gpus, links)
        to = self.numbering.nic
        rail = to % self.rails
        # with rails a GPU uses the NIC of the other end's rail, otherwise its own: one column per rail, or one
        start = (to - rail)[:, np.newaxis] + np.arange(self.rails) if self.rails > 1 else to[:, np.newaxis]
        source, destination = self.hops.classes(np.arange(self.endpoints))
        entry, ports = self.first + self.endpoints, self.hops.ports
        leaves, enters = np.zeros((2, links), bool)
        leaves[:entry] = leaves[entry + self.endpoints :][:ports] = True
        enters[entry : entry + self.endpoints] = enters[entry + self.endpoints + ports :][:ports] = True
        lost = np.zeros(self.endpoints, bool) if self.lost is None else self.lost
        # with a dead NIC the pair of endpoints determines the rail, so one endpoint has no class
        unknown = np.logical_or.reduceat(lost, self.numbering.first_nic)[self.numbering.node_of(np.arange(gpus))]
        classes, nics, between = (
            (source[start], destination[to]),
            (start + self.first, to + entry),
            entry + self.endpoints,
        )
        return EndpointClasses(rail, *classes, *nics, leaves, enters, unknown, start, to, between, self.hops.segments)

    @property
    def equal_nodes(self) -> bool:
        """Whether routes end at NICs and are the same in every node, which holds if nothing is dead."""
        equal = isinstance(self.inner, Lattice | NodeGraph) and self.numbering.width > 0
        return equal and self.hops is _NO_HOPS and self.lost is None

    def up_to_nics(self, capacity: Floats) -> GpuRouter | None:
        """Return routes that end at the NICs, if all NICs together cannot fill a link between switches; else None.

        capacity: bytes/s of each link (links,).
        """
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
        """Return the router that avoids the links in the mask `dead`. Raises UnreachableError if they cut a vertex off.

        Nodes without live NICs on one rail raise it only when a route between them is computed.
        """
        nic, network = self.first, self.first + 2 * self.endpoints
        lost = dead[nic : nic + self.endpoints] | dead[nic + self.endpoints : network]
        parts = (self.inner, dead[:nic]), (self.hops, dead[network:])
        inner, hops = (routes.without(dead_links) if dead_links.any() else routes for routes, dead_links in parts)
        return replace(self, inner=inner, hops=hops, lost=lost if lost.any() else self.lost)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(Router):
    """Routes between the remaining, renumbered GPUs of a cluster with dead nodes."""

    router: Router | Callable[[Ints, Ints], Routes]
    """Router of the whole cluster."""
    gpus: Ints
    """Original number of each remaining GPU."""

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from each source GPU to its destination."""
        return self.router(self.gpus[source], self.gpus[destination])

    def up_to_nics(self, capacity: Floats) -> Remaining | None:
        """Return the routes up to the NICs, if links between switches are never a bottleneck; else None."""
        router = self.router.up_to_nics(capacity) if isinstance(self.router, Router) else None
        return None if router is None else replace(self, router=router)

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return the classes of the remaining GPUs, of a cluster of `links` links. gpus: their number, which is not needed."""
        find_classes = self.router.endpoint_classes if isinstance(self.router, Router) else no_symmetry
        all_classes, kept = find_classes(int(self.gpus.max()) + 1, links), self.gpus
        by_gpu = ("rail", "source", "destination", "up", "down", "unknown", "start", "to")
        return all_classes._replace(**{name: getattr(all_classes, name)[kept] for name in by_gpu})
