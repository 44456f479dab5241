"""The specification of a cluster: its nodes, the fabric between them, and faults."""

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
"""NIC_LATENCY for RoCE: error of 11 % up to 1 MiB and 24 % up to 64 MiB, where 14 us has 28 and 28 %."""
EFA_PLUGIN: Annotated[float, Declared("s")] = 75e-6
"""Latency that AWS's plug-in declares to NCCL, from P4d on (aws/aws-ofi-nccl, platform-aws.c); other plug-ins declare none."""
EFA_LATENCY: Annotated[float, Declared("s")] = NIC_LATENCY + EFA_PLUGIN
"""NIC_LATENCY for EFA up to P5: 6 sources have errors of 43 % up to 1 MiB and 38 % up to 64 MiB, where 14 us has 92 and 59 %."""
EFA_V3_LATENCY: Annotated[
    float, Declared("s", chosen_on="nccl-tests of P6-B300, which say 38 us, and of P6-B200, 65 us")
] = 45e-6
"""NIC_LATENCY for EFA from P5en on: 35 % less than before, says AWS (What's new, December 2024)."""
SLINGSHOT_LATENCY: Annotated[float, Declared("s", chosen_on=_NCCL_TESTS)] = 40e-6
"""NIC_LATENCY for Slingshot 11 by libfabric: Polaris and Alps; error of 29 % from 1 to 64 MiB, where 14 us has 67 %."""
TCPXO_LATENCY: Annotated[float, Declared("s", chosen_on=_NCCL_TESTS)] = 80e-6
"""NIC_LATENCY for Google's GPUDirect-TCPXO (A3 Mega): two sources; error of 35 % from 1 to 64 MiB, where 14 us has 85 %."""
T = TypeVar("T")
Transport = Literal["infiniband", "roce", "efa", "efa_v3", "slingshot", "tcpxo"]
P2P_CHUNK: Annotated[int, Declared("B")] = 128 * 1024
"""Bytes per step of a message between nodes and over PCIe (NCCL_P2P_NET_CHUNKSIZE, NCCL_P2P_PCI_CHUNKSIZE)."""
COLLECTIVE_LAUNCH: Annotated[float, Declared("s")] = 8.4e-6
"""Seconds to launch one collective: baseLat of ring/Simple in NCCL's tuning.cc. Algorithm `nccl` includes it itself."""
PCIE_LANE: Annotated[float, Declared("B/s")] = 1.5e9
"""Bytes/s that transfers reach on a lane of generation 4 (NCCL, topo.h); each generation doubles it."""
NCCL_ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
_PCIE = re.compile(r"gen([1-6])x(1|2|4|8|16)")
_RELEASE = re.compile(r"2\.[0-9]{1,2}(\.[0-9]{1,2})?")
_PCIE_RAW = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # B/s per lane after line coding


def _node(value: object) -> str | dict[str, Any]:
    """Return a node type as written: its name or a mapping. Raises ValueError for anything else."""
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of a node type, or a mapping such as {extends: hgx-h100, nics: {count: 1}}")


def _matching(pattern: re.Pattern[str], rule: str) -> AfterValidator:
    """Return the validator of text that fully matches a pattern. rule: end of its error, which says what is wrong."""

    def check(value: str) -> str:
        if pattern.fullmatch(value):
            return value
        raise ValueError(f"{value!r} is not {rule}")

    return AfterValidator(check)


_SLOT = _matching(_PCIE, "a PCIe slot; write generation and lanes, like gen5x16")
_VERSION = _matching(_RELEASE, 'a version of NCCL; write one in quotes, like "2.27" or "2.27.3"')


def nccl_algorithm(value: str) -> str | None:
    """Return NCCL's name of an algorithm in any case, with or without underscores (`NVLSTree`); None if unknown."""
    return {name.replace("_", ""): name for name in NCCL_ALGORITHMS}.get(value.lower().replace("_", ""))


def nccl_protocol(value: str) -> str | None:
    """Return NCCL's name of a protocol in any case; None if unknown."""
    return {name.lower(): name for name in NCCL_PROTOCOLS}.get(value.lower())


