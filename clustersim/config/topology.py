"""The specification of a cluster: its nodes, the fabric between them, and what is broken."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from clustersim.config.fields import Bandwidth, Count, Fraction, Index, Length, Name, Power, Spec, Time, between
from clustersim.errors import shown

NIC_EFFICIENCY = 0.97
"""Payload over line rate: NCCL gets 46 to 48 GB/s of a NIC of 400 Gb/s (NVIDIA/nccl, issue 290)."""
NIC_LATENCY = 14e-6
"""Seconds from GPU to GPU through one leaf switch: hwLat of NET ring/Simple in NCCL's tuning.cc."""
SWITCH_LATENCY = 250e-9
"""Seconds through one switch and its ports: vendors claim 90 to 150 ns for InfiniBand, users measured 330 ns."""
COLLECTIVE_LAUNCH = 8.4e-6
"""Seconds to launch one collective: baseLat of ring/Simple in NCCL's tuning.cc. Algorithm `nccl` has it in its own latencies."""
PCIE_LANE = 1.5e9
"""Bytes/s that transfers reach on a lane of generation 4 (NCCL, topo.h); each generation doubles it."""
NCCL_ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
_TAKEN = frozenset({"gpu", "mesh", "nic", "nvlink", "pcie", "port", "ports", "ring"})
_PCIE = re.compile(r"gen([1-6])x(1|2|4|8|16)")
_PCIE_RAW = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # B/s a lane after line coding


def _rails(value: object) -> int | str:
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024
    if whole or value in ("none", "optimized"):
        return value  # type: ignore[return-value]
    raise ValueError(f"{value!r} is not known; write none, optimized, or a number of rails up to 1024")


def _listed(value: object) -> object:
    """Return as many tiers as a number says, all with what is usual."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if 1 <= value <= 5:
        return ({},) * value
    raise ValueError(f"{shown(value)} is not known; write a list of tiers, or how many, from 1 to 5")


def _node(value: object) -> str | dict[str, Any]:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of a node type, or a mapping such as {extends: hgx-h100, nics: {count: 1}}")


def _slot(value: str) -> str:
    if _PCIE.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a PCIe slot; write generation and lanes, like gen5x16")


def _version(value: str) -> str:
    if re.fullmatch(r"2\.[0-9]{1,2}(\.[0-9]{1,2})?", value):
        return value
    raise ValueError(f'{value!r} is no version of NCCL; write one in quotes, like "2.27" or "2.27.3"')


def nccl_algorithm(value: str) -> str | None:
    """Return NCCL's algorithm of that name, in any case and in NCCL's own spelling (`NVLSTree`); None if there is none."""
    return {name.replace("_", ""): name for name in NCCL_ALGORITHMS}.get(value.lower().replace("_", ""))


def nccl_protocol(value: str) -> str | None:
    """Return NCCL's protocol of that name, in any case; None if there is none."""
    return {name.lower(): name for name in NCCL_PROTOCOLS}.get(value.lower())


def _algo(value: str) -> str:
    if found := nccl_algorithm(value):
        return found
    raise ValueError(f"{value!r} is no algorithm of NCCL; write one of {', '.join(NCCL_ALGORITHMS)}")


def _proto(value: object) -> object:
    return (nccl_protocol(value) or value) if isinstance(value, str) else value


def _name_free_of_brackets(value: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) and value not in _TAKEN:
        return value
    raise ValueError(
        f"{value!r} is no name of a tier; write a word such as leaf, spine, core ({', '.join(sorted(_TAKEN))} are taken)"
    )


Extent = Annotated[int, Field(ge=1, le=1_000_000)]


class Gpus(Spec):
    """The GPUs of one node; `model` is a file of `clustersim/hardware/gpus`, or the path of your own, from here on."""

    model: Name
    count: Count


class ScaleUp(Spec):
    """The network inside a node: `links_per_gpu` links of `link` bytes/s a direction, of which payload gets a fraction.

    nvswitch: a crossbar. nvlink: wires between GPUs, all of which rings use. mesh: `links_per_peer` links from each GPU
    straight to every other one, and a pair has no more than those (AMD's Infinity Fabric). ring, torus: links to the
    neighbours in a ring, or in a torus of `shape`, whose product is the number of GPUs. none: only PCIe. multicast: the
    switches reduce and broadcast (NVLS). latency: from GPU to GPU, in rings and tori to the next one; default 3.4 us, the
    ring/Simple figure of NCCL's tuning.cc (5.7 us over PCIe).
    """

    kind: Literal["nvswitch", "nvlink", "mesh", "ring", "torus", "none"] = "nvswitch"
    links_per_gpu: Count = 1
    links_per_peer: Count = 1
    shape: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 4)] | None = None
    link: Bandwidth | None = None
    payload_efficiency: Fraction = 1.0
    multicast: bool = False
    latency: Time | None = None


