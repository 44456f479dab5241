"""One ideal crossbar that joins all NICs: nothing is contended but the NICs themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.fields import validate
from clustersim.config.topology import Switch
from clustersim.topology.assemble import assemble
from clustersim.topology.hops import Hops
from clustersim.topology.model import Topology
from clustersim.topology.specs import Network, Site
from clustersim.topology.symmetry import Classes


def build(site: Site) -> Topology:
    """Return the topology of a `switch` fabric. Raises ConfigError when the nodes have no NICs."""
    spec = validate(Switch, site.document, site.fabric, ("fabric",))
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    rate = spec.link.rate * spec.link.efficiency if spec.link else site.node.nics.rate
    half = site.endpoints / 2 * rate
    counts = {"switches": 1, "cables": site.endpoints, "bisection": half, "oversubscription": 1.0}
    crossbar = _Crossbar()
    fanouts = (site.nodes,) if site.nodes > 1 else ()
    network = Network((), crossbar, crossbar.port, crossbar.ends, counts, fanouts, rate, reduction=spec.reduction)
    return assemble(site, "switch", network)


@dataclass(frozen=True, slots=True)
class _Crossbar(Hops):
    """No link between NIC and NIC but their own two."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        return np.empty((len(source), 0), np.int64)

    def classes(self, endpoint: Ints) -> Classes:
        return endpoint * 0, endpoint * 0

    def port(self, endpoint: int) -> str:
        return "switch[0]"

    def ends(self, link: int) -> tuple[str, str]:
        raise IndexError(f"a crossbar has no link {link}")
