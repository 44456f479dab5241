"""A torus of nodes, as TPU pods are (Jouppi et al. 2023), dimension-ordered; without `wrap` a grid with open ends."""

from __future__ import annotations

from clustersim.config.fabric import Torus
from clustersim.config.fields import validate
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.kinds.grid import direct, product
from clustersim.topology.lattice import Dim, Lattice, names
from clustersim.topology.model import Topology
from clustersim.topology.specs import NodeSpecs

SPEC = Torus
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `torus` fabric. Raises ConfigError when the extents do not multiply to the nodes."""
    spec = validate(Torus, cluster.document, cluster.fabric, ("fabric",))
    product(cluster, spec.dims, ("fabric", "dims"))
    cable = spec.link.cable
    if len(cable) not in (0, 1, len(spec.dims)):
        lengths = f"{len(cable)} cable lengths for {len(spec.dims)} dimensions"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}; give one, or one a dimension")
    lengths_of = (cable or (0.0,)) * (1 if len(cable) == len(spec.dims) else len(spec.dims))
    kind, rate = "ring" if spec.wrap else "line", spec.link.rate * spec.link.efficiency
    dims = tuple(
        Dim(name, kind, size, rate, spec.switch_latency + FIBRE * metres)  # type: ignore[arg-type]
        for name, size, metres in zip(names(len(spec.dims)), spec.dims, lengths_of, strict=True)
    )
    return assemble(cluster, "torus", direct(cluster, Lattice(dims, cluster.nodes, "router", share=cluster.nics)))