KINDS_OF = {
    "links_per_gpu": {"nvswitch", "nvlink"},
    "links_per_peer": {"mesh", "ring", "torus"},
    "shape": {"torus"},
    "multicast": {"nvswitch"},
}
"""The kinds of `scale_up` that a key is for; one that is not here is for all."""


class Host(Spec):
    """The host: processor vendor, and the PCIe slot of each GPU and NIC with the bytes/s it gets through."""

    cpu: Literal["intel", "amd", "arm"] = "intel"
    pcie: Annotated[Name, AfterValidator(_slot)] = "gen5x16"
    effective: Bandwidth | None = None

    @property
    def raw(self) -> float:
        """Bytes/s of the slot after line coding."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return _PCIE_RAW[int(generation)] * int(lanes)

    @property
    def usable(self) -> float:
        """Bytes/s that transfers reach: `effective`, or NCCL's 1.5 GB/s a lane of generation 4 (topo.h), scaled."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return self.effective or PCIE_LANE * 2.0 ** (int(generation) - 4) * int(lanes)


class Nics(Spec):
    """The NICs of one node; a NIC is one port of the fabric.

    attach: `per_gpu` gives each NIC to count/gpus neighbouring GPUs, `shared` deals the GPUs out to the NICs in turn,
    `integrated` is `per_gpu` with ports on the chip itself, which no PCIe slot slows down (TPU, Gaudi).
    efficiency: payload over line rate. latency: from GPU to GPU through one leaf switch; default 14 us, the NET
    ring/Simple figure of NCCL's tuning.cc.
    """

    count: Count
    rate: Bandwidth
    attach: Literal["per_gpu", "shared", "integrated"] = "per_gpu"
    efficiency: Fraction = NIC_EFFICIENCY
    latency: Time = NIC_LATENCY


class NodePower(Spec):
    """Power of a whole node at full load, and of one GPU."""

    max: Power
    gpu: Power | None = None


class Node(Spec):
    """One type of node. extends: the node type that it changes; merged before this is read.

    Another `kind` of `scale_up` than the inherited one leaves out the inherited keys that are not for it.
    """

    extends: Name | None = None
    gpus: Gpus
    scale_up: ScaleUp = ScaleUp(kind="none")
    host: Host = Host()
    nics: Nics | None = None
    power: NodePower | None = None


class Tier(Spec):
    """One tier of switches: `down` ports to the tier below and `up` to the one above, `radix` in all.

    Default: down = up = radix / 2, in the top tier all ports down. pod: how many groups of the tier below (leaves for the
    second tier) one group of this tier joins; default `down`, in the top tier all. oversubscription: down over up; it
    takes uplinks away.
    """

    name: Annotated[Name, AfterValidator(_name_free_of_brackets)] | None = None
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    down: Annotated[int, Field(ge=1, le=100_000)] | None = None
    up: Annotated[int, Field(ge=1, le=100_000)] | None = None
    pod: Count | None = None
    oversubscription: Annotated[float, Field(strict=False, ge=1, le=1000)] | None = None


class Link(Spec):
    """A cable: bytes/s a direction, the fraction that payload gets, and the length in each tier from the NIC upwards."""

    rate: Bandwidth
    efficiency: Fraction = 1.0
    cable: tuple[Length, ...] = Field(default=(), strict=False)


class Routing(Spec):
    """How a path is chosen among equals.

    adaptive: every packet takes the emptiest one, so parallel cables act as one. dmodk: the digits of the destination
    choose. ecmp: a hash of source, destination and queue pair chooses, `qps` queue pairs a transfer.
    """

    mode: Literal["adaptive", "dmodk", "ecmp"] = "adaptive"
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Index = 0


_Rate = Annotated[float, Field(strict=False, gt=0, le=1e6)]
_Delay = Annotated[float, Field(strict=False, ge=0, le=1e12)]
Reduction = Literal["none", "sharp"]