def _algo(value: str) -> str:
    """Return the canonical name of an NCCL algorithm. Raises ValueError for an unknown name."""
    if name := nccl_algorithm(value):
        return name
    raise ValueError(f"{value!r} is not an algorithm of NCCL; write one of {', '.join(NCCL_ALGORITHMS)}")


def _proto(value: object) -> object:
    """Return the canonical name of an NCCL protocol; any other value unchanged."""
    return (nccl_protocol(value) or value) if isinstance(value, str) else value


def _pattern_schema(pattern: str) -> WithJsonSchema:
    """Return the JSON schema of text that matches a pattern."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _any_case(names: Iterable[str]) -> str:
    """Return the regular expression of names in any case, with or without underscores, as editors support no flags."""
    return "|".join(
        "".join("_?" if c == "_" else f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in name) for name in names
    )


class Gpus(Spec):
    """The GPUs of one node."""

    model: Name
    """Name of a file in `clustersim/hardware/gpus`, or path of your own file, relative to this one."""
    count: Count
    """Number of GPUs."""
    sustained: Annotated[
        dict[DType, Fraction] | None,
        Declared(
            family="clock under load",
            scope="part",
            spread=0.06,
            chosen_on="shares at which published steps are right, over those of long products: 0.90 to 1.04",
        ),
    ] = None
    """Measured share of the burst rate that GEMMs keep without `power_limit`. Default: the GPU's file, or from its power."""
    power_limit: Power | None = None
    """Power limit set on each GPU (`nvidia-smi -pl`), below its own: GEMMs slow down by the law of power. Default: none."""
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
    """Measured speed relative to the forecast: `products` (GEMMs), fused `attention`, `vector` (all others). Default: the
    GPU's file, else 1."""


def _pair(value: object) -> object:
    """Return (smaller GPU, larger GPU, links, bytes/s of a link; 0: that of `link`), by default one link. Raises ValueError."""
    if not isinstance(value, list | tuple) or len(value) not in (2, 3, 4):
        raise ValueError(
            "must be two GPUs of a node, their links and perhaps the rate of one, such as [0, 1, 12, 25GB/s]"
        )
    counts, rate = value[:3], value[3:]
    if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 1000 for count in counts):
        raise ValueError("must begin with whole numbers from 0 to 1000: GPU, GPU, links")
    a, b, *links = counts
    if a == b or links == [0]:
        raise ValueError("must be two different GPUs and at least one link")
    rate_of_link = parse(rate[0], "bandwidth") if rate and isinstance(rate[0], str) else rate[0] if rate else 0.0
    return (min(a, b), max(a, b), *(links or [1]), rate_of_link)


GpuPair = Annotated[
    tuple[int, int, int, float],
    BeforeValidator(_pair),
    Field(strict=False),
    WithJsonSchema({"type": "array", "minItems": 2, "maxItems": 4}),
]
"""(GPU, GPU, links, bytes/s of a link): two GPUs of a node, the smaller number first; 0 means the rate of `link`."""


class ScaleUp(Spec):
    """The network inside a node."""

    kind: Literal["nvswitch", "nvlink", "mesh", "pairs", "ring", "torus", "none"] = "nvswitch"
    """`nvswitch`: crossbar. `nvlink`: wires between GPUs. `mesh`: links between every two GPUs (AMD). `pairs`: links listed
    (bridges, cube meshes). `ring`, `torus`: links to neighbours. `none`: only PCIe."""
    links_per_gpu: Count = 1
    """Links per GPU, for `nvswitch` and `nvlink`."""
    links_per_peer: Count = 1
    """Links to each peer, for `mesh`, `ring` and `torus`."""
    pairs: Annotated[tuple[GpuPair, ...], Field(strict=False)] = ()
    """For `pairs`: `[GPU, GPU, links]`, optionally with the rate of a link. Other pairs use links through other GPUs, or
    PCIe."""
    island: Count | None = None
    """Number of neighbouring GPUs that links join; PCIe joins the groups. Default: all GPUs."""
    shape: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 4)] | None = None
    """Extents of a `torus`; their product is the number of GPUs."""
    link: Bandwidth | None = None
    """Rate of one link per direction."""
    payload_efficiency: Annotated[
        Fraction,
        Declared(
            family="NVLink",
            scope="part",
            spread=0.05,
            chosen_on="bus bandwidths of one node in nccl-tests over their forecasts",
        ),
    ] = 1.0
    """Payload rate over `link`."""
    multicast: bool = False
    """Switches reduce and broadcast (NVLS)."""
    latency: Time | None = None
    """Latency between GPUs, in rings and tori per hop; default 3.4 us, over PCIe 5.7 us (ring/Simple in NCCL's
    tuning.cc)."""


