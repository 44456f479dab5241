"""How far apart the GPUs of a cluster are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.topology.model import Topology

_MOST_PATHS = 2**18
_MOST_LINKS = 2**24  # of all those paths: on a ring of thousands one path is thousands of links
_PROBED = 9  # routes from the first GPU: to itself, in even steps, to the last
_PAIRS = 2**15  # whose routes are in memory at a time,
_LINKS = 2**21  # or fewer, of so many links


class Diameter(NamedTuple):
    """hops: links on the longest route. latency: seconds of the slowest one when idle. exact: all pairs were looked at."""

    hops: float
    latency: float
    exact: bool


def diameter(topology: Topology) -> Diameter:
    """Return the longest routes from GPU to GPU; of many GPUs, those from an even sample of them to all others."""
    probe = topology.route(np.zeros(_PROBED, np.int64), np.linspace(0, topology.gpus - 1, _PROBED).astype(np.int64))
    paths = 1 / float(probe.share.min(initial=1.0))
    longest = max(1, int(np.diff(probe.start).max()))
    most = min(_MOST_PATHS / paths, _MOST_LINKS / longest)
    batch = max(1, min(_PAIRS, _LINKS // longest))
    sources = min(topology.gpus, max(1, int(most) // topology.gpus))
    sample = np.unique(np.linspace(0, topology.gpus - 1, sources).astype(np.int64))
    hops = latency = 0.0
    for first in range(0, len(sample) * topology.gpus, batch):
        pair = np.arange(first, min(first + batch, len(sample) * topology.gpus))
        routes = topology.route(sample[pair // topology.gpus], pair % topology.gpus)
        crossed = np.add.reduceat(np.append(routes.share, 0.0), routes.start[:-1]) * (np.diff(routes.start) > 0)
        hops, latency = max(hops, float(crossed.max())), max(latency, float(routes.latency.max()))
    return Diameter(round(hops, 9), latency, len(sample) == topology.gpus)
