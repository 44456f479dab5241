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

GENERATIONS = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra")
"""Architectures of one vendor, the oldest first; names of the other vendor's sort by themselves."""
_LEAST = ("links", "link", "nvlink", "multicast", "pcie", "nics", "nic_line", "nic", "wire")
Ends = Callable[[int], tuple[str, str]]


class Routes(NamedTuple):
    """Paths of many (source, destination) pairs in compressed rows."""

    start: Ints
    """Pair i crosses `links[start[i]:start[i + 1]]`, in that order (pairs + 1,)."""
    links: Ints
    """Links of all pairs, one pair after the other."""
    share: Floats
    """Share of the pair's bytes that crosses each of `links`: 1 unless the pair is spread over several paths. Paths follow one
    another, so a link on two of them appears twice; in an explicit graph it appears once, with the sum."""
    latency: Floats
    """Latency from end to end on an idle fabric, in seconds (pairs,)."""


class LinkTier(NamedTuple):
    """A range of links with consecutive numbers that share a name."""

    name: str
    """Name, such as `leaf-up`."""
    first: int
    links: int

    @property
    def span(self) -> slice:
        """Slice of its links in an array over all links."""
        return slice(self.first, self.first + self.links)


class NcclFacts(NamedTuple):
    """Release and settings of NCCL on every node."""

    version: str = "2.30"
    algo: str | None = None
    proto: str | None = None
    """Forced algorithm (`algo`) and protocol; None: chosen by the tuner."""
    collnet: bool = False
    """Whether the network's switches add, and NCCL uses them (SHARP)."""
    launch: float | None = None
    """Seconds before every collective in addition to NCCL's own latency, for a CPU that waits for each launch; None: not set."""
    nvls: bool = True
    """Whether switches inside nodes add, and NCCL uses them."""
    slowdown: float = 1.0
    """Factor on all times except the transfer of bytes."""
    p2p_chunk: float = P2P_CHUNK
    """Bytes per step of a message between nodes."""


class Rings(NamedTuple):
    """Rings of NCCL over some GPUs of a node whose pairs have different connections."""

    links: int
    """Number of links by which rings leave each GPU; 0: the rings use PCIe."""
    orders: tuple[tuple[int, ...], ...]
    """Distinct rings, each as the positions of the GPUs in its order."""


class HostFacts(NamedTuple):
    """Properties of a node's CPUs for offloading: bytes/s of a `link` to a GPU and the number of GPUs that share it, size in
    bytes and datasheet bytes/s of the node's memory, and its cores."""

    link: float
    shared: int
    memory: float
    bandwidth: float
    cores: int


class HostRoutes(NamedTuple):
    """Link numbers from each GPU to the memory of its host, back, and of the memory itself (each: GPUs, links)."""

    up: Ints
    down: Ints
    memory: Ints


