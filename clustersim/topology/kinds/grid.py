"""A network in each dimension of a grid of nodes: rings, lines, full meshes or crossbars, as in ASTRA-sim's network files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from clustersim.config.fields import validate
from clustersim.config.topology import Grid, GridDim
from clustersim.config.yaml import Loc
from clustersim.topology.assemble import assemble
from clustersim.topology.lattice import LONGEST, Dim, Lattice
from clustersim.topology.model import Topology
from clustersim.topology.specs import MAX_LINKS, Network, Site


def build(site: Site) -> Topology:
    """Return the topology of a `grid` fabric. Raises ConfigError when the sizes do not multiply to the nodes."""
    spec = validate(Grid, site.document, site.fabric, ("fabric",))
    product(site, [dim.size for dim in spec.dims], ("fabric", "dims"))
    dims = tuple(_dim(i, dim) for i, dim in enumerate(spec.dims))
    if spec.rails:
        return assemble(
            site,
            "grid",
            direct(site, Lattice(dims, site.endpoints, "router", stride=site.nics), site.nics, key="fabric.dims"),
        )
    return assemble(site, "grid", direct(site, Lattice(dims, site.nodes, "router", share=site.nics), key="fabric.dims"))


def _dim(i: int, dim: GridDim) -> Dim:
    return Dim(f"dim{i}", dim.kind, dim.size, dim.rate, dim.latency, 1, f"dim{i}-switch")


def product(site: Site, sizes: Sequence[int], at: Loc) -> None:
    """Raise ConfigError unless the nodes have NICs and the sizes of the dimensions multiply to the number of nodes."""
    if site.node.nics is None:
        raise site.error((*site.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
    if prod(sizes) != site.nodes:
        shape = " × ".join(map(str, sizes))
        what = f"{shape} = {prod(sizes)} positions for {site.nodes} nodes"
        raise site.error(at, f"fabric.dims: {what}; change dims or cluster.nodes so that they agree")


def direct(site: Site, lattice: Lattice, rails: int = 1, key: str = "fabric.link.rate") -> Network:
    """Return the network of a grid without a hierarchy of switches; `rails` equal ones stand side by side."""
    for i, dim in enumerate(lattice.dims):
        if dim.width > LONGEST // 2:
            what = f"a {dim.kind} of {dim.size} is too long (at most {LONGEST}, a line half of that)"
            raise site.error(("fabric", "dims", i), f"fabric.dims.{i}: {what}; fold it into two dimensions")
    if lattice.firsts[-1] > MAX_LINKS:
        raise site.error(
            ("fabric", "dims"), f"{lattice.firsts[-1]} links are too many (at most {MAX_LINKS}); use fewer nodes"
        )
    cables = {f"{dim.name}_cables": float(n) for dim, n in zip(lattice.dims, lattice.cables, strict=True)}
    crossbars = sum(lattice.positions // dim.size for dim in lattice.dims if dim.kind == "switch" and dim.size > 1)
    counts = {
        "routers": lattice.positions,
        **({"switches": crossbars} if crossbars else {}),
        **cables,
        "cables": sum(cables.values()) + site.endpoints,
        "bisection": lattice.bisection(),
        "oversubscription": max(1.0, site.endpoints * site.nic_rate / 2 / (lattice.bisection() or np.inf)),
    }
    return Network(
        runs=tuple(lattice.runs()),
        hops=lattice,
        port=_Port(lattice.share),
        ends=lattice.ends,
        counts=counts,
        fanouts=tuple(dim.size for dim in lattice.dims if dim.size > 1),
        rate=np.inf,
        rails=rails,
        key=key,
    )


@dataclass(frozen=True, slots=True)
class _Port:
    """The router of an endpoint by name; `share` endpoints hang on one."""

    share: int

    def __call__(self, endpoint: int) -> str:
        return f"router[{endpoint // self.share}]"
