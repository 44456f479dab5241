"""The specification of a cluster: its nodes, the fabric between them, and what is broken."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from clustersim.config.evidence import Declared, StepEvidence
from clustersim.config.fabric import Extent
from clustersim.config.fields import Bandwidth, Count, Fraction, Index, LineRate, Name, Power, Size, Spec, Time, between
from clustersim.config.gpu import DType, GroupSpeed, KernelGroup
from clustersim.units import parse

NIC_EFFICIENCY: Annotated[float, Declared(chosen_on="those figures")] = 0.97
"""Payload over line rate: NCCL gets 46 to 48 GB/s of a NIC of 400 Gb/s (NVIDIA/nccl, issue 290)."""
NIC_LATENCY: Annotated[float, Declared("s")] = 14e-6
"""Seconds from GPU to GPU through one leaf switch: hwLat of NET ring/Simple in NCCL's tuning.cc."""
_NCCL_TESTS = "medians over sources of nccl-tests between nodes, each left out once"
ROCE_LATENCY: Annotated[float, Declared("s", chosen_on=_NCCL_TESTS)] = 20e-6
"""As NIC_LATENCY, of RoCE: 11 % up to 1 MiB and 24 % to 64 MiB, where 14 us has 28 and 28."""
EFA_PLUGIN: Annotated[float, Declared("s")] = 75e-6
"""What AWS's plugin states to NCCL, from P4d on (aws/aws-ofi-nccl, platform-aws.c); plugins of other networks state nothing."""
EFA_LATENCY: Annotated[float, Declared("s")] = NIC_LATENCY + EFA_PLUGIN
"""Of EFA to P5: 6 sources have 43 % up to 1 MiB and 38 % to 64 MiB, where 14 us has 92 and 59."""
EFA_V3_LATENCY: Annotated[
    float, Declared("s", chosen_on="nccl-tests of P6-B300, which say 38 us, and of P6-B200, 65 us")
] = 45e-6
"""Of EFA from P5en on: AWS says 35 % less than before (What's new, December 2024)."""
SLINGSHOT_LATENCY: Annotated[float, Declared("s", chosen_on=_NCCL_TESTS)] = 40e-6
"""Of Slingshot 11 by libfabric: Polaris and Alps; 29 % from 1 to 64 MiB, where 14 us has 67."""
TCPXO_LATENCY: Annotated[float, Declared("s", chosen_on=_NCCL_TESTS)] = 80e-6
"""Of Google's GPUDirect-TCPXO (A3 Mega): two sources; 35 % from 1 to 64 MiB, where 14 us has 85."""
T = TypeVar("T")
Transport = Literal["infiniband", "roce", "efa", "efa_v3", "slingshot", "tcpxo"]
P2P_CHUNK: Annotated[int, Declared("B")] = 128 * 1024
"""Bytes of a step of a message between nodes and over PCIe (NCCL_P2P_NET_CHUNKSIZE, NCCL_P2P_PCI_CHUNKSIZE)."""
COLLECTIVE_LAUNCH: Annotated[float, Declared("s")] = 8.4e-6
"""Seconds to launch one collective: baseLat of ring/Simple in NCCL's tuning.cc. Algorithm `nccl` has it in its own latencies."""
PCIE_LANE: Annotated[float, Declared("B/s")] = 1.5e9
"""Bytes/s that transfers reach on a lane of generation 4 (NCCL, topo.h); each generation doubles it."""
NCCL_ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
_PCIE = re.compile(r"gen([1-6])x(1|2|4|8|16)")
_RELEASE = re.compile(r"2\.[0-9]{1,2}(\.[0-9]{1,2})?")
_PCIE_RAW = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # B/s a lane after line coding


def _node(value: object) -> str | dict[str, Any]:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of a node type, or a mapping such as {extends: hgx-h100, nics: {count: 1}}")


def _slot(value: str) -> str:
    if _PCIE.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a PCIe slot; write generation and lanes, like gen5x16")


def _version(value: str) -> str:
    if _RELEASE.fullmatch(value):
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


