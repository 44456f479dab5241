"""Routes from GPU to GPU: NVLink inside a node; else NIC, network, NIC, after a step over NVLink if the rail has to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustersim.topology.model import Floats, Ints, Router, Routes
from clustersim.topology.site import Network, Site


def router(site: Site, network: Network | None, latency: Floats) -> Router:
    """Return the router of GPUs over the links that `assemble` lays; `latency` is that of each link in seconds."""
    gpus, nics, nic_of = site.node.gpus.count, max(site.nics, 1), site.nic_of
    _, owner = np.unique(nic_of, return_index=True)
    padded = np.append(latency, 0.0)
    if network is None:
        return _Router(site.nodes, gpus, nics, nic_of, owner, _nowhere, 1, 1.0, padded)
    return _Router(site.nodes, gpus, nics, nic_of, owner, network.hops, network.rails, network.share, padded)


def _nowhere(source: Ints, destination: Ints) -> Ints:
    return np.empty((len(source), 0), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Router:
    """nic_of: the NIC of each GPU of a node; owner: the first GPU of each NIC; the rest as in Network."""

    nodes: int
    gpus: int
    nics: int
    nic_of: Ints
    owner: Ints
    hops: Callable[[Ints, Ints], Ints]
    rails: int
    share: float
    latency: Floats  # one longer than the links: -1, which pads the rows, costs nothing

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        node, to_node = source // self.gpus, destination // self.gpus
        away = node != to_node
        columns = self._inside(source, destination, source != destination)
        if not away.any():
            return self._routes(columns, np.ones(2))
        own, to_nic = self.nic_of[source - node * self.gpus], self.nic_of[destination - to_node * self.gpus]
        nic = own // self.rails * self.rails + to_nic % self.rails if self.rails > 1 else own
        changed = np.flatnonzero(away & (nic != own))
        columns[away] = -1
        columns[changed] = self._inside(source[changed], (node * self.gpus + self.owner[nic])[changed], True)
        outside = self._outside(node * self.nics + nic, to_node * self.nics + to_nic)
        outside[~away] = -1
        share = np.full(2 + outside.shape[1], self.share)
        share[[0, 1, 2, -1]] = 1.0
        return self._routes(np.concatenate([columns, outside], axis=1), share)

    def _inside(self, source: Ints, near: Ints, moved: NDArray[np.bool_] | bool) -> Ints:
        columns = np.empty((len(source), 2), np.int64)
        columns[:, 0] = np.where(moved, source, -1)
        columns[:, 1] = np.where(moved, near + self.nodes * self.gpus, -1)
        return columns

    def _outside(self, nic: Ints, to_nic: Ints) -> Ints:
        first, endpoints = 2 * self.nodes * self.gpus, self.nodes * self.nics
        hops = self.hops(nic, to_nic)
        columns = np.empty((len(nic), hops.shape[1] + 2), np.int64)
        columns[:, 0] = first + nic
        columns[:, -1] = first + endpoints + to_nic
        columns[:, 1:-1] = np.where(hops < 0, -1, hops + (first + 2 * endpoints))
        return columns

    def _routes(self, columns: Ints, share: Floats) -> Routes:
        used = columns >= 0
        start = np.zeros(len(columns) + 1, np.int64)
        np.cumsum(used.sum(axis=1), out=start[1:])
        shares = np.broadcast_to(share, columns.shape)[used] if share.min() < 1 else np.ones(int(start[-1]))
        return Routes(start, columns[used], shares, self.latency[columns] @ share)
