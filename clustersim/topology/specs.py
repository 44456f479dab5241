"""What every kind of fabric is given: the nodes, checked, before any link is laid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.config.gpu import Gpu
from clustersim.config.topology import Nccl, Node
from clustersim.config.yaml import Document, Loc
from clustersim.errors import ConfigError
from clustersim.topology.hops import Hops

MAX_GPUS = 1_000_000
MAX_LINKS = 10_000_000
_CUT = 0.98  # PCIe gets through 48 GB/s of the 48.5 of a 400 Gb/s NIC, which is not worth a word


@dataclass(frozen=True, slots=True)
class Site:
    """A number of equal nodes. `at` is where the node stands in the document, for messages."""

    document: Document
    name: str
    nodes: int
    node: Node
    gpu: Gpu
    nccl: Nccl
    at: Loc

    @property
    def nics(self) -> int:
        """NICs of one node."""
        return self.node.nics.count if self.node.nics else 0

    @property
    def endpoints(self) -> int:
        """NICs of the cluster; NIC j of node n is endpoint n * nics + j."""
        return self.nodes * self.nics

    @property
    def nic_rate(self) -> float:
        """Bytes/s that one NIC carries in one direction: line rate times efficiency, at most what PCIe gets through."""
        nics = self.node.nics
        if nics is None:
            return 0.0
        rate = nics.rate * nics.efficiency
        return rate if nics.attach == "integrated" else min(rate, self.node.host.usable)

    @property
    def nic_line(self) -> float:
        """Bytes/s on the wire of one NIC: its line rate, or what PCIe gets through where that is clearly less."""
        nics = self.node.nics
        if nics is None:
            return 0.0
        return self.nic_rate if self.nic_rate < _CUT * nics.rate * nics.efficiency else nics.rate

    @property
    def nic_of(self) -> Ints:
        """The NIC of each GPU of a node."""
        local, nics = np.arange(self.node.gpus.count), max(self.nics, 1)
        shared = self.node.nics is not None and self.node.nics.attach == "shared"
        return local % nics if shared else local * nics // len(local)

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return an error at a place of the document."""
        return self.document.error(loc, message)

    @property
    def fabric(self) -> Mapping[str, Any]:
        """The `fabric` section as written."""
        return self.document.data.get("fabric") or {}


class Run(NamedTuple):
    """Links that share a name: capacity in bytes/s, latency in seconds, physical cables in each."""

    name: str
    capacity: Floats
    latency: Floats
    cables: Floats


@dataclass(frozen=True, slots=True)
class Network:
    """The fabric between endpoints (NICs), as one kind of fabric lays it.

    hops(source, destination): endpoints → matrix (pairs, width) of links in order, counted from 0 through `runs`; -1 where a
    path is shorter. port(endpoint): the switch it hangs on. ends(link): its two switches. rate: bytes/s of the cable between
    NIC and switch, and `delay` its seconds. rails: traffic leaves a node by a NIC j with j % rails equal to the destination's
    (1: by the GPU's own). ways: paths that stand side by side in a row of `hops`, of equal width; those whose first is
    not -1 share the bytes evenly. counts, fanouts, reduction: as in Topology.

    key: where the file says how fast cables are.
    """

    runs: tuple[Run, ...]
    hops: Hops | Callable[[Ints, Ints], Ints]
    port: Callable[[int], str]
    ends: Callable[[int], tuple[str, str]]
    counts: Mapping[str, float]
    fanouts: tuple[int, ...]
    rate: Floats | float
    delay: Floats | float = 0.0
    rails: int = 1
    ways: int = 1
    reduction: str = "none"
    key: str = "fabric.link.rate"
