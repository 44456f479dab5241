"""Input of every kind of fabric: the checked nodes, before any link is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.config.evidence import Declared
from clustersim.config.fields import Spec, validate
from clustersim.config.gpu import Gpu
from clustersim.config.topology import Jitter, Nccl, Node
from clustersim.config.yaml import Document, Loc
from clustersim.errors import ConfigError
from clustersim.topology.hops import Hops
from clustersim.topology.numbering import Numbering, numbered
from clustersim.units import either

S = TypeVar("S", bound=Spec)
MAX_GPUS = 2**21
MAX_LINKS = 10_000_000
CUT: Annotated[float, Declared()] = 0.98  # PCIe passes 48 of the 48.5 GB/s of a 400 Gb/s NIC, which needs no warning
"""Share of a path's rate above which a limiting part is not reported: 48 of 48.5 GB/s."""


@dataclass(frozen=True, slots=True)
class NodeSpecs:
    """Checked nodes of a topology file, all equal or of several types. Input of every kind of fabric."""

    document: Document
    """The file, for errors with file:line:column."""
    name: str
    nodes: int
    node: Node
    """One node: GPUs, links between them, NICs, host."""
    gpu: Gpu
    """Datasheet of its GPUs."""
    nccl: Nccl
    at: Loc
    """Position of the node in the document."""
    jitter: Jitter | None = None
    """Variation of GPU speed between steps."""
    pools: tuple[NodeSpecs, ...] = ()
    """Nodes type by type, if they differ; `node` and `gpu` are then those of the first type."""

    @property
    def parts(self) -> tuple[NodeSpecs, ...]:
        """Nodes type by type."""
        return self.pools or (self,)

    @property
    def gpus(self) -> int:
        """Number of GPUs of the cluster."""
        return sum(pool.nodes * pool.node.gpus.count for pool in self.parts)

    @property
    def nics(self) -> int:
        """NICs per node. Raises ConfigError if nodes have different numbers, for kinds of fabric that do not support it."""
        counts = self.nic_counts
        if len(counts) > 1:
            few = f"{self.fabric.get('kind')} needs as many NICs on every node, and the pools have {either(counts)}"
            what = f"fabric.kind: {few}; write as many, or use fat_tree, switch or explicit"
            raise self.error(("fabric", "kind"), what)
        return counts[0]

    @property
    def nic_counts(self) -> tuple[int, ...]:
        """Distinct numbers of NICs per node."""
        return tuple(dict.fromkeys(pool.node.nics.count if pool.node.nics else 0 for pool in self.parts))

    @property
    def endpoints(self) -> int:
        """Number of NICs of the cluster; they are numbered node after node."""
        return sum(pool.nodes * pool.nics for pool in self.parts)

    def by_endpoint(self, figure: Callable[[NodeSpecs], float]) -> Floats | float:
        """Return `figure(node type)` as one number for all NICs, or, if there are several types, for each NIC (endpoints,)."""
        if not self.pools:
            return figure(self)
        return np.repeat([figure(pool) for pool in self.pools], [pool.endpoints for pool in self.pools])

    @property
    def nic_rate(self) -> float:
        """Bytes/s of a NIC in one direction: line rate · efficiency, limited by PCIe; mean of several types; 0 without NICs."""
        nics = self.node.nics
        if self.pools or nics is None:
            return float(np.mean(self.by_endpoint(lambda pool: pool.nic_rate))) if self.pools else 0.0
        rate = nics.rate * nics.efficiency
        return rate if nics.attach == "integrated" else min(rate, self.node.host.usable)

    @property
    def nic_line(self) -> float:
        """Bytes/s of one NIC on the wire: its line rate, or the rate of PCIe if that is clearly lower."""
        nics = self.node.nics
        if self.pools or nics is None:
            return float(np.mean(self.by_endpoint(lambda pool: pool.nic_line))) if self.pools else 0.0
        return self.nic_rate if self.nic_rate < CUT * nics.rate * nics.efficiency else nics.rate

    @property
    def nic_of(self) -> Ints:
        """Index in its node of the NIC of each GPU of a node (GPUs,); 0 without NICs."""
        local, nics = np.arange(self.node.gpus.count), max(self.nics, 1)
        shared = self.node.nics is not None and self.node.nics.attach == "shared"
        return local % nics if shared else local * nics // len(local)

    def numbering(self) -> Numbering:
        """Return the numbering of GPUs and NICs."""
        return numbered((pool.nodes, max(pool.nics, 1), pool.nic_of) for pool in self.parts)

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return an error at a position of the document."""
        return self.document.error(loc, message)

    def check_links(self, links: int, key: Loc, remedy: str) -> None:
        """Raise ConfigError at a key of `fabric` for more links than can be built. remedy: what to use instead, in words."""
        if links > MAX_LINKS:
            many = f"{links} links are too many to build one by one (at most {MAX_LINKS})"
            raise self.error(("fabric", *key), f"{many}; use {remedy}")

    def section(self, spec: type[S], **defaults: object) -> S:
        """Return the `fabric` section parsed as `spec`, with `defaults` for missing keys. Raises ConfigError without NICs too."""
        section = validate(spec, self.document, {**defaults, **self.fabric}, ("fabric",))
        if self.node.nics is None:
            raise self.error((*self.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
        return section

    @property
    def fabric(self) -> Mapping[str, Any]:
        """The `fabric` section as in the file."""
        return self.document.data.get("fabric") or {}


class LinkRange(NamedTuple):
    """Links with consecutive numbers that share a name."""

    name: str
    """Name, such as `leaf-up`; link i of the range is `leaf-up[i]`."""
    capacity: Floats
    """Bytes/s in this direction over all cables of the link (links,)."""
    latency: Floats
    """Latency of each link in seconds (links,)."""
    cables: Floats
    """Physical cables per link: more than 1 if adaptive routing bundles them (links,)."""


def both_ways(
    name: str, links: int, rate: Floats | float, latency: Floats | float, cables: Floats | float = 1
) -> tuple[LinkRange, LinkRange]:
    """Return the ranges `name`-up and `name`-down of `links` links; rate (bytes/s), latency (s), cables: for all, or (links,)."""
    figures = [np.array(np.broadcast_to(np.asarray(x, np.float64), links)) for x in (rate, latency, cables)]
    return LinkRange(f"{name}-up", *figures), LinkRange(f"{name}-down", *(values.copy() for values in figures))


@dataclass(frozen=True, slots=True)
class BuiltFabric:
    """Fabric between endpoints (NICs), as built by one kind of fabric."""

    ranges: tuple[LinkRange, ...]
    """All links between switches, numbered from 0 in this order."""
    hops: Hops | Callable[[Ints, Ints], Ints]
    """Finds the links between endpoints; may be a plain function like `Hops.__call__`."""
    port: Callable[[int], str]
    """Function from an endpoint to the name of its switch."""
    ends: Callable[[int], tuple[str, str]]
    """Function from a link to the names of its start and end."""
    counts: Mapping[str, float]
    """Figures shown by `clustersim show`; `bisection` in bytes/s."""
    fanouts: tuple[int, ...]
    """Fan-out of each level upwards: nodes per group, groups per larger group, …."""
    rate: Floats | float
    """Bytes/s of the cable between a NIC and its switch, one for all or one per endpoint."""
    delay: Floats | float = 0.0
    """Latency of that cable in seconds."""
    rails: int = 1
    """Number of rails: traffic leaves a node by a NIC j with j % rails equal to the destination's; 1: by the GPU's own NIC."""
    paths: int = 1
    """Number of paths of equal width in a row of `hops`; those whose first link is not -1 share the bytes."""
    reduction: str = "none"
    """`sharp` if the switches add (in-network reduction), else `none`."""
    key: str = "fabric.link.rate"
    """Key of the cable rate in the file, for warnings."""
    warnings: tuple[str, ...] = ()
    """Sentences on values that differ from the file."""