class NodeFacts(NamedTuple):
    """Figures of a node that NCCL uses, beyond what the links tell."""

    architecture: str
    """Architecture of the GPU, such as `hopper`."""
    scale_up: str
    """Connection of the GPUs of a node: `nvswitch`, `nvlink`, `mesh`, `ring`, `torus` or `none`."""
    links: int
    """Number of links of one GPU inside its node."""
    link: float
    """Bytes/s per direction of one link on the wire."""
    nvlink: float
    """Payload bytes/s per GPU and direction over all links."""
    multicast: bool
    """Whether the switches of the node add and copy (NVLS)."""
    cpu: str
    """Vendor of the host's CPU."""
    pcie: float
    """Bytes/s of a PCIe slot."""
    nics: int
    """NICs per node."""
    nic_line: float
    """Bytes/s of a NIC on the wire."""
    nic: float
    """Payload bytes/s of a NIC, limited by PCIe."""
    net_latency: float
    """Latency in seconds from GPU to GPU through one leaf."""
    plugin_latency: float
    """Latency in seconds that the network plug-in declares to NCCL, whose tuner adds it to its own hop latency."""
    rails: int
    """Number of rails that traffic between nodes stays on; 1: none."""
    nccl: NcclFacts
    wire: float = 0.0
    """Bytes/s of a NIC and its cable before protocol overhead."""
    tree_chunk: float | None = None
    """Largest chunk of NVLSTree in bytes, if the NICs' plug-in sets it; None otherwise."""
    pairs: tuple[tuple[int, int, int, float], ...] = ()
    """(GPU, GPU, links, bytes/s of one link) of each pair with its own links."""
    island: int = 0
    """Number of GPUs connected by switches or links, if not all of a node; 0: all."""
    host: HostFacts | None = None

    def rings(self, gpus: tuple[int, ...]) -> Rings | None:
        """Return NCCL's rings over some GPUs of a node, as positions in `gpus` (indices in the node).

        There are none, with 0 links, if they use PCIe between islands. Return None if all pairs have equal connections.
        """
        if len(gpus) < 2 or not (self.pairs or self.island):
            return None
        if self.island:
            return None if len({gpu // self.island for gpu in gpus}) == 1 else Rings(0, ())
        orders = tuple(rings(self.pairs, gpus))
        return Rings(len(orders), tuple(dict.fromkeys(orders)))

    def within(self, used_rings: Rings | None) -> NodeFacts:
        """Return the figures of a communicator over the rings `used_rings`: fewer links, or only PCIe. None: these figures."""
        if used_rings is None:
            return self
        if not used_rings.links:
            return self._replace(scale_up="none", links=0, link=0.0, nvlink=0.0, multicast=False)
        rate = self.nvlink / self.links
        return self._replace(scale_up="nvlink", links=used_rings.links, nvlink=used_rings.links * rate)


def pool_facts(nodes: Sequence[NodeFacts]) -> NodeFacts:
    """Return NCCL's figures for a communicator on nodes of these types: the minimum of each figure.

    NCCL's processes use the minimum of the channels and rates of all, also of GPU generations (src/init.cc: initTransportsRank).
    """
    first = nodes[0]
    if len(nodes) == 1:
        return first
    least = {name: min(getattr(node, name) for node in nodes) for name in _LEAST}
    if len({node.scale_up for node in nodes}) > 1:
        least["scale_up"] = "nvlink" if least["nvlink"] else "none"
    ages = {architecture: age for age, architecture in enumerate(GENERATIONS)}
    oldest = min(sorted(node.architecture for node in nodes), key=lambda name: ages.get(name, -1))  # unknown before all
    most = {name: max(getattr(node, name) for node in nodes) for name in ("net_latency", "plugin_latency")}
    return first._replace(**least, **most, architecture=oldest)


class Pool(NamedTuple):
    """Nodes of one type, in a cluster of several types."""

    gpu: Gpu
    """Datasheet of their GPUs."""
    facts: NodeFacts
    """NCCL's figures of one node."""
    host_slowdown: float
    """Factor on the hosts' launch times, as in Topology."""


@runtime_checkable
class Router(Protocol):
    """Finds the routes from GPU to GPU. Subclasses must define `__call__`; all else has defaults."""

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from each source GPU to its destination."""

    def endpoint_classes(self, gpus: int, links: int) -> EndpointClasses:
        """Return which GPUs of a cluster of `gpus` GPUs and `links` links are equivalent to the network; by default none are."""
        return no_symmetry(gpus, links)

    @property
    def equal_nodes(self) -> bool:
        """Whether routes end at NICs and are the same in every node; False by default, as unknown."""
        return False

    def up_to_nics(self, capacity: Floats) -> Router | None:
        """Return routes without the links between switches, if these can never be a bottleneck at these capacities (bytes/s).

        None, the default, means that they can, or that it is unknown.
        """
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A built cluster: GPUs, links and routes."""

    name: str
    kind: str
    """Kind of the fabric, such as `fat_tree`."""
    gpu: Gpu
    """Datasheet of every GPU; with several node types, of the first type's."""
    numbering: Numbering
    """Node and NIC of each GPU."""
    capacity: Floats
    """Bytes/s of each directed link (links,)."""
    latency: Floats
    """Latency of each link in seconds (links,)."""
    cables: Floats
    """Physical cables per link: more than 1 in a bundle (links,)."""
    tiers: tuple[LinkTier, ...]
    """Named ranges of links."""
    counts: Mapping[str, float]
    """Figures shown by `clustersim show`: switches, cables, bisection in bytes/s."""
    fanouts: tuple[int, ...]
    """Fan-out of each level upwards: nodes per group, groups per larger group, …. Their product exceeds `nodes` only if the last
    groups are not full."""
    launch: float
    """Seconds to launch a collective."""
    slowdown: Floats
    """Slowdown of each GPU: its time over the nominal time (GPUs,)."""
    node: NodeFacts
    """NCCL's figures of a node; with several types, the minimum that all support."""
    router: Router | Callable[[Ints, Ints], Routes] = field(repr=False)
    """Finds the routes; may be a plain function like `Router.__call__`."""
    ends: Ends = field(repr=False)
    """Function from a link to the names of its start and end."""
    host_slowdown: float = 1.0
    """Factor on the hosts' launch times, relative to the hosts of `frameworks/`."""
    reduction: str = "none"
    """`sharp` if the switches between nodes add (in-network reduction), else `none`."""
    notes: tuple[str, ...] = ()
    """Sentences on what an override of the file's values leaves as it is."""
    warnings: tuple[str, ...] = ()
    """Sentences on rates of the file that something else limits, for jobs that use the network."""
    jitter: Jitter | None = None
    """Variation of GPU speed between steps."""
    pools: tuple[Pool, ...] = ()
    """Node types, if there are several."""
    hosts: HostRoutes | None = None
    """Links to the memory of the hosts, if jobs offload (`host_links.with_host_links`)."""
    pool: Ints | None = None
    """Index into `pools` of each GPU's node, if there are several types (GPUs,)."""
    cache: Cache = field(init=False, repr=False, default_factory=of_arrays)
    """Cache of results about this cluster."""

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
        """GPUs per node; if nodes differ, the greatest common divisor: 4 for nodes of 4 and 8."""
        return self.numbering.common_width()

    @property
    def kinds(self) -> tuple[Pool, ...]:
        """Node types, at least one."""
        return self.pools or (Pool(self.gpu, self.node, self.host_slowdown),)

    def kind_of(self, gpus: Ints) -> Ints:
        """Return the index into `kinds` of each GPU's node."""
        return np.zeros(np.shape(gpus), np.int64) if self.pool is None else self.pool[gpus]

    @property
    def memory(self) -> float:
        """Bytes of memory of the GPU with the most."""
        return max(kind.gpu.memory for kind in self.kinds)

    def gpu_counts(self, gpus: Ints | None = None) -> list[tuple[Gpu, int]]:
        """Return (datasheet, number of GPUs) of each type of GPU among `gpus` (default: all), without types that are absent."""
        kinds = self.kind_of(np.arange(self.gpus) if gpus is None else gpus)
        counts = np.bincount(kinds, minlength=len(self.kinds)).tolist()
        by_gpu: dict[str, tuple[Gpu, int]] = {}
        for kind, count in zip(self.kinds, counts, strict=True):
            if count:
                by_gpu[kind.gpu.name] = kind.gpu, count + by_gpu.get(kind.gpu.name, (kind.gpu, 0))[1]
        return list(by_gpu.values())

    @property
    def gpu_summary(self) -> str:
        """Number and type of the GPUs as text: `1,024 × h100-sxm`."""
        return " + ".join(f"{count:,} × {gpu.name}" for gpu, count in self.gpu_counts())

    def node_types(self) -> list[tuple[Gpu, int, int]]:
        """Return (datasheet of the GPU, GPUs per node, number of nodes) of each node type."""
        first = self.numbering.first
        pairs = np.stack([self.kind_of(first[:-1]), np.diff(first)], axis=1)
        types = zip(*(rows.tolist() for rows in np.unique(pairs, axis=0, return_counts=True)), strict=True)
        return [(self.kinds[kind].gpu, gpus, count) for (kind, gpus), count in types]

    def smallest_gpus(self, gpus: Ints, parts: int) -> list[Gpu]:
        """Return the GPU with the least memory in each of `parts` equal, consecutive parts of `gpus`."""
        if not self.pools:
            return [self.gpu] * parts
        kinds, rows = self.kinds, self.kind_of(gpus).reshape(parts, -1)
        order = np.argsort([kind.gpu.memory for kind in kinds], kind="stable")
        rank = np.argsort(order)  # by memory
        return [kinds[order[place]].gpu for place in rank[rows].min(axis=1).tolist()]

    def facts(self, kinds: Iterable[int] = ()) -> NodeFacts:
        """Return NCCL's figures for a communicator on nodes of these types (indices into `kinds`; default: all)."""
        facts = [self.pools[kind].facts for kind in kinds] if self.pools else []
        return pool_facts(facts)._replace(nccl=self.node.nccl) if facts else self.node

    def route(self, source: Ints, destination: Ints) -> Routes:
        """Return the routes from GPUs `source` to GPUs `destination`, arrays of equal length."""
        return self.router(np.asarray(source, np.int64), np.asarray(destination, np.int64))

    def up_to_nics(self) -> Topology | None:
        """Return the cluster with routes and latencies up to the NICs only; None if links between switches may limit rates."""

        def reduced() -> Topology | None:
            """Return the cluster of `up_to_nics`, for the cache."""
            router = self.router.up_to_nics(self.capacity) if isinstance(self.router, Router) else None
            return None if router is None else replace(self, router=router)

        return self.cache.once("up to NICs", reduced)

    def same_in_next_node(self) -> Ints | None:
        """Return the distance of each link's number to that of the same link in the next node (links,); None if nodes may differ.

        For a cluster from `up_to_nics`, whose routes cross only links of nodes.
        """

        def distances() -> Ints | None:
            """Return the links per node in each link's tier (links,); None if links of a tier, or routes of nodes, differ."""
            equal = isinstance(self.router, Router) and self.router.equal_nodes
            steps = np.zeros(len(self.capacity), np.int64)
            for tier in self.tiers:
                steps[tier.span] = tier.links // self.nodes
                if not equal or any(
                    (values[1:] != values[:-1]).any() for values in (self.capacity[tier.span], self.latency[tier.span])
                ):
                    return None
            return steps

        return self.cache.once("next", distances)

    def latencies(self, source: Ints, destination: Ints) -> Floats:
        """Return the end-to-end latency in seconds from each GPU of `source` to that of `destination` (pairs,)."""
        inner, classes = self.up_to_nics(), self.endpoint_classes()
        if inner is None or classes.unknown.any():
            return self.route(source, destination).latency
        inner_latency = inner.route(source, destination).latency
        away = self.numbering.node_of(source) != self.numbering.node_of(destination)
        sender, receiver = classes.source[source, classes.rail[destination]], classes.destination[destination]
        class_pair = np.where(away, sender * (int(classes.destination.max()) + 1) + receiver, -1)
        _, first, kind_of = np.unique(class_pair, return_index=True, return_inverse=True)
        between = self.route(source[first], destination[first]).latency - inner_latency[first]
        total: Floats = inner_latency + between[kind_of]
        return total

    def endpoint_classes(self) -> EndpointClasses:
        """Return for each GPU its rail, and its classes as sender to each rail and as receiver, in the network between nodes.

        Without known symmetry every GPU is `unknown`.
        """
        find_classes = self.router.endpoint_classes if isinstance(self.router, Router) else no_symmetry
        return self.cache.once("classes", lambda: find_classes(self.gpus, len(self.capacity)))

    def link_name(self, link: int) -> str:
        """Return the name of a link, its tier and index there: `leaf-up[17]`. Raises IndexError for an unknown number."""
        for tier in self.tiers:
            if tier.first <= link < tier.first + tier.links:
                return f"{tier.name}[{link - tier.first}]"
        raise IndexError(f"link {link} of {len(self.capacity)}")
