"""What every kind of fabric is given: the nodes, checked, before any link is built."""

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
_CUT: Annotated[float, Declared()] = (
    0.98  # PCIe gets through 48 GB/s of the 48.5 of a 400 Gb/s NIC, which is not worth a word
)
"""Share of a path's rate from which on a part is no limit worth a word: 48 of 48.5 GB/s."""


@dataclass(frozen=True, slots=True)
class NodeSpecs:
    """What a topology file says of its nodes, checked: a number of equal ones. Every kind of fabric is given this."""

    document: Document
    """The file, for messages with file:line:column."""
    name: str
    nodes: int
    node: Node
    """One node: GPUs, the links between them, NICs, host."""
    gpu: Gpu
    """The datasheet of its GPUs."""
    nccl: Nccl
    at: Loc
    """Where the node stands in the document."""
    jitter: Jitter | None = None
    """How the time that GPUs compute differs from step to step."""
    pools: tuple[NodeSpecs, ...] = ()
    """The nodes type by type, where they are not equal; `node` and `gpu` are then those of the first."""

    @property
    def parts(self) -> tuple[NodeSpecs, ...]:
        """The nodes type by type."""
        return self.pools or (self,)

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(pool.nodes * pool.node.gpus.count for pool in self.parts)

    @property
    def nics(self) -> int:
        """NICs of one node. Raises ConfigError where nodes have different numbers, for kinds of fabric that cannot join these."""
        own = self.nic_counts
        if len(own) > 1:
            few = f"{self.fabric.get('kind')} needs as many NICs on every node, and the pools have {either(own)}"
            what = f"fabric.kind: {few}; write as many, or use fat_tree, switch or explicit"
            raise self.error(("fabric", "kind"), what)
        return own[0]

    @property
    def nic_counts(self) -> tuple[int, ...]:
        """How many NICs nodes have: each number once."""
        return tuple(dict.fromkeys(pool.node.nics.count if pool.node.nics else 0 for pool in self.parts))

    @property
    def endpoints(self) -> int:
        """NICs of the cluster, numbered node after node."""
        return sum(pool.nodes * pool.nics for pool in self.parts)

    def by_endpoint(self, of: Callable[[NodeSpecs], float]) -> Floats | float:
        """Return a figure of each type's NICs: one for all, or where types differ one an endpoint."""
        if not self.pools:
            return of(self)
        return np.repeat([of(pool) for pool in self.pools], [pool.endpoints for pool in self.pools])

    @property
    def nic_rate(self) -> float:
        """Bytes/s that one NIC carries in one direction: line rate times efficiency, at most what PCIe gets through.

        Of several types of nodes the mean, as for `nic_line`.
        """
        nics = self.node.nics
        if self.pools or nics is None:
            return float(np.mean(self.by_endpoint(lambda pool: pool.nic_rate))) if self.pools else 0.0
        rate = nics.rate * nics.efficiency
        return rate if nics.attach == "integrated" else min(rate, self.node.host.usable)

    @property
    def nic_line(self) -> float:
        """Bytes/s on the wire of one NIC: its line rate, or what PCIe gets through where that is clearly less."""
        nics = self.node.nics
        if self.pools or nics is None:
            return float(np.mean(self.by_endpoint(lambda pool: pool.nic_line))) if self.pools else 0.0
        return self.nic_rate if self.nic_rate < _CUT * nics.rate * nics.efficiency else nics.rate

    @property
    def nic_of(self) -> Ints:
        """The NIC of each GPU of a node."""
        local, nics = np.arange(self.node.gpus.count), max(self.nics, 1)
        shared = self.node.nics is not None and self.node.nics.attach == "shared"
        return local % nics if shared else local * nics // len(local)

    def numbering(self) -> Numbering:
        """Return which node each GPU is of, and which NIC it leaves by."""
        return numbered((pool.nodes, max(pool.nics, 1), pool.nic_of) for pool in self.parts)

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return an error at a place of the document."""
        return self.document.error(loc, message)

    def section(self, spec: type[S], **defaults: object) -> S:
        """Return the `fabric` section as a kind of fabric that joins NICs specifies it. Raises ConfigError."""
        found = validate(spec, self.document, {**defaults, **self.fabric}, ("fabric",))
        if self.node.nics is None:
            raise self.error((*self.at, "nics"), "nics is missing; a fabric joins NICs, add nics: {count, rate}")
        return found

    @property
    def fabric(self) -> Mapping[str, Any]:
        """The `fabric` section as written."""
        return self.document.data.get("fabric") or {}


class LinkRange(NamedTuple):
    """Links with consecutive numbers that share a name."""

    name: str
    """Such as `leaf-up`; link i of the range is `leaf-up[i]`."""
    capacity: Floats
    """Bytes/s in this direction, all cables of the link together (links,)."""
    latency: Floats
    """Seconds to cross each (links,)."""
    cables: Floats
    """Physical cables in each: more than 1 where adaptive routing bundles them (links,)."""


def both_ways(
    name: str, links: int, rate: Floats | float, latency: Floats | float, cables: Floats | float = 1
) -> tuple[LinkRange, LinkRange]:
    """Return the ranges `name`-up and `name`-down of equally many links; a single number counts for each of them."""
    figures = [np.array(np.broadcast_to(np.asarray(x, np.float64), links)) for x in (rate, latency, cables)]
    return LinkRange(f"{name}-up", *figures), LinkRange(f"{name}-down", *(each.copy() for each in figures))


@dataclass(frozen=True, slots=True)
class BuiltFabric:
    """The fabric between endpoints (NICs), as one kind of fabric builds it."""

    ranges: tuple[LinkRange, ...]
    """All links between switches; they are numbered from 0 through these."""
    hops: Hops | Callable[[Ints, Ints], Ints]
    """Finds the links from endpoint to endpoint; a plain function does too, as `Hops.__call__`."""
    port: Callable[[int], str]
    """The name of the switch that an endpoint hangs on."""
    ends: Callable[[int], tuple[str, str]]
    """The names of the two switches of a link, from and to."""
    counts: Mapping[str, float]
    """Figures that `clustersim show` prints; `bisection` in bytes/s."""
    fanouts: tuple[int, ...]
    """How many nodes, groups of nodes, … make one group at each level upwards."""
    rate: Floats | float
    """Bytes/s of the cable between a NIC and its switch, one for all or one an endpoint."""
    delay: Floats | float = 0.0
    """Seconds of that cable."""
    rails: int = 1
    """Traffic leaves a node by a NIC j with j % rails equal to the destination's; 1: by the GPU's own."""
    paths: int = 1
    """How many paths of equal width stand side by side in a row of `hops`; those whose first link is not -1 share the bytes."""
    reduction: str = "none"
    """`sharp` if the switches add up, else `none`."""
    key: str = "fabric.link.rate"
    """Where the file says how fast cables are, for warnings."""
    warnings: tuple[str, ...] = ()
    """Sentences on what it has otherwise than the file says."""
