"""A built cluster: GPUs, directed links in flat arrays, and a router.

Links are numbered; each is one direction of one cable, or of a bundle of parallel cables that adaptive routing loads
evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.cache import Cache, of_arrays
from clustersim.config.gpu import Gpu
from clustersim.config.topology import P2P_CHUNK, Jitter
from clustersim.topology.hops import EndpointClasses, no_symmetry
from clustersim.topology.node_graph import rings
from clustersim.topology.numbering import Numbering


class Routes(NamedTuple):
    """The paths of many (source, destination) pairs in compressed rows."""

    start: Ints
    """Pair i crosses `links[start[i]:start[i + 1]]`, in that order (pairs + 1,)."""
    links: Ints
    """The links of all pairs, one pair after the other."""
    share: Floats
    """The part of the pair's bytes that crosses each of `links`: 1 unless the pair is spread over several paths. Those follow one
    another, and a link that two of them cross stands there twice; in a graph written out it stands there once, with the sum."""
    latency: Floats
    """Seconds from end to end when idle (pairs,)."""


class LinkTier(NamedTuple):
    """A range of links with consecutive numbers that share a name."""

    name: str
    """Such as `leaf-up`."""
    first: int
    links: int

    @property
    def span(self) -> slice:
        """The places of its links in an array of all links."""
        return slice(self.first, self.first + self.links)


class NcclFacts(NamedTuple):
    """The NCCL that runs on every node, and what overrides its own choices."""

    version: str = "2.30"
    algo: str | None = None
    proto: str | None = None
    """The algorithm and the protocol that are forced; None leaves them to the tuner."""
    collnet: bool = False
    """The network's switches add, and NCCL uses it (SHARP)."""
    launch: float | None = None
    """Seconds before every collective on top of NCCL's own latency, of a CPU that launches each one and waits; None: not said."""
    nvls: bool = True
    """Switches inside nodes add, and NCCL uses it."""
    slowdown: float = 1.0
    """How many times as long it takes beside the bytes."""
    p2p_chunk: float = P2P_CHUNK
    """Bytes of a step of a message between nodes."""


class Rings(NamedTuple):
    """How NCCL joins some GPUs of a node whose pairs are joined in unlike ways."""

    links: int
    """Links by which rings leave each GPU; 0: the rings use PCIe."""
    orders: tuple[tuple[int, ...], ...]
    """Different rings, each the positions of the GPUs in its order."""


class HostFacts(NamedTuple):
    """What the CPUs of a node offer to offloading: bytes/s of a `link` to a GPU and how many GPUs share it, bytes and datasheet's
    bytes/s of the node's memory, and its cores."""

    link: float
    shared: int
    memory: float
    bandwidth: float
    cores: int


class HostRoutes(NamedTuple):
    """The links from each GPU to the memory of its host, those from there, and that memory alone (GPUs, links)."""

    up: Ints
    down: Ints
    memory: Ints


