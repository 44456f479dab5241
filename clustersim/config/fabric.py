"""The specifications of fabrics between nodes, one for each kind."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from clustersim.config.evidence import Declared
from clustersim.config.fields import (
    Also,
    Bandwidth,
    Count,
    Fraction,
    Index,
    Length,
    LineRate,
    Name,
    Spec,
    Time,
    between,
)
from clustersim.errors import shown

SWITCH_LATENCY: Annotated[float, Declared("s", "between them")] = 250e-9
"""Seconds through one switch and its ports: vendors claim 90 to 150 ns for InfiniBand, users measured 330 ns."""
_TAKEN = frozenset({"gpu", "mesh", "nic", "nvlink", "pcie", "port", "ports", "ring"})


def _rails(value: object) -> int | str:
    """Return the rails of a tree as written: none, optimized or a number. Raises ValueError for any other value."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024
    if is_count or value in ("none", "optimized"):
        return value  # type: ignore[return-value]
    raise ValueError(f"{value!r} is not known; write none, optimized, or a number of rails up to 1024")


_TIERS = {"type": "integer", "minimum": 1, "maximum": 5}
_RAILS = {"anyOf": [{"enum": ["none", "optimized"]}, {"type": "integer", "minimum": 1, "maximum": 1024}]}


def _listed(value: object) -> object:
    """Return a number as that many tiers with default values, any other value unchanged. Raises ValueError beyond 5 tiers."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if 1 <= value <= 5:
        return ({},) * value
    raise ValueError(f"{shown(value)} is not known; write a list of tiers, or how many, from 1 to 5")


def _tier_name(value: str) -> str:
    """Return the name of a tier. Raises ValueError unless it is a word that names no other part of a cluster."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) and value not in _TAKEN:
        return value
    raise ValueError(
        f"{value!r} is not a valid tier name; write a word such as leaf, spine, core ({', '.join(sorted(_TAKEN))} are taken)"
    )


Extent = Annotated[int, Field(ge=1, le=1_000_000)]


class Tier(Spec):
    """One tier of switches."""

    name: Annotated[Name, AfterValidator(_tier_name)] | None = None
    """Default: leaf, spine, core, tier4, tier5."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports per switch."""
    down: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Ports to the tier below; default radix / 2, in the top tier all."""
    up: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Ports to the tier above; default radix / 2."""
    pod: Count | None = None
    """Groups of the tier below (for the second tier: leaves) that one group joins. Default: `down`; in the top tier all."""
    oversubscription: Annotated[float, Field(strict=False, ge=1, le=1000)] | None = None
    """`down` over `up`; removes uplinks. For leaves without `down` and `up`, `down` counts the ports that NICs use."""


class Link(Spec):
    """A cable."""

    rate: LineRate
    """Rate per direction."""
    efficiency: Fraction = 1.0
    """Payload rate over `rate`."""
    cable: tuple[Length, ...] = Field(default=(), strict=False)
    """Length in each tier, from the NIC upwards."""


class TreeLink(Spec):
    """A cable of a fat tree."""

    rate: LineRate | None = None
    """Rate per direction; default: that of the NICs' ports."""
    efficiency: Fraction = 1.0
    """Payload rate over `rate`."""
    cable: tuple[Length, ...] = Field(default=(), strict=False)
    """Length in each tier, from the NIC upwards; extra ones are allowed without `tiers`."""


class Routing(Spec):
    """Choice among shortest paths."""

    mode: Literal["adaptive", "dmodk", "ecmp"] = "adaptive"
    """`adaptive`: the emptiest path, so parallel cables act as one. `dmodk`: by the destination. `ecmp`: by a hash of
    source, destination and queue pair."""
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs per transfer, for `ecmp`."""
    seed: Index = 0
    """Seed of the hash."""


Reduction = Literal["none", "sharp"]


class FabricSpec(Spec):
    """The network between nodes."""

    kind: Name
    """Name of this kind."""


class FatTree(FabricSpec):
    """A fat tree of 1 to 5 tiers."""

    rails: Annotated[int | str, PlainValidator(_rails), WithJsonSchema(_RAILS)] = "none"
    """`none`: the NICs of a node share a leaf. `optimized`: NIC j is on a leaf of rail j; a number k: of rail j % k."""
    rail_planes: bool = False
    """Rails are separate networks; traffic changes rails only inside nodes."""
    planes: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of equal trees. A NIC has one port of `link` in each."""
    scalable_unit: Count | None = None
    """Nodes that share a set of leaves, one per rail."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports per switch in tiers without a `radix`."""
    oversubscription: Annotated[float, Field(strict=False, ge=1, le=1000)] | None = None
    """Ports to NICs over uplinks on a full leaf; removes uplinks."""
    tiers: Annotated[tuple[Tier, ...], Field(strict=False), between(1, 5), BeforeValidator(_listed), Also(_TIERS)] = ()
    """Tiers from the leaves upwards, or their number. Default: the fewest that join all NICs, as in NVIDIA's reference
    architectures."""
    link: TreeLink = TreeLink()
    """All cables."""
    switch_latency: Time = SWITCH_LATENCY
    """Latency of one switch and its ports."""
    routing: Routing = Routing()
    """Choice of the path."""
    reduction: Reduction = "none"
    """`sharp`: switches reduce (SHARP)."""

    def tier(self, index: int) -> Tier:
        """Return a tier, with the fabric's `radix` if it has none of its own."""
        tier = self.tiers[index]
        return tier if tier.radix is not None else tier.model_copy(update={"radix": self.radix})