def _like(pattern: str) -> WithJsonSchema:
    """Return the JSON schema of text that has a form."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _any_case(names: Iterable[str]) -> str:
    """Return the regular expression of names in any case, with or without underscores; editors know no flags."""
    return "|".join(
        "".join("_?" if c == "_" else f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in name) for name in names
    )


class Gpus(Spec):
    """The GPUs of one node."""

    model: Name
    """A file of `clustersim/hardware/gpus`, or the path of your own, from here on."""
    count: Count
    """How many."""
    sustained: Annotated[
        dict[DType, Fraction] | None,
        Declared(
            family="clock under load",
            scope="part",
            spread=0.06,
            chosen_on="shares at which published steps are right, over those of long products: 0.90 to 1.04",
        ),
    ] = None
    """The share of the rate of a short burst that matrix products hold for seconds on these very boards, by data type, where
    somebody measured it; the types that it leaves out follow from the board's power. Default: what the GPU's file says."""
    speed: Annotated[
        dict[KernelGroup, GroupSpeed] | None,
        Declared(
            family="vector kernels",
            scope="part",
            spread=0.12,
            chosen_on="levels of vector kernels carry from one generation to the next within 15 %",
        ),
        Declared(
            family="fused attention",
            scope="part",
            spread=0.10,
            chosen_on="errors of fused attention on GPUs left out (model card)",
        ),
    ] = None
    """How many times as fast as forecast kernels run on these very boards, where somebody measured it: matrix `products`, fused
    `attention`, and `vector` kernels, which are all others. Default: what the GPU's file says, 1 where it says nothing."""


def _pair(value: object) -> object:
    """Return GPU, GPU, links and bytes/s of one of them; one link and 0, the rate of `link`, where they are not said."""
    if not isinstance(value, list | tuple) or len(value) not in (2, 3, 4):
        raise ValueError(
            "must be two GPUs of a node, their links and perhaps the rate of one, such as [0, 1, 12, 25GB/s]"
        )
    counts, rate = value[:3], value[3:]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= 1000 for one in counts):
        raise ValueError("must begin with whole numbers from 0 to 1000: GPU, GPU, links")
    a, b, *links = counts
    if a == b or links == [0]:
        raise ValueError("must be two different GPUs and at least one link")
    each = parse(rate[0], "bandwidth") if rate and isinstance(rate[0], str) else rate[0] if rate else 0.0
    return (min(a, b), max(a, b), *(links or [1]), each)


GpuPair = Annotated[
    tuple[int, int, int, float],
    BeforeValidator(_pair),
    Field(strict=False),
    WithJsonSchema({"type": "array", "minItems": 2, "maxItems": 4}),
]
"""Two GPUs of a node, the smaller number first, the links between them, and bytes/s of one, 0 for those of `link`."""


class ScaleUp(Spec):
    """The network inside a node."""

    kind: Literal["nvswitch", "nvlink", "mesh", "pairs", "ring", "torus", "none"] = "nvswitch"
    """`nvswitch`: a crossbar. `nvlink`: wires between GPUs, all of which rings use. `mesh`: links from each GPU straight to
    every other one, and a pair has no more than those (AMD's Infinity Fabric). `pairs`: the links of each pair are written out:
    bridges, cube meshes. `ring`, `torus`: links to the neighbours. `none`: only PCIe."""
    links_per_gpu: Count = 1
    """Links of a GPU, for `nvswitch` and `nvlink`."""
    links_per_peer: Count = 1
    """Links to each peer, for `mesh`, `ring` and `torus`."""
    pairs: Annotated[tuple[GpuPair, ...], Field(strict=False)] = ()
    """For `pairs`, `[GPU, GPU, links]` of each pair that links join, GPUs of a node counted from 0, and perhaps the rate of one
    link; other pairs use links by way of other GPUs, or PCIe."""
    island: Count | None = None
    """GPUs that the links join, one group of neighbours after the other; between groups is PCIe. Default: all of the node."""
    shape: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 4)] | None = None
    """Extents of a `torus`, whose product is the number of GPUs."""
    link: Bandwidth | None = None
    """Of one link, a direction."""
    payload_efficiency: Annotated[
        Fraction,
        Declared(
            family="NVLink",
            scope="part",
            spread=0.05,
            chosen_on="bus bandwidths of one node in nccl-tests over their forecasts",
        ),
    ] = 1.0
    """The fraction of it that payload gets."""
    multicast: bool = False
    """The switches reduce and broadcast (NVLS)."""
    latency: Time | None = None
    """From GPU to GPU, in rings and tori to the next one; default 3.4 us, the ring/Simple figure of NCCL's tuning.cc (5.7 us
    over PCIe)."""


KINDS_OF = {
    "links_per_gpu": {"nvswitch", "nvlink"},
    "links_per_peer": {"mesh", "ring", "torus"},
    "shape": {"torus"},
    "pairs": {"pairs"},
    "island": {"nvswitch", "nvlink", "mesh"},
    "multicast": {"nvswitch"},
}
"""The kinds of `scale_up` that a key is for; one that is not here is for all."""