class NodeFacts(NamedTuple):
    """What NCCL knows of a node: figures of the validated spec that the links alone do not tell."""

    architecture: str
    """Of the GPU, such as `hopper`."""
    scale_up: str
    """What joins the GPUs of a node: `nvswitch`, `nvlink`, `mesh`, `ring`, `torus` or `none`."""
    links: int
    """Links of one GPU inside its node."""
    link: float
    """Bytes/s a direction of one of them on the wire."""
    nvlink: float
    """Bytes/s a GPU and direction that payload gets from all of them."""
    multicast: bool
    """The switches of the node add and copy (NVLS)."""
    cpu: str
    """Vendor of the host's CPU."""
    pcie: float
    """Bytes/s of a slot."""
    nics: int
    """NICs a node."""
    nic_line: float
    """Bytes/s of a NIC on the wire."""
    nic: float
    """Bytes/s of a NIC for payload, after PCIe."""
    net_latency: float
    """Seconds from GPU to GPU through one leaf."""
    plugin_latency: float
    """Seconds that the network's plugin states to NCCL, whose tuner adds them to its own of a hop."""
    rails: int
    """Traffic between nodes stays on a rail of this many; 1: none."""
    nccl: NcclFacts
    wire: float = 0.0
    """Bytes/s of a NIC and its cable before what protocols take."""
    tree_chunk: float | None = None
    """The most bytes of a chunk of NVLSTree, where the NICs' plugin sets it."""
    pairs: tuple[tuple[int, int, int, float], ...] = ()
    """GPU, GPU, links and bytes/s of one of them of each pair, where links join pairs of a node."""
    island: int = 0
    """GPUs that switches or links join, where these are not all of a node; 0: all."""
    host: HostFacts | None = None

    def rings(self, gpus: tuple[int, ...]) -> Rings | None:
        """Return what joins some GPUs of a node, where their pairs are joined in unlike ways; None where all are joined alike."""
        if len(gpus) < 2 or not (self.pairs or self.island):
            return None
        if self.island:
            return None if len({gpu // self.island for gpu in gpus}) == 1 else Rings(0, ())
        found = tuple(rings(self.pairs, gpus))
        return Rings(len(found), tuple(dict.fromkeys(found)))

    def within(self, joined: Rings | None) -> NodeFacts:
        """Return the figures of a communicator whose GPUs are joined so: by fewer links, or by PCIe alone."""
        if joined is None:
            return self
        if not joined.links:
            return self._replace(scale_up="none", links=0, link=0.0, nvlink=0.0, multicast=False)
        each = self.nvlink / self.links
        return self._replace(scale_up="nvlink", links=joined.links, nvlink=joined.links * each)


GENERATIONS = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra")
"""Architectures of one vendor, the oldest first; those of the other sort by name."""


def pool_facts(nodes: Sequence[NodeFacts]) -> NodeFacts:
    """Return NCCL's figures for a communicator on nodes of these types: of each figure the least among them.

    Its processes compare the channels and rates that each found, and take the least; so they do with the GPUs' generations
    (src/init.cc: initTransportsRank).
    """
    first = nodes[0]
    if len(nodes) == 1:
        return first
    least = {name: min(getattr(one, name) for one in nodes) for name in _LEAST}
    if len({one.scale_up for one in nodes}) > 1:
        least["scale_up"] = "nvlink" if least["nvlink"] else "none"
    oldest = min((one.architecture for one in nodes), key=_generation)
    most = {name: max(getattr(one, name) for one in nodes) for name in ("net_latency", "plugin_latency")}
    return first._replace(**least, **most, architecture=oldest)


_LEAST = ("links", "link", "nvlink", "multicast", "pcie", "nics", "nic_line", "nic", "wire")


def _generation(architecture: str) -> tuple[int, str]:
    return GENERATIONS.index(architecture) if architecture in GENERATIONS else -1, architecture


class Pool(NamedTuple):
    """The nodes of one type, of a cluster that has several."""

    gpu: Gpu
    """The datasheet of their GPUs."""
    facts: NodeFacts
    """What NCCL knows of one of them."""
    host_slowdown: float
    """As in Topology."""


@runtime_checkable
class Router(Protocol):
    """What finds the routes from GPU to GPU. Derive from it: only `__call__` has no default."""

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs to GPUs."""

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which GPUs of a cluster of `gpus` GPUs and `links` links are equivalent to the network; by default none are."""
        return no_symmetry(gpus, links)

    @property
    def equal_nodes(self) -> bool:
        """Whether routes end at NICs and are the same in every node; the default does not know."""
        return False

    def up_to_nics(self, capacity: Floats) -> Router | None:
        """Return the routes without the links between switches if these can never be short, given the capacity of all links.

        The default does not know.
        """
        return None


Ends = Callable[[int], tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A cluster, ready to be asked for routes."""

    name: str
    kind: str
    """Kind of the fabric, such as `fat_tree`."""
    gpu: Gpu
    """The datasheet of every GPU; of several types of nodes, of the first."""
    numbering: Numbering
    """Which node each GPU is of, and which NIC it leaves by."""
    capacity: Floats
    """Bytes/s of each directed link (links,)."""
    latency: Floats
    """Seconds to cross each (links,)."""
    cables: Floats
    """Physical cables in each: more than 1 in a bundle (links,)."""
    tiers: tuple[LinkTier, ...]
    """Names of the ranges of links."""
    counts: Mapping[str, float]
    """Figures that `clustersim show` prints: switches, cables, bisection in bytes/s."""
    fanouts: tuple[int, ...]
    """How many nodes, groups of nodes, … make one group at each level upwards. Their product is more than `nodes` only if
    the last groups are not full."""
    launch: float
    """Seconds to launch a collective."""
    slowdown: Floats
    """How many times its nominal time each GPU computes (GPUs,)."""
    node: NodeFacts
    """What NCCL knows of a node; of several types, what all of them can do."""
    router: Router | Callable[[Ints, Ints], Routes] = field(repr=False)
    """Finds the routes; a plain function does too, as `Router.__call__`."""
    ends: Ends = field(repr=False)
    """The names of what a link leads from and to."""
    host_slowdown: float = 1.0
    """How many times as long its hosts take to launch as those of `frameworks/`."""
    reduction: str = "none"
    """`sharp` if the switches between the nodes add up, else `none`."""
    warnings: tuple[str, ...] = ()
    """Sentences on rates of the file that something else cuts."""
    jitter: Jitter | None = None
    """How the time that GPUs compute differs from step to step."""
    pools: tuple[Pool, ...] = ()
    """The types of its nodes, if there are several."""
    hosts: HostRoutes | None = None
    """The links to the memory of its hosts, where jobs offload (`host_links.hosted`)."""
    pool: Ints | None = None
    """The type of each GPU's node, if there are several (GPUs,)."""
    cache: Cache = field(init=False, repr=False, default_factory=of_arrays)
    """What was worked out about this cluster; it is gone with it."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.numbering.nodes

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.numbering.gpus

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; where nodes have different numbers, the most that fills each: of 4 and 8 it is 4."""
        return self.numbering.filled_by()

    @property
    def kinds(self) -> tuple[Pool, ...]:
        """The types of its nodes, one or more."""
        return self.pools or (Pool(self.gpu, self.node, self.host_slowdown),)

    def kind_of(self, gpus: Ints) -> Ints:
        """Return the type of each GPU's node, by its place in `kinds`."""
        return np.zeros(np.shape(gpus), np.int64) if self.pool is None else self.pool[gpus]

    @property
    def memory(self) -> float:
        """Bytes of the GPU with the most."""
        return max(kind.gpu.memory for kind in self.kinds)

    def counted(self, gpus: Ints | None = None) -> list[tuple[Gpu, int]]:
        """Return each kind of GPU and how many of `gpus`, usually all, are of it."""
        of = self.kind_of(np.arange(self.gpus) if gpus is None else gpus)
        each = np.bincount(of, minlength=len(self.kinds)).tolist()
        found: dict[str, tuple[Gpu, int]] = {}
        for kind, count in zip(self.kinds, each, strict=True):
            if count:
                found[kind.gpu.name] = kind.gpu, count + found.get(kind.gpu.name, (kind.gpu, 0))[1]
        return list(found.values())

    @property
    def said(self) -> str:
        """How many GPUs of which kind: `1,024 × h100-sxm`."""
        return " + ".join(f"{count:,} × {gpu.name}" for gpu, count in self.counted())

    def node_types(self) -> list[tuple[Gpu, int, int]]:
        """Return the GPU of each type of node, how many a node has, and how many such nodes there are."""
        first = self.numbering.first
        pairs = np.stack([self.kind_of(first[:-1]), np.diff(first)], axis=1)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        return [
            (self.kinds[kind].gpu, gpus, n) for (kind, gpus), n in zip(found.tolist(), counts.tolist(), strict=True)
        ]

    def smallest(self, gpus: Ints, parts: int) -> list[Gpu]:
        """Return the GPU with the least memory of each of `parts` equal, consecutive parts of `gpus`."""
        if not self.pools:
            return [self.gpu] * parts
        kinds, rows = self.kinds, self.kind_of(gpus).reshape(parts, -1)
        order = np.argsort([kind.gpu.memory for kind in kinds], kind="stable")
        rank = np.argsort(order)  # by memory
        return [kinds[order[place]].gpu for place in rank[rows].min(axis=1).tolist()]

    def facts(self, kinds: Iterable[int] = ()) -> NodeFacts:
        """Return NCCL's figures for a communicator on nodes of these types; of none, on any."""
        own = [self.pools[kind].facts for kind in kinds if self.pools]
        return pool_facts(own)._replace(nccl=self.node.nccl) if own else self.node

    def route(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs `source` to GPUs `destination`, arrays of equal length."""
        return self.router(np.asarray(source, np.int64), np.asarray(destination, np.int64))

    def up_to_nics(self) -> Topology | None:
        """Return the cluster without its links between switches, which then have no latency either, if these can never be short.

        None if they can, or it is unknown.
        """

        def found() -> Topology | None:
            router = self.router.up_to_nics(self.capacity) if isinstance(self.router, Router) else None
            return None if router is None else replace(self, router=router)

        return self.cache.once("up to NICs", found)

    def same_in_next_node(self) -> Ints | None:
        """Return by link how far the number of the same link of the next node is; None where nodes may differ.

        For a cluster `up_to_nics`, whose routes cross links of nodes alone.
        """

        def found() -> Ints | None:
            steps = np.zeros(len(self.capacity), np.int64)
            for tier in self.tiers:
                steps[tier.span] = tier.links // self.nodes
                if any((own[1:] != own[:-1]).any() for own in (self.capacity[tier.span], self.latency[tier.span])):
                    return None
            return steps

        equal = isinstance(self.router, Router) and self.router.equal_nodes
        return self.cache.once("next", found) if equal else None

    def latencies(self, source: Ints, destination: Ints) -> Floats:
        """Return the seconds from end to end of many pairs of GPUs, as `route` does."""
        inner, classes = self.up_to_nics(), self.endpoint_classes()
        if inner is None or classes.unknown.any():
            return self.route(source, destination).latency
        own = inner.route(source, destination).latency
        away = self.numbering.node_of(source) != self.numbering.node_of(destination)
        a, b = classes.source[source, classes.rail[destination]], classes.destination[destination]
        kind = np.where(away, a * (int(classes.destination.max()) + 1) + b, -1)
        _, first, of = np.unique(kind, return_index=True, return_inverse=True)
        between = self.route(source[first], destination[first]).latency - own[first]
        found: Floats = own + between[of]
        return found

    def endpoint_classes(self) -> EndpointClasses:
        """Return which GPUs the network between nodes cannot tell apart."""
        of = self.router.endpoint_classes if isinstance(self.router, Router) else no_symmetry
        return self.cache.once("classes", lambda: of(self.gpus, len(self.capacity)))

    def link_name(self, link: int) -> str:
        """Return the name of a link: its tier and its index there, such as `leaf-up[17]`."""
        for tier in self.tiers:
            if tier.first <= link < tier.first + tier.links:
                return f"{tier.name}[{link - tier.first}]"
        raise IndexError(f"link {link} of {len(self.capacity)}")