KINDS_OF = {
    "links_per_gpu": {"nvswitch", "nvlink"},
    "links_per_peer": {"mesh", "ring", "torus"},
    "shape": {"torus"},
    "pairs": {"pairs"},
    "island": {"nvswitch", "nvlink", "mesh"},
    "multicast": {"nvswitch"},
}
"""Kinds of `scale_up` that a key applies to; a key not listed applies to all."""


MEMORY_CARRIES: Annotated[Mapping[int, float], Declared("B/s", chosen_on="two bus bandwidths of one report")] = {
    3: 58e9,
    4: 93e9,
    5: 140e9,
}
"""Bytes/s that a CPU passes on between GPUs, by PCIe generation. Four RTX 5090 have 35 GB/s each on a Xeon 8480+ (NVIDIA/nccl
issue 1639), 46 % of its eight channels of DDR5-4800, as each byte is written and read; older hosts get that share of six channels
of DDR4-2666 and eight of DDR4-3200. Eight GPUs on two CPUs have 28 GB/s, as bytes between the CPUs cross both memories."""
SOCKET_LINK: Annotated[Mapping[int, float], Declared("B/s")] = {3: 10e9, 4: 22e9, 5: 40e9}
"""Bytes/s between CPUs by PCIe generation: NCCL's figures for Xeons of those years (src/graph/topo.h: SKL, SRP and
ERP_QPI_BW)."""


HOST_MEMORY: Annotated[Mapping[int, tuple[float, float, int]], Declared()] = {
    3: (0.5e12, 256e9, 48),
    4: (1.0e12, 410e9, 128),
    5: (2.0e12, 614e9, 112),
}
"""(bytes, bytes/s, cores) of a node's two CPUs by PCIe generation: DGX-1 and DGX-2, DGX A100 and DGX H100 (datasheets)."""


def _of_generation(table: Mapping[int, T], slot: str) -> T:
    """Return the table's value for a slot's PCIe generation, or for the nearest generation in the table."""
    generation = int(_PCIE.fullmatch(slot)[1])  # type: ignore[index]
    return table[min(max(generation, min(table)), max(table))]


class Host(Spec):
    """The host: its CPUs, and the PCIe slots of GPUs and NICs."""

    cpu: Literal["intel", "amd", "arm"] = "intel"
    """CPU vendor."""
    pcie: Annotated[Name, _SLOT, _pattern_schema(_PCIE.pattern)] = "gen5x16"
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
    """Factor on the kernel launch times of `clustersim/frameworks/`; used if the workload names its framework."""
    sockets: Annotated[int, Field(ge=1, le=16)] | None = None
    """Number of CPUs, which share the GPUs in order. Default 1, or 2 for more than four GPUs without links or
    `peer_to_peer`."""
    gpus_per_switch: Count | None = None
    """GPUs that share a slot behind one PCIe switch; default: a slot each."""
    carries: Bandwidth | None = None
    """Rate at which one CPU passes data between GPUs without `peer_to_peer`. Default: by PCIe generation."""
    socket_link: Bandwidth | None = None
    """Rate per direction between CPUs for data of GPUs. Default: by PCIe generation."""
    memory: Size | None = None
    """CPU memory of a node, for offloading. Default: by PCIe generation."""
    memory_bandwidth: Bandwidth | None = None
    """Datasheet bandwidth of that memory. Default: by PCIe generation."""
    cores: Count | None = None
    """CPU cores of a node, for offloaded updates. Default: by PCIe generation."""
    c2c: Bandwidth | None = None
    """NVLink-C2C rate per direction between a GPU and its CPU (Grace). Default: they use the slot."""
    effective: Bandwidth | None = None
    """Rate that transfers through a slot reach. Default: NCCL's 1.5 GB/s per lane of generation 4 (topo.h), scaled."""

    @property
    def raw(self) -> float:
        """Bytes/s of the slot after line coding."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return _PCIE_RAW[int(generation)] * int(lanes)

    @property
    def figures(self) -> tuple[float, float, int]:
        """(bytes, bytes/s, cores) of the memory and CPUs of a node."""
        memory, bandwidth, cores = _of_generation(HOST_MEMORY, self.pcie)
        return self.memory or memory, self.memory_bandwidth or bandwidth, self.cores or cores

    @property
    def memory_carries(self) -> float:
        """Bytes/s that a CPU passes on between GPUs through its memory."""
        return _of_generation(MEMORY_CARRIES, self.pcie)

    @property
    def between_sockets(self) -> float:
        """Bytes/s per direction between CPUs for transfers between GPUs."""
        return _of_generation(SOCKET_LINK, self.pcie)

    @property
    def usable(self) -> float:
        """Bytes/s that transfers reach: `effective`, or NCCL's 1.5 GB/s per lane of generation 4 (topo.h), scaled."""
        generation, lanes = _PCIE.fullmatch(self.pcie).groups()  # type: ignore[union-attr]
        return self.effective or PCIE_LANE * 2.0 ** (int(generation) - 4) * int(lanes)


