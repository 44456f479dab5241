"""What a kind of fabric from outside must have built, looked at before anything is simulated on it."""

from __future__ import annotations

import numpy as np

from clustersim.errors import shown
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, NodeSpecs

_PROBED = 64


def check(built: object, cluster: NodeSpecs) -> None:
    """Raise TypeError or ValueError for what is no topology of these nodes, or routes some of its GPUs over what is no link."""
    if not isinstance(built, Topology):
        raise TypeError(f"build returned {shown(built)}, not a Topology; return assemble(cluster, ...)")
    if not np.array_equal(built.numbering.first, cluster.numbering().first):
        raise ValueError(f"it has {built.nodes} nodes of {built.gpus_per_node} GPUs, not those of the file")
    links = len(built.capacity)
    if links > MAX_LINKS:
        raise ValueError(f"it has {links:,} links; at most {MAX_LINKS:,} can be simulated")
    for name, array, least in (
        ("capacity", built.capacity, 0.0),
        ("latency", built.latency, -1e-300),
        ("cables", built.cables, 0.0),
    ):
        values = np.asarray(array, np.float64)
        if values.shape != (links,) or not np.isfinite(values).all() or not (values > least).all():
            raise ValueError(f"{name} is not one finite number for each of the {links} links")
    for name, value in built.counts.items():
        if not isinstance(name, str) or not np.isfinite(float(value)) or value < 0:
            raise ValueError(f"the count {shown(name)} is {shown(value)}; write a number of at least 0")
    _check_routes(built, links)


def _check_routes(built: Topology, links: int) -> None:
    """Route a sample: every GPU to the next, to the one across, and to the last."""
    gpus = np.unique(np.linspace(0, built.gpus - 1, _PROBED).astype(np.int64))
    others = [(gpus + 1) % built.gpus, (gpus + built.gpus // 2) % built.gpus, np.full_like(gpus, built.gpus - 1)]
    for other in others:
        routes = built.route(gpus, other)
        if routes.start.shape != (len(gpus) + 1,) or (np.diff(routes.start) < 0).any():
            raise ValueError("hops does not return one row for each pair")
        if not ((routes.links >= 0) & (routes.links < links)).all():
            raise ValueError("hops leads over links that are none of its own; they count from 0, and -1 is no link")
        if not np.isfinite(routes.latency).all() or (routes.latency < 0).any():
            raise ValueError("a path has no finite latency of at least 0")
        for link in {*routes.links.tolist()}:
            built.ends(link)
