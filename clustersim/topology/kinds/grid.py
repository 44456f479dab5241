"""A network in each dimension of a grid of nodes: rings, lines, full meshes or crossbars, as in ASTRA-sim's network files."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clustersim.config.fabric import Grid, Torus
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.lattice import AXES, LONGEST, Dim, Lattice
from clustersim.topology.model import Topology
from clustersim.topology.specs import BuiltFabric, NodeSpecs

SPEC = Grid


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `grid` fabric. Raises ConfigError unless the product of the sizes is the number of nodes."""
    spec = cluster.section(Grid)
    _check_product(cluster, [dim.size for dim in spec.dims])
    dims = tuple(
        Dim(f"dim{i}", dim.kind, dim.size, dim.rate, dim.latency, 1, f"dim{i}-switch")
        for i, dim in enumerate(spec.dims)
    )
    nics = cluster.nics
    if spec.rails:
        lattice = Lattice(dims, cluster.endpoints, "router", stride=nics)
    else:
        lattice = Lattice(dims, cluster.nodes, "router", share=nics)
    return assemble(cluster, "grid", _direct(cluster, lattice, nics if spec.rails else 1, key="fabric.dims"))


def torus(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `torus` fabric, dimension-ordered, as in TPU pods (Jouppi et al. 2023); open without `wrap`.

    Raises ConfigError unless the product of the extents is the number of nodes.
    """
    spec = cluster.section(Torus)
    _check_product(cluster, spec.dims)
    cable, count = spec.link.cable, len(spec.dims)
    if len(cable) not in (0, 1, count):
        lengths = f"{len(cable)} cable lengths for {count} dimensions"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {lengths}; give one, or one a dimension")
    metres = cable if len(cable) == count else (cable or (0.0,)) * count
    rate = spec.link.rate * spec.link.efficiency
    dims = tuple(
        Dim(name, "ring" if spec.wrap else "line", size, rate, spec.switch_latency + FIBRE * length)
        for name, size, length in zip(AXES[:count], spec.dims, metres, strict=True)
    )
    return assemble(cluster, "torus", _direct(cluster, Lattice(dims, cluster.nodes, "router", share=cluster.nics)))


def _check_product(cluster: NodeSpecs, sizes: Sequence[int]) -> None:
    """Raise ConfigError unless the extents of the grid have the cluster's number of nodes."""
    if prod(sizes) != cluster.nodes:
        shape = " × ".join(map(str, sizes))
        what = f"{shape} = {prod(sizes)} positions for {cluster.nodes} nodes"
        raise cluster.error(("fabric", "dims"), f"fabric.dims: {what}; change dims or cluster.nodes so that they agree")


def _direct(cluster: NodeSpecs, lattice: Lattice, rails: int = 1, key: str = "fabric.link.rate") -> BuiltFabric:
    """Return the network of `rails` equal grids; `key`: key of their links' rate. Raises ConfigError for too long dimensions."""
    for i, dim in enumerate(lattice.dims):
        if dim.width > LONGEST // 2:
            what = f"a {dim.kind} of {dim.size} is too long (at most {LONGEST}, a line half of that)"
            raise cluster.error(("fabric", "dims", i), f"fabric.dims.{i}: {what}; fold it into two dimensions")
    cluster.check_links(lattice.firsts[-1], ("dims",), "fewer nodes")
    cables = {f"{dim.name}_cables": float(n) for dim, n in zip(lattice.dims, lattice.cables, strict=True)}
    crossbars = sum(lattice.positions // dim.size for dim in lattice.dims if dim.kind == "switch" and dim.size > 1)
    counts = {
        "routers": lattice.positions,
        **({"switches": crossbars} if crossbars else {}),
        **cables,
        "cables": sum(cables.values()) + cluster.endpoints,
        "bisection": lattice.bisection(),
        "oversubscription": max(1.0, cluster.endpoints * cluster.nic_rate / 2 / (lattice.bisection() or np.inf)),
    }
    return BuiltFabric(
        ranges=tuple(lattice.ranges()),
        hops=lattice,
        port=lattice.port,
        ends=lattice.ends,
        counts=counts,
        fanouts=tuple(dim.size for dim in lattice.dims if dim.size > 1),
        rate=np.inf,
        rails=rails,
        key=key,
    )
