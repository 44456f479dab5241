"""One ideal crossbar for all NICs: only the NICs themselves limit transfers."""

from __future__ import annotations

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.fabric import Switch
from clustersim.topology.assemble import assemble
from clustersim.topology.hops import ClassNumbers, Hops
from clustersim.topology.model import Topology
from clustersim.topology.specs import BuiltFabric, NodeSpecs

SPEC = Switch


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `switch` fabric. Raises ConfigError if the nodes have no NICs."""
    spec = cluster.section(Switch)
    line = cluster.by_endpoint(lambda pool: pool.node.nics.rate if pool.node.nics else 0.0)
    rate = spec.link.rate * spec.link.efficiency if spec.link else line
    half = cluster.endpoints / 2 * float(np.mean(rate))
    counts = {"switches": 1, "cables": cluster.endpoints, "bisection": half, "oversubscription": 1.0}
    crossbar = _Crossbar()
    fanouts = (cluster.nodes,) if cluster.nodes > 1 else ()
    network = BuiltFabric((), crossbar, crossbar.port, crossbar.ends, counts, fanouts, rate, reduction=spec.reduction)
    return assemble(cluster, "switch", network)


class _Crossbar(Hops):
    """Routes without links between NICs."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return routes without links (pairs, 0)."""
        return np.empty((len(source), 0), np.int64)

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return class 0 as a source and as a destination for each endpoint."""
        return endpoint * 0, endpoint * 0

    def port(self, endpoint: int) -> str:
        """Return the name of the only switch."""
        return "switch[0]"

    def ends(self, link: int) -> tuple[str, str]:
        """Raise IndexError: the fabric has no links between switches."""
        raise IndexError(f"a crossbar has no link {link}")