MEMORY_CARRIES: Annotated[Mapping[int, float], Declared("B/s", chosen_on="two bus bandwidths of one report")] = {
    3: 58e9,
    4: 93e9,
    5: 140e9,
}
"""Bytes/s that a CPU passes on from GPU to GPU by PCIe generation. Four RTX 5090 have 35 GB/s each on a Xeon 8480+ (NVIDIA/nccl
issue 1639), which is 46 % of its eight channels of DDR5-4800, as each byte is written and read; older hosts have that share of
six channels of DDR4-2666 and eight of DDR4-3200. Eight on two CPUs have 28 GB/s: bytes between these pass both memories."""
SOCKET_LINK: Annotated[Mapping[int, float], Declared("B/s")] = {3: 10e9, 4: 22e9, 5: 40e9}
"""Bytes/s from CPU to CPU by PCIe generation: NCCL's of Xeons of those years (src/graph/topo.h: SKL, SRP and ERP_QPI_BW)."""


HOST_MEMORY: Annotated[Mapping[int, tuple[float, float, int]], Declared()] = {
    3: (0.5e12, 256e9, 48),
    4: (1.0e12, 410e9, 128),
    5: (2.0e12, 614e9, 112),
}
"""Bytes, bytes/s and cores of a node's two CPUs by PCIe generation: of DGX-1 and DGX-2, DGX A100 and DGX H100 (datasheets)."""


def _of_generation(table: Mapping[int, T], slot: str) -> T:
    """Return the figure of a slot's generation, or of the nearest one that the table has."""
    generation = int(_PCIE.fullmatch(slot)[1])  # type: ignore[index]
    return table[min(max(generation, min(table)), max(table))]