class FatTree(Spec):
    """A fat tree of 1 to 5 tiers.

    tiers: from the leaves upwards, or how many. radix: ports of the switches in all tiers that do not say. rails: `none` puts
    the NICs of a node on one leaf, `optimized` NIC j of every node on a leaf of rail j, a number k NIC j on rail j % k.
    scalable_unit: nodes that share a set of leaves, one a rail. rail_planes: each rail is a network of its own; traffic changes
    rails only inside nodes. planes: a NIC has that many ports of `link` each, one into each of as many equal trees, and spreads
    its packets over them. reduction: `sharp` if the switches add up (SHARP).
    """

    kind: Name
    rails: Annotated[int | str, PlainValidator(_rails)] = "none"
    rail_planes: bool = False
    planes: Annotated[int, Field(ge=1, le=16)] = 1
    scalable_unit: Count | None = None
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    tiers: Annotated[tuple[Tier, ...], Field(strict=False), between(1, 5), BeforeValidator(_listed)]
    link: Link
    switch_latency: Time = SWITCH_LATENCY
    routing: Routing = Routing()
    reduction: Reduction = "none"

    def tier(self, index: int) -> Tier:
        """Return a tier with the `radix` of all where it has none of its own."""
        tier = self.tiers[index]
        return tier if tier.radix is not None else tier.model_copy(update={"radix": self.radix})


class SingleNode(Spec):
    """No fabric at all."""

    kind: Name


class Switch(Spec):
    """One ideal crossbar that joins all NICs. reduction: `sharp` if it adds up (SHARP)."""

    kind: Name
    link: Link | None = None
    reduction: Reduction = "none"


class Torus(Spec):
    """A torus: the router of each node has one cable to its two neighbours in each dimension, and its NICs hang on it.

    dims: extents, whose product is the number of nodes; ranks run fastest along the first. wrap: whether the last meets the
    first. A path goes dimension by dimension, the shorter way around. switch_latency: of one router. cable: one length, or one
    a dimension.
    """

    kind: Name
    dims: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 6)]
    wrap: bool = True
    link: Link
    switch_latency: Time = SWITCH_LATENCY


class GridDim(Spec):
    """One dimension of a grid: what joins the `size` positions that differ in it alone, and each link of it.

    ring, line: neighbours. mesh: every two. switch: a crossbar with a link to each position, in which a hop is two links.
    """

    kind: Literal["ring", "line", "mesh", "switch"]
    size: Extent
    rate: Bandwidth
    latency: Time = 0.0


class Grid(Spec):
    """A network in each dimension of a grid of nodes; the sizes multiply to the number of nodes.

    rails: NIC j of every node is in grid j of as many equal ones; else the NICs of a node share one position. A path goes
    dimension by dimension.
    """

    kind: Name
    dims: Annotated[tuple[GridDim, ...], Field(strict=False), between(1, 6)]
    rails: bool = False


class Dragonfly(Spec):
    """A dragonfly (Kim, Dally, Scott and Abts 2008): groups of `a` routers, `p` NICs and `h` global cables a router.

    The routers of a group are fully connected, and so are the groups; a path is minimal: at most one cable in the first group,
    one between groups, one in the last. groups: a·h + 1 at most, which is the default; fewer have several cables a pair. cable:
    lengths to the NIC, inside a group, between groups.
    """

    kind: Name
    a: Annotated[int, Field(ge=1, le=4096)]
    p: Annotated[int, Field(ge=1, le=4096)]
    h: Annotated[int, Field(ge=1, le=4096)]
    groups: Count | None = None
    link: Link
    switch_latency: Time = SWITCH_LATENCY


class DragonflyPlus(Spec):
    """A Dragonfly+ (Shpiner et al., HiPINEB 2017; Megafly): groups of `leaves` and `spines`, every leaf joined to every spine.

    A leaf has `p` NICs, a spine `h` cables to other groups; every two groups are joined by equally many, spines · h /
    (groups - 1). A path is minimal: leaf, spine, leaf in a group, one more cable between the spines of two, and none through a
    third unless cables are dead; adaptive routing spreads it evenly over all spines that lead there. uplinks: cables of a leaf,
    equally many to each spine; default one. groups: default as many as the nodes fill. group_nodes: nodes in a group; default
    as many as its leaves have ports for. radix: ports of a switch, checked if given. cable: lengths to the NIC, inside a group,
    between groups.
    """

    kind: Name
    leaves: Annotated[int, Field(ge=1, le=4096)]
    spines: Annotated[int, Field(ge=1, le=4096)]
    p: Annotated[int, Field(ge=1, le=4096)]
    h: Annotated[int, Field(ge=1, le=4096)]
    uplinks: Count | None = None
    groups: Count | None = None
    group_nodes: Count | None = None
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    link: Link
    switch_latency: Time = SWITCH_LATENCY
    routing: Routing = Routing()


