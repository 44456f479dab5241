"""One ideal crossbar for all NICs: only the NICs themselves limit transfers."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from clustersim.config.fabric import Switch
from clustersim.topology.assemble import assemble
from clustersim.topology.hops import NoHops
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
    fanouts = (cluster.nodes,) if cluster.nodes > 1 else ()

    def ends(link: int) -> NoReturn:
        """Raise IndexError: the fabric has no links between switches."""
        raise IndexError(f"a crossbar has no link {link}")

    network = BuiltFabric(
        (), NoHops(), lambda endpoint: "switch[0]", ends, counts, fanouts, rate, reduction=spec.reduction
    )
    return assemble(cluster, "switch", network)