class Host(Spec):
    """The host: its processor, and the slot of each GPU and NIC."""

    cpu: Literal["intel", "amd", "arm"] = "intel"
    """Vendor."""
    pcie: Annotated[Name, AfterValidator(_slot), _like(_PCIE.pattern)] = "gen5x16"
    """Generation and lanes of a slot."""
    slowdown: Annotated[
        float,
        Field(gt=0, le=1000, strict=False),
        Declared(
            family="host",
            scope="framework",
            spread=0.30,
            chosen_on="launch times of the frameworks whose steps were read: 46 and 62 us on other processors",
        ),
    ] = 1.0
    """How many times as long it takes to launch a kernel as the hosts of `clustersim/frameworks/`; matters where a workload
    names its framework."""
    sockets: Annotated[int, Field(ge=1, le=16)] | None = None
    """CPUs, among which the GPUs are divided in order; default one, and two for more than four GPUs that reach each other through
    its memory only. Matters where GPUs have no links."""
    gpus_per_switch: Count | None = None
    """GPUs behind one PCIe switch, which share its slot to the CPU; default: each has a slot of its own."""
    carries: Bandwidth | None = None
    """Bytes/s that one CPU passes on from GPU to GPU through its memory, for GPUs without `peer_to_peer`; default by the
    generation of its slots."""
    socket_link: Bandwidth | None = None
    """Bytes/s a direction from one CPU to the other for bytes between GPUs; default by the generation of its slots."""
    memory: Size | None = None
    """Bytes of memory of a node's CPUs, in which offloading has room; default by the generation of its slots."""
    memory_bandwidth: Bandwidth | None = None
    """Bytes/s of that memory by its datasheet; default by the generation of its slots."""
    cores: Count | None = None
    """Cores of a node's CPUs, which update what is offloaded; default by the generation of its slots."""
    c2c: Bandwidth | None = None
    """Bytes/s a direction between a GPU and its CPU where it is NVLink-C2C (Grace); default: they use the slot."""
    effective: Bandwidth | None = None
    """Bytes/s that transfers reach, which is the most that a NIC gets; default NCCL's 1.5 GB/s a lane of generation 4 (topo.h),
    scaled."""

    @property
    def raw(self) -> float:
        """Bytes/s of the slot after line coding."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return _PCIE_RAW[int(generation)] * int(lanes)

    @property
    def figures(self) -> tuple[float, float, int]:
        """Bytes and bytes/s of the memory of a node's CPUs, and their cores."""
        memory, bandwidth, cores = _of_generation(HOST_MEMORY, self.pcie)
        return self.memory or memory, self.memory_bandwidth or bandwidth, self.cores or cores

    @property
    def memory_carries(self) -> float:
        """Bytes/s that a CPU passes on from GPU to GPU through its memory."""
        return _of_generation(MEMORY_CARRIES, self.pcie)

    @property
    def between_sockets(self) -> float:
        """Bytes/s a direction from one CPU to the other for bytes between GPUs."""
        return _of_generation(SOCKET_LINK, self.pcie)

    @property
    def usable(self) -> float:
        """Bytes/s that transfers reach: `effective`, or NCCL's 1.5 GB/s a lane of generation 4 (topo.h), scaled."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return self.effective or PCIE_LANE * 2.0 ** (int(generation) - 4) * int(lanes)


def wider_slots(host: Host) -> Iterator[Host]:
    """Yield hosts whose slots are of the same width and a later generation, without what transfers were said to reach."""
    generation, lanes = _PCIE.fullmatch(host.pcie).groups()  # type: ignore[union-attr]
    for later in range(int(generation) + 1, max(_PCIE_RAW) + 1):
        yield host.model_copy(update={"pcie": f"gen{later}x{lanes}", "effective": None})


class Nics(Spec):
    """The NICs of one node; a NIC is one port of the fabric."""

    count: Count
    """How many."""
    rate: LineRate
    """Line rate of one."""
    transport: Transport = "infiniband"
    """What NCCL sends with, which gives the latency where none is written: `efa` is AWS's to P5, `efa_v3` from
    P5en on, `tcpxo` that of Google's A3 Mega."""
    attach: Literal["per_gpu", "shared", "integrated"] = "per_gpu"
    """`per_gpu` gives each NIC to count/gpus neighbouring GPUs. `shared` deals the GPUs out to the NICs in turn. `integrated`
    is `per_gpu` with ports on the chip itself, which no PCIe slot slows down (TPU, Gaudi)."""
    efficiency: Annotated[
        Fraction,
        Declared(
            family="network between nodes",
            scope="machine",
            spread=0.15,
            chosen_on="bus bandwidths of clusters of one kind in nccl-tests over their forecasts",
        ),
    ] = NIC_EFFICIENCY
    """Payload over line rate."""
    latency: Time = NIC_LATENCY
    """From GPU to GPU through one leaf switch; default by transport, 14 us of InfiniBand: the NET ring/Simple figure of NCCL's
    tuning.cc."""
    tree_chunk: Size | None = None
    """The most bytes of a chunk of NVLSTree where the plugin of these NICs sets it (NCCL_NVLSTREE_MAX_CHUNKSIZE); NCCL's own
    choice by nodes and NICs otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _of_transport(cls, given: object) -> object:
        """Return the keys with the latency of their transport; what is wrong is said of the keys as they are written."""
        if not isinstance(given, dict) or str(given.get("transport")) not in _HOPS:
            return given
        return {"latency": f"{_HOPS[str(given['transport'])] * 1e6:g}us", **given}


_HOPS: Mapping[str, float] = {
    "roce": ROCE_LATENCY,
    "efa": EFA_LATENCY,
    "efa_v3": EFA_V3_LATENCY,
    "slingshot": SLINGSHOT_LATENCY,
    "tcpxo": TCPXO_LATENCY,
}


class NodePower(Spec):
    """Power at full load."""

    max: Power
    """Of a whole node."""
    gpu: Power | None = None
    """Of one GPU."""


class Node(Spec):
    """One type of node."""

    extends: Name | None = None
    """The node type that it changes; merged before this is read. Another `kind` of `scale_up` than the inherited one leaves
    out the inherited keys that are not for it, and another `pcie` of `host` what the inherited slot was said to reach."""
    gpus: Gpus
    """Its GPUs."""
    scale_up: ScaleUp = ScaleUp(kind="none")
    """What joins them."""
    host: Host = Host()
    """What they hang on."""
    nics: Nics | None = None
    """What joins it to other nodes."""
    power: NodePower | None = None
    """What it draws."""
    evidence: dict[str, StepEvidence] = Field(default_factory=dict)
    """Which of its figures were read from measured steps, by dotted key such as `nics.efficiency`."""


class Fault(Spec):
    """What is not as it should be: a slow or dead link, GPU or node.

    A part is slowed once; the slowdown of a GPU multiplies with that of its node. A part that is more than a million times as
    slow is dead.
    """

    link: Name | None = None
    """A tier and a number, as `nic-up[777]`; `nic[777]` is both directions."""
    rate: Bandwidth | None = None
    """Usable bytes/s of the link."""
    dead: bool = False
    """A link carries nothing: traffic takes the next route, and where there is none that is an error. A node is left out:
    ranks are placed on those that remain. A dead GPU takes its node out."""
    cables: Count | None = None
    """Number of dead cables of a bundle of parallel ones (default 1); the rest carry on."""
    node: Index | None = None
    """Number of a node."""
    gpu: Index | None = None
    """Number of a GPU."""
    slowdown: Annotated[
        Annotated[float, Field(ge=1, le=1e6)] | None,
        Declared(
            family="slowest GPU",
            scope="machine",
            spread=0.03,
            chosen_on="slow hosts of MegaScale's took 1.1 times as long (NSDI'24, 6), one slow node cost BLOOM 6 %",
        ),
    ] = None
    """How many times as long the node or GPU computes."""


class Nccl(Spec):
    """The communication library. All but `launch` is for algorithm `nccl`."""

    launch: Time = COLLECTIVE_LAUNCH
    """To launch one collective; default 8.4 us, ring/Simple in NCCL's tuning.cc. The latencies of algorithm `nccl` hold a
    launch already: one that is written here comes on top of them."""
    version: Annotated[str, AfterValidator(_version), _like(_RELEASE.pattern)] = "2.30"
    """NCCL's release."""
    algo: Annotated[str, AfterValidator(_algo), _like(_any_case(NCCL_ALGORITHMS))] | None = None
    """What it is forced to use (`NCCL_ALGO`), in any case."""
    proto: (
        Annotated[Literal["LL", "LL128", "Simple"], BeforeValidator(_proto), _like(_any_case(NCCL_PROTOCOLS))] | None
    ) = None
    """The same of protocols (`NCCL_PROTO`)."""
    collnet: bool = True
    """It lets the switches of a fabric with `reduction: sharp` add (`NCCL_COLLNET_ENABLE`)."""
    nvls: bool = True
    """It lets NVSwitches add (`NCCL_NVLS_ENABLE`)."""
    p2p_chunk: Size = P2P_CHUNK
    """Bytes of a step of a message between nodes (`NCCL_P2P_NET_CHUNKSIZE`): larger ones let a channel carry more, and share a
    message out to fewer."""
    slowdown: Annotated[
        float,
        Field(gt=0, le=1000, strict=False),
        Declared(
            family="latency of collectives",
            spread=0.30,
            chosen_on="latencies of small collectives of clusters of one kind over their forecasts",
        ),
    ] = 1.0
    """How many times as long a collective or message takes to start and to pass from GPU to GPU, beside its bytes, as on the
    machines of its constants."""


