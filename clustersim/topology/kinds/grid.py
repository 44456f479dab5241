"""A network in each dimension of a grid of nodes: rings, lines, full meshes or crossbars, as in ASTRA-sim's network files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from clustersim.config.fabric import Grid, GridDim
from clustersim.config.fields import validate
from clustersim.config.yaml import Loc
from clustersim.topology.assemble import assemble
from clustersim.topology.lattice import LONGEST, Dim, Lattice
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, BuiltFabric, NodeSpecs

SPEC = Grid
"""The keys of its section of a file."""


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `grid` fabric. Raises ConfigError when the sizes do not multiply to the nodes."""
    spec = validate(Grid, cluster.document, cluster.fabric, ("fabric",))
    product(cluster, [dim.size for dim in spec.dims], ("fabric", "dims"))
    dims = tuple(_dim(i, dim) for i, dim in enumerate(spec.dims))
    if spec.rails:
        lattice = Lattice(dims, cluster.endpoints, "router", stride=cluster.nics)
        return assemble(cluster, "grid", direct(cluster, lattice, cluster.nics, key="fabric.dims"))
    lattice = Lattice(dims, cluster.nodes, "router", share=cluster.nics)
    return assemble(cluster, "grid", direct(cluster, lattice, key="fabric.dims"))


def _dim(i: int, dim: GridDim) -> Dim:
    return Dim(f"dim{i}", dim.kind, dim.size, dim.rate, dim.latency, 1, f"dim{i}-switch")


def product(cluster: NodeSpecs, sizes: Sequence[int], at: Loc) -> None:
    """Raise ConfigError unless the nodes have NICs and the sizes of the dimensions multiply to the number of nodes."""
    if cluster.node.nics is None:
        raise cluster.error((*cluster.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    if prod(sizes) != cluster.nodes:
        shape = " × ".join(map(str, sizes))
        what = f"{shape} = {prod(sizes)} positions for {cluster.nodes} nodes"
        raise cluster.error(at, f"fabric.dims: {what}; change dims or cluster.nodes so that they agree")


def direct(cluster: NodeSpecs, lattice: Lattice, rails: int = 1, key: str = "fabric.link.rate") -> BuiltFabric:
    """Return the network of a grid without a hierarchy of switches; `rails` equal ones stand side by side."""
    for i, dim in enumerate(lattice.dims):
        if dim.width > LONGEST // 2:
            what = f"a {dim.kind} of {dim.size} is too long (at most {LONGEST}, a line half of that)"
            raise cluster.error(("fabric", "dims", i), f"fabric.dims.{i}: {what}; fold it into two dimensions")
    if lattice.firsts[-1] > MAX_LINKS:
        raise cluster.error(
            ("fabric", "dims"), f"{lattice.firsts[-1]} links are too many (at most {MAX_LINKS}); use fewer nodes"
        )
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
        port=_GridPort(lattice.share),
        ends=lattice.ends,
        counts=counts,
        fanouts=tuple(dim.size for dim in lattice.dims if dim.size > 1),
        rate=np.inf,
        rails=rails,
        key=key,
    )


@dataclass(frozen=True, slots=True)
class _GridPort:
    """The router of an endpoint by name; `share` endpoints hang on one."""

    share: int

    def __call__(self, endpoint: int) -> str:
        return f"router[{endpoint // self.share}]"