def wider_slots(host: Host) -> Iterator[Host]:
    """Yield hosts with slots of equal width and a later generation, and no `effective` rate."""
    generation, lanes = _PCIE.fullmatch(host.pcie).groups()  # type: ignore[union-attr]
    for later in range(int(generation) + 1, max(_PCIE_RAW) + 1):
        yield host.model_copy(update={"pcie": f"gen{later}x{lanes}", "effective": None})


class Nics(Spec):
    """The NICs of one node. A NIC is one port of the fabric."""

    count: Count
    """Number of NICs."""
    rate: LineRate
    """Line rate of one NIC."""
    transport: Transport = "infiniband"
    """Transport of NCCL, which sets the default latency: `efa` up to AWS's P5, `efa_v3` from P5en on, `tcpxo` on Google's
    A3 Mega."""
    attach: Literal["per_gpu", "shared", "integrated"] = "per_gpu"
    """`per_gpu`: each NIC serves count/gpus neighbouring GPUs. `shared`: GPUs use the NICs in turn. `integrated`: `per_gpu`
    with ports on the chip (TPU, Gaudi)."""
    efficiency: Annotated[
        Fraction,
        Declared(
            family="network between nodes",
            scope="machine",
            spread=0.15,
            chosen_on="bus bandwidths of clusters of one kind in nccl-tests over their forecasts",
        ),
    ] = NIC_EFFICIENCY
    """Payload rate over line rate."""
    latency: Time = NIC_LATENCY
    """Latency between GPUs through one leaf switch. Default: by transport; InfiniBand 14 us (NET ring/Simple in NCCL's
    tuning.cc)."""
    tree_chunk: Size | None = None
    """Largest chunk of NVLSTree if the network plugin sets it (NCCL_NVLSTREE_MAX_CHUNKSIZE). Default: NCCL's choice."""

    @model_validator(mode="before")
    @classmethod
    def _of_transport(cls, content: object) -> object:
        """Return the keys with the latency of the transport; errors in them are reported for the keys as written."""
        if not isinstance(content, dict) or str(content.get("transport")) not in _HOPS:
            return content
        return {"latency": f"{_HOPS[str(content['transport'])] * 1e6:g}us", **content}


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
    """Power of a whole node."""
    gpu: Power | None = None
    """Power of one GPU."""


class Node(Spec):
    """One type of node."""

    extends: Name | None = None
    """Node type to start from. A new `scale_up.kind` or `host.pcie` drops keys of the old; fewer Grace GPUs have fewer CPUs."""
    gpus: Gpus
    """GPUs of the node."""
    scale_up: ScaleUp = ScaleUp(kind="none")
    """Network between the GPUs of the node."""
    host: Host = Host()
    """CPUs and PCIe slots."""
    nics: Nics | None = None
    """NICs to other nodes."""
    power: NodePower | None = None
    """Power at full load."""
    evidence: dict[str, StepEvidence] = Field(default_factory=dict)
    """Source of values that were read from measured steps, by dotted key such as `nics.efficiency`."""