_NodeType = Annotated[str | dict[str, Any], PlainValidator(_node)]


class NodePool(Spec):
    """Nodes of one type in a cluster of several."""

    nodes: Count
    """How many."""
    node: _NodeType
    """As `cluster.node`."""


class Stragglers(Spec):
    """GPUs that are slow in a step."""

    share: Annotated[float, Field(ge=0, le=1, strict=False)]
    """The probability that a GPU is one, in each step anew."""
    slowdown: Annotated[float, Field(ge=1, le=1e6, strict=False)]
    """How many times as long it computes: hosts of MegaScale's that were slow took 1.1 times as long (NSDI'24, 6)."""


class Jitter(Spec):
    """How the time that each GPU computes differs from step to step; `run` tells the percentiles of the step over many draws."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    """Of the factor by which each GPU's time is multiplied, with mean 1; drawn for each GPU and step."""
    cv: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Its standard deviation over its mean."""
    stragglers: Stragglers | None = None
    """GPUs that are slow besides."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The same seed draws the same."""
    draws: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Steps that are drawn, unless `run --draws` says how many."""


class Cluster(Spec):
    """How many nodes of which type; or of which types, in `pools`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["nodes", "node"]}, {"required": ["pools"]}]})

    name: Name | None = None
    """Default that of the file."""
    nodes: Count | None = None
    """How many."""
    node: _NodeType | None = None
    """A name of `nodes`, a shipped preset, or a mapping that extends one of them."""
    pools: Annotated[tuple[NodePool, ...], Field(strict=False), between(1, 64)] | None = None
    """Instead of `nodes` and `node`: nodes of several types, numbered one pool after the other. Nodes whose GPUs a switch joins
    may have different numbers of them; trees, `switch` and `explicit` join nodes with different numbers of NICs."""
    jitter: Jitter | None = None
    """How steps differ."""


class TopologySpec(Spec):
    """A whole topology file; each kind of fabric reads its own part."""

    cluster: Cluster
    """How many nodes of which type."""
    nodes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Node types of your own, by name."""
    fabric: dict[str, Any] | None = None
    """What joins the nodes; none for a single one."""
    faults: tuple[Fault, ...] = Field(default=(), strict=False)
    """What is slow or dead."""
    nccl: Nccl = Nccl()
    """The communication library."""