class ExplicitLink(Spec):
    """`count` parallel cables between `a` and `b`, each a switch or `nic[e]` or `node[n]` (every NIC of node n)."""

    a: Name
    b: Name
    rate: Bandwidth
    latency: Time = 0.0
    count: Count = 1


class ExplicitRouting(Spec):
    """How a path is chosen among the shortest ones of a graph written out.

    adaptive: the bytes of a pair are spread over all of them, at each switch in proportion to the bytes/s of the cables that lead
    closer. ecmp: at each switch a hash of source, destination and queue pair chooses one of those cables, `qps` queue pairs a
    transfer. first: all take one path; ties go to the cable that stands first in the file.
    """

    mode: Literal["adaptive", "ecmp", "first"] = "adaptive"
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Index = 0


class Explicit(Spec):
    """A graph written out: the names of the switches, and the cables. Paths have the fewest cables."""

    kind: Name
    nodes: Annotated[tuple[Name, ...], Field(strict=False), between(1, 2000)]
    links: Annotated[tuple[ExplicitLink, ...], Field(strict=False), between(1, 20_000)]
    routing: ExplicitRouting = ExplicitRouting()


class Fault(Spec):
    """What is not as it should be: a slow or dead link, GPU or node.

    link: a tier and a number, as `nic-up[777]`; `nic[777]` is both directions. rate: its usable bytes/s. dead: it carries
    nothing; traffic takes the next route, and where there is none that is an error. Of a bundle of parallel cables `cables` die
    (default 1), and the rest carry on. A node computes `slowdown` times as long, or is dead and left out: ranks are placed on
    the nodes that remain. A dead GPU takes its node out. A part is slowed once; the slowdown of a GPU multiplies with that of its
    node. A part that is more than a million times as slow is dead.
    """

    link: Name | None = None
    rate: Bandwidth | None = None
    dead: bool = False
    cables: Count | None = None
    node: Index | None = None
    gpu: Index | None = None
    slowdown: Annotated[float, Field(ge=1, le=1e6)] | None = None


class Nccl(Spec):
    """The communication library: seconds to launch one collective (8.4 us, ring/Simple in NCCL's tuning.cc).

    version, algo, proto, collnet, nvls are for algorithm `nccl`: NCCL's release, what it is forced to use (`NCCL_ALGO`,
    `NCCL_PROTO`, in any case), whether it lets the switches of a fabric with `reduction: sharp` add (`NCCL_COLLNET_ENABLE`),
    and NVSwitches (`NCCL_NVLS_ENABLE`). Its latencies hold a launch already; a `launch` written here comes on top of them.
    """

    launch: Time = COLLECTIVE_LAUNCH
    version: Annotated[str, AfterValidator(_version)] = "2.30"
    algo: Annotated[str, AfterValidator(_algo)] | None = None
    proto: Annotated[Literal["LL", "LL128", "Simple"], BeforeValidator(_proto)] | None = None
    collnet: bool = True
    nvls: bool = True


class Cluster(Spec):
    """How many nodes of which type: a name of `nodes`, a shipped preset, or a mapping that extends one of them."""

    name: Name | None = None
    nodes: Count
    node: Annotated[str | dict[str, Any], PlainValidator(_node)]


class TopologySpec(Spec):
    """A whole topology file; each kind of fabric reads its own part."""

    cluster: Cluster
    nodes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    fabric: dict[str, Any] | None = None
    faults: tuple[Fault, ...] = Field(default=(), strict=False)
    nccl: Nccl = Nccl()


class AstraNetwork(Spec):
    """The network file of ASTRA-sim's analytical model: one entry a dimension, from the inside outwards.

    bandwidth: GiB/s of each link and direction (its GB is 2^30). latency: ns of each link. gpu: the GPU model, which ASTRA-sim
    leaves out.
    """

    topology: Annotated[tuple[Literal["Ring", "FullyConnected", "Switch"], ...], Field(strict=False), between(1, 6)]
    npus_count: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 6)]
    bandwidth: Annotated[tuple[_Rate, ...], Field(strict=False), between(1, 6)]
    latency: Annotated[tuple[_Delay, ...], Field(strict=False), between(1, 6)]
    gpu: Name = "h100-sxm"