class SingleNode(FabricSpec):
    """No network: a cluster of one node."""


class Switch(FabricSpec):
    """One ideal crossbar that joins all NICs."""

    link: Link | None = None
    """Cables; default as fast as the NICs."""
    reduction: Reduction = "none"
    """`sharp`: the switch reduces (SHARP)."""


class Torus(FabricSpec):
    """A torus of routers, one per node; NICs attach to the router of their node. Paths go dimension by dimension, the
    shorter way around."""

    dims: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 6)]
    """Extents; their product is the number of nodes. Nodes are numbered along the first dimension first."""
    wrap: bool = True
    """The last position is cabled to the first."""
    link: Link
    """All cables; `cable` is one length, or one per dimension."""
    switch_latency: Time = SWITCH_LATENCY
    """Latency of one router."""


class GridDim(Spec):
    """One dimension of a grid: the network between positions that differ only in it."""

    kind: Literal["ring", "line", "mesh", "switch"]
    """`ring`, `line`: neighbours. `mesh`: every two positions. `switch`: a crossbar; a hop is two links."""
    size: Extent
    """Number of positions."""
    rate: Bandwidth
    """Rate of each link."""
    latency: Time = 0.0
    """Latency of each link."""


class Grid(FabricSpec):
    """A network in each dimension of a grid of nodes. Paths go dimension by dimension."""

    dims: Annotated[tuple[GridDim, ...], Field(strict=False), between(1, 6)]
    """Dimensions; the product of their sizes is the number of nodes."""
    rails: bool = False
    """NIC j of every node is in grid j; otherwise the NICs of a node share one position."""


class Dragonfly(FabricSpec):
    """A dragonfly (Kim et al. 2008): fully connected groups of fully connected routers, with minimal paths."""

    a: Annotated[int, Field(ge=1, le=4096)]
    """Routers per group."""
    p: Annotated[int, Field(ge=1, le=4096)]
    """NICs per router."""
    h: Annotated[int, Field(ge=1, le=4096)]
    """Cables per router to other groups."""
    groups: Count | None = None
    """At most a·h + 1, the default; fewer groups have several cables per pair."""
    link: Link
    """All cables; `cable` lists the lengths to the NIC, inside a group, between groups."""
    switch_latency: Time = SWITCH_LATENCY
    """Latency of one router."""


class DragonflyPlus(FabricSpec):
    """A Dragonfly+ (Shpiner et al., HiPINEB 2017): groups of leaves and spines, each leaf cabled to each spine, spines · h
    / (groups - 1) cables between every two groups. Paths are minimal, spread evenly over the spines that lead to the
    destination, and avoid dead cables."""

    leaves: Annotated[int, Field(ge=1, le=4096)]
    """Leaves per group."""
    spines: Annotated[int, Field(ge=1, le=4096)]
    """Spines per group."""
    p: Annotated[int, Field(ge=1, le=4096)]
    """NICs per leaf."""
    h: Annotated[int, Field(ge=1, le=4096)]
    """Cables per spine to other groups."""
    uplinks: Count | None = None
    """Cables per leaf, equally many to each spine; default one to each."""
    groups: Count | None = None
    """Number of groups; default: nodes divided by nodes per group, rounded up."""
    group_nodes: Count | None = None
    """Nodes per group; default: the number of node ports of its leaves."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports per switch; only checked."""
    link: Link
    """All cables; `cable` lists the lengths to the NIC, inside a group, between groups."""
    switch_latency: Time = SWITCH_LATENCY
    """Latency of one switch and its ports."""
    routing: Routing = Routing()
    """Choice of the path."""


class ExplicitLink(Spec):
    """Parallel cables between two ends: a switch, `nic[e]`, or `node[n]` (every NIC of node n)."""

    a: Name
    """First end."""
    b: Name
    """Second end."""
    rate: LineRate
    """Rate of one cable per direction."""
    latency: Time = 0.0
    """Latency of a cable."""
    count: Count = 1
    """Number of cables."""


class ExplicitRouting(Spec):
    """Choice among shortest paths."""

    mode: Literal["adaptive", "ecmp", "first"] = "adaptive"
    """`adaptive`: all paths, in proportion to the rates of the cables that lead closer. `ecmp`: a hash chooses a cable at
    each switch. `first`: the cable that comes first in the file."""
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs per transfer, for `ecmp`."""
    seed: Index = 0
    """Seed of the hash."""


class Explicit(FabricSpec):
    """A graph of switches and cables. Paths have the fewest cables."""

    nodes: Annotated[tuple[Name, ...], Field(strict=False), between(1, 2000)]
    """Names of the switches."""
    links: Annotated[tuple[ExplicitLink, ...], Field(strict=False), between(1, 20_000)]
    """Cables."""
    routing: ExplicitRouting = ExplicitRouting()
    """Choice of the path."""