class Fault(Spec):
    """A slow or dead link, GPU or node. The slowdowns of a GPU and of its node multiply."""

    link: Name | None = None
    """Tier and number, such as `nic-up[777]`; `nic[777]` is both directions."""
    rate: Bandwidth | None = None
    """Usable rate of the link."""
    dead: bool = False
    """Traffic of a dead link takes another route. A dead node, or one with a dead GPU, gets no ranks."""
    cables: Count | None = None
    """Number of dead cables in a bundle of parallel ones; default 1."""
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
    """Factor on the compute time of the node or GPU."""


class Nccl(Spec):
    """The communication library. All keys but `launch` apply to algorithm `nccl`."""

    launch: Time = COLLECTIVE_LAUNCH
    """Time to launch one collective; default 8.4 us (NCCL's tuning.cc). Added to the latencies of algorithm `nccl` only if
    given."""
    version: Annotated[str, _VERSION, _pattern_schema(_RELEASE.pattern)] = "2.30"
    """NCCL release."""
    algo: Annotated[str, AfterValidator(_algo), _pattern_schema(_any_case(NCCL_ALGORITHMS))] | None = None
    """Algorithm that NCCL is forced to use (`NCCL_ALGO`)."""
    proto: (
        Annotated[Literal["LL", "LL128", "Simple"], BeforeValidator(_proto), _pattern_schema(_any_case(NCCL_PROTOCOLS))]
        | None
    ) = None
    """Protocol that NCCL is forced to use (`NCCL_PROTO`)."""
    collnet: bool = True
    """NCCL may reduce in the switches of a fabric with `reduction: sharp` (`NCCL_COLLNET_ENABLE`)."""
    nvls: bool = True
    """NCCL may reduce in NVSwitches (`NCCL_NVLS_ENABLE`)."""
    p2p_chunk: Size = P2P_CHUNK
    """Bytes per step of a message between nodes (`NCCL_P2P_NET_CHUNKSIZE`)."""
    slowdown: Annotated[
        float,
        Field(gt=0, le=1000, strict=False),
        Declared(
            family="latency of collectives",
            spread=0.30,
            chosen_on="latencies of small collectives of clusters of one kind over their forecasts",
        ),
    ] = 1.0
    """Factor on the latency of collectives and messages."""


_NodeType = Annotated[str | dict[str, Any], PlainValidator(_node)]


class NodePool(Spec):
    """Nodes of one type in a cluster of several types."""

    nodes: Count
    """Number of nodes."""
    node: _NodeType
    """Same as `cluster.node`."""


class Stragglers(Spec):
    """GPUs that are slow in a step."""

    share: Annotated[float, Field(ge=0, le=1, strict=False)]
    """Probability that a GPU is slow in a step."""
    slowdown: Annotated[float, Field(ge=1, le=1e6, strict=False)]
    """Factor on the compute time of a slow GPU."""


class Jitter(Spec):
    """Variation of each GPU's compute time from step to step. `run` prints percentiles of the step time over many draws."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    """Distribution, with mean 1, of the factor on a GPU's compute time."""
    cv: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Coefficient of variation of that factor."""
    stragglers: Stragglers | None = None
    """GPUs that are slower in some steps."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the draws."""
    draws: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of steps drawn; `run --draws` overrides it."""


class Cluster(Spec):
    """Nodes of one type, or of several types in `pools`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["nodes", "node"]}, {"required": ["pools"]}]})

    name: Name | None = None
    """Default: the name of the file."""
    nodes: Count | None = None
    """Number of nodes."""
    node: _NodeType | None = None
    """A name in `nodes`, a shipped type, or a mapping that extends one of them."""
    pools: Annotated[tuple[NodePool, ...], Field(strict=False), between(1, 64)] | None = None
    """Replaces `nodes` and `node`: nodes of several types, numbered pool by pool
    ([rules](clusters.md#nodes-of-several-types))."""
    jitter: Jitter | None = None
    """Variation of the step time."""


class TopologySpec(Spec):
    """A whole topology file; each kind of fabric reads its own part."""

    cluster: Cluster
    """Nodes of the cluster."""
    nodes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Node types of your own, by name."""
    fabric: dict[str, Any] | None = None
    """Network between nodes; none for a single node."""
    faults: tuple[Fault, ...] = Field(default=(), strict=False)
    """Slow or dead parts."""
    nccl: Nccl = Nccl()
    """Communication library."""
