"""The specification of a cluster: its nodes, the fabric between them, and what is broken."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from clustersim.config.fields import Bandwidth, Count, Fraction, Index, Length, Name, Power, Spec, Time

NCCL_ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
_PCIE = re.compile(r"gen([1-6])x(1|2|4|8|16)")
_PCIE_RAW = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # B/s a lane after line coding


def _between(low: int, high: int) -> AfterValidator:
    """Return the validator of a list's length; pydantic's own also complains when only an item is wrong."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if low <= len(value) <= high:
            return value
        raise ValueError(f"has {len(value)} entries; write {low} to {high}")

    return AfterValidator(check)


def _rails(value: object) -> int | str:
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024
    if whole or value in ("none", "optimized"):
        return value  # type: ignore[return-value]
    raise ValueError(f"{value!r} is not known; write none, optimized, or a number of rails up to 1024")


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


def _algo(value: str) -> str:
    if value in NCCL_ALGORITHMS:
        return value
    raise ValueError(f"{value!r} is no algorithm of NCCL; write one of {', '.join(NCCL_ALGORITHMS)}")


def _name_free_of_brackets(value: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) and value not in {"nic", "nvlink", "pcie", "gpu"}:
        return value
    raise ValueError(
        f"{value!r} is no name of a tier; write a word such as leaf, spine, core (nic, nvlink, pcie are taken)"
    )


class Gpus(Spec):
    """The GPUs of one node; `model` is a file of `clustersim/gpus` or a path."""

    model: Name
    count: Count


class ScaleUp(Spec):
    """The network inside a node: `links_per_gpu` links of `link` bytes/s a direction, of which payload gets a fraction.

    nvswitch: a crossbar. nvlink: wires between GPUs, all of which rings use. none: only PCIe. multicast: the switches
    reduce and broadcast (NVLS). latency: from GPU to GPU; default 3.4 us, the ring/Simple figure of NCCL's tuning.cc
    (5.7 us over PCIe).
    """

    kind: Literal["nvswitch", "nvlink", "none"] = "nvswitch"
    links_per_gpu: Count = 1
    link: Bandwidth | None = None
    payload_efficiency: Fraction = 1.0
    multicast: bool = False
    latency: Time | None = None


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
        return self.effective or 1.5e9 * 2.0 ** (int(generation) - 4) * int(lanes)


class Nics(Spec):
    """The NICs of one node; a NIC is one port of the fabric.

    attach: `per_gpu` gives each NIC to count/gpus neighbouring GPUs, `shared` deals the GPUs out to the NICs in turn.
    efficiency: payload over line rate. latency: from GPU to GPU through one leaf switch; default 14 us, the NET
    ring/Simple figure of NCCL's tuning.cc.
    """

    count: Count
    rate: Bandwidth
    attach: Literal["per_gpu", "shared"] = "per_gpu"
    efficiency: Fraction = 0.97
    latency: Time = 14e-6


class NodePower(Spec):
    """Power of a whole node at full load, and of one GPU."""

    max: Power
    gpu: Power | None = None


class Node(Spec):
    """One type of node. extends: the node type that it changes; merged before this is read."""

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


class FatTree(Spec):
    """A fat tree of 1 to 5 tiers.

    rails: `none` puts the NICs of a node on one leaf, `optimized` NIC j of every node on a leaf of rail j, a number k
    NIC j on rail j % k. scalable_unit: nodes that share a set of leaves, one a rail. rail_planes: each rail is a network of
    its own; traffic changes rails only inside nodes.
    """

    kind: Name
    rails: Annotated[int | str, PlainValidator(_rails)] = "none"
    rail_planes: bool = False
    scalable_unit: Count | None = None
    tiers: Annotated[tuple[Tier, ...], Field(strict=False), _between(1, 5)]
    link: Link
    switch_latency: Time = 250e-9
    routing: Routing = Routing()


class SingleNode(Spec):
    """No fabric at all."""

    kind: Name


class Switch(Spec):
    """One ideal crossbar that joins all NICs."""

    kind: Name
    link: Link | None = None


class ExplicitLink(Spec):
    """`count` parallel cables between `a` and `b`, each a switch or `nic[e]` or `node[n]` (every NIC of node n)."""

    a: Name
    b: Name
    rate: Bandwidth
    latency: Time = 0.0
    count: Count = 1


class Explicit(Spec):
    """A graph written out: the names of the switches, and the cables."""

    kind: Name
    nodes: Annotated[tuple[Name, ...], Field(strict=False), _between(1, 2000)]
    links: Annotated[tuple[ExplicitLink, ...], Field(strict=False), _between(1, 20_000)]


class Fault(Spec):
    """What is not as it should be: a link's usable rate, or a GPU or a whole node that computes `slowdown` times as long.

    link: a tier and a number, as `nic-up[777]`; `nic[777]` is both directions.
    """

    link: Name | None = None
    rate: Bandwidth | None = None
    node: Index | None = None
    gpu: Index | None = None
    slowdown: Annotated[float, Field(strict=False, gt=0, le=1e6)] | None = None


class Nccl(Spec):
    """The communication library: seconds to launch one collective (8.4 us, ring/Simple in NCCL's tuning.cc).

    version, algo, proto, collnet are for algorithm `nccl`: NCCL's release, what it is forced to use (`NCCL_ALGO`,
    `NCCL_PROTO`), and whether it lets InfiniBand switches add (`NCCL_COLLNET_ENABLE`, SHARP). Its latencies hold a launch
    already; a `launch` written here comes on top of them.
    """

    launch: Time = 8.4e-6
    version: Annotated[str, AfterValidator(_version)] = "2.30"
    algo: Annotated[str, AfterValidator(_algo)] | None = None
    proto: Literal["LL", "LL128", "Simple"] | None = None
    collnet: bool = False


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
