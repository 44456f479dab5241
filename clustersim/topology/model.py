"""A built cluster: GPUs, directed links in flat arrays, and a router.

Links are numbered; each is one direction of one cable, or of a bundle of parallel cables that adaptive routing loads
evenly. GPU g is number g % gpus_per_node of node g // gpus_per_node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.config.gpu import Gpu
from clustersim.topology.memo import Memo
from clustersim.topology.symmetry import EndpointClasses, no_symmetry


class Routes(NamedTuple):
    """The paths of many (source, destination) pairs in compressed rows.

    Pair i crosses `links[start[i]:start[i + 1]]` in that order. `share`, as long as `links`, is the part of the pair's bytes
    that crosses the link: 1 unless the pair is spread over several paths, whose links then follow one another (a link that
    two of them cross stands there twice), or in a graph written out stand there once with the sum of their shares.
    `latency[i]` is the seconds from end to end when idle.
    """

    start: Ints
    links: Ints
    share: Floats
    latency: Floats


class Tier(NamedTuple):
    """A run of consecutive link ids `[first, first + links)` that share a name, such as `leaf-up`."""

    name: str
    first: int
    links: int


class NcclFacts(NamedTuple):
    """The NCCL that runs on every node: its version such as `2.30`, and what overrides its own choices.

    algo, proto: forced, None leaves them to the tuner. collnet: the network's switches add, and NCCL uses it (SHARP). nvls:
    switches inside nodes add, and it uses them. launch: seconds before every collective on top of NCCL's own latency (a CPU
    that launches each one and waits); None where the file does not say.
    """

    version: str = "2.30"
    algo: str | None = None
    proto: str | None = None
    collnet: bool = False
    launch: float | None = None
    nvls: bool = True


class NodeFacts(NamedTuple):
    """What NCCL knows of a node: figures of the validated spec that the links alone do not tell.

    architecture: of the GPU, such as `hopper`. scale_up: `nvswitch`, `nvlink` or `none`, of `links` links a GPU, each of
    `link` bytes/s a direction on the wire; `nvlink` bytes/s a GPU a direction that payload gets. multicast: its switches add
    and copy (NVLS). cpu: vendor. pcie: bytes/s of a slot. nics: ports a node, each of `nic_line` bytes/s on the wire and
    `nic` for payload after PCIe; nic_of: the NIC of each GPU of a node. net_latency: seconds from GPU to GPU through one leaf.
    rails: traffic between nodes stays on a rail of this many (1: none). nccl: the library. wire: bytes/s of a NIC and its cable
    before what protocols take.
    """

    architecture: str
    scale_up: str
    links: int
    link: float
    nvlink: float
    multicast: bool
    cpu: str
    pcie: float
    nics: int
    nic_line: float
    nic: float
    nic_of: tuple[int, ...]
    net_latency: float
    rails: int
    nccl: NcclFacts
    wire: float = 0.0


@runtime_checkable
class Router(Protocol):
    """What finds the routes from GPU to GPU. Derive from it: only `__call__` has no default."""

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs to GPUs."""
        ...

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which GPUs it cannot tell apart, of a cluster of so many GPUs and links; the default tells all apart."""
        return no_symmetry(gpus, links)


Ends = Callable[[int], tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A cluster, ready to be asked for routes.

    capacity: bytes/s of each directed link. latency: seconds to cross it. cables: physical cables in each link (more than
    1 in a bundle). tiers: names of runs of link ids. counts: derived figures that `clustersim show` prints (switches,
    cables, bisection in bytes/s). fanouts: how many nodes, groups of nodes, … make one group at each level upwards; their
    product is at least the number of nodes, and more only if the last groups are not full. launch: seconds to launch a
    collective. slowdown: how many times its nominal time each GPU computes. node: what NCCL knows of a node. ends: the two
    ends of a link, for drawing. reduction: `sharp` if the switches between the nodes add up, else `none`.
    warnings: sentences on rates of the file that something else cuts. memo: what was worked out about this
    cluster; it is gone with it.
    """

    name: str
    kind: str
    gpu: Gpu
    nodes: int
    gpus_per_node: int
    capacity: Floats
    latency: Floats
    cables: Floats
    tiers: tuple[Tier, ...]
    counts: Mapping[str, float]
    fanouts: tuple[int, ...]
    launch: float
    slowdown: Floats
    node: NodeFacts
    router: Router | Callable[[Ints, Ints], Routes] = field(repr=False)
    ends: Ends = field(repr=False)
    reduction: str = "none"
    warnings: tuple[str, ...] = ()
    memo: Memo = field(init=False, repr=False, default_factory=Memo)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node

    def route(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs `source` to GPUs `destination`, arrays of equal length."""
        return self.router(np.asarray(source, np.int64), np.asarray(destination, np.int64))

    def endpoint_classes(self) -> EndpointClasses:
        """Return which GPUs the network between nodes cannot tell apart."""
        of = self.router.endpoint_classes if isinstance(self.router, Router) else no_symmetry
        return of(self.gpus, len(self.capacity))

    def link_name(self, link: int) -> str:
        """Return the name of a link: its tier and its index there, such as `leaf-up[17]`."""
        for tier in self.tiers:
            if tier.first <= link < tier.first + tier.links:
                return f"{tier.name}[{link - tier.first}]"
        raise IndexError(f"link {link} of {len(self.capacity)}")
