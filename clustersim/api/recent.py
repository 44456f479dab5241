"""The described cluster that was asked about last: what was worked out about it serves the next question about the same."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from clustersim import plugins
from clustersim.api.inputs import ClusterLike, by_key, cluster_document, load_cluster
from clustersim.config.yaml import Document
from clustersim.files import keeping_inputs
from clustersim.simulation import Simulator
from clustersim.topology.build import build, overridden
from clustersim.topology.model import Topology


class _Known(NamedTuple):
    """A description, and who simulates on the cluster that it describes."""

    document: Document
    simulator: Simulator


_recent: ContextVar[_Known | None] = ContextVar("recent", default=None)
"""One for each thread: what a simulator keeps is not made for two at once."""


def simulator(cluster: ClusterLike, overrides: dict[str, object]) -> Simulator:
    """Return who simulates on a cluster, that of the last question if the description is the same.

    cluster, overrides: as in `load_cluster`. One that was loaded is the caller's, and nothing of it is kept. Nor is what
    more than the description decides: files that it names, and code from outside. Raises ClustersimError.
    """
    with keeping_inputs() as read:
        found = cluster_document(cluster)
        if isinstance(found, Topology):
            return Simulator(load_cluster(found, **overrides))
        document = overridden(found, by_key(overrides))
        known = _recent.get()
        if known is not None and known.document == document and not plugins.permits():
            return known.simulator
        made = Simulator(build(document))
    alone = read.keys() <= {document.path} and not plugins.permits()
    _recent.set(_Known(document, made) if alone else None)
    return made
