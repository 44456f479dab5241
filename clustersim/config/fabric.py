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
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024
    if whole or value in ("none", "optimized"):
        return value  # type: ignore[return-value]
    raise ValueError(f"{value!r} is not known; write none, optimized, or a number of rails up to 1024")


_TIERS = {"type": "integer", "minimum": 1, "maximum": 5}
_RAILS = {"anyOf": [{"enum": ["none", "optimized"]}, {"type": "integer", "minimum": 1, "maximum": 1024}]}


def _listed(value: object) -> object:
    """Return as many tiers as a number says, all with what is usual."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if 1 <= value <= 5:
        return ({},) * value
    raise ValueError(f"{shown(value)} is not known; write a list of tiers, or how many, from 1 to 5")


def _name_free_of_brackets(value: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) and value not in _TAKEN:
        return value
    raise ValueError(
        f"{value!r} is no name of a tier; write a word such as leaf, spine, core ({', '.join(sorted(_TAKEN))} are taken)"
    )


Extent = Annotated[int, Field(ge=1, le=1_000_000)]


class Tier(Spec):
    """One tier of switches."""

    name: Annotated[Name, AfterValidator(_name_free_of_brackets)] | None = None
    """Default leaf, spine, core, tier4, tier5."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports of a switch in all."""
    down: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Ports to the tier below; default radix / 2, in the top tier all."""
    up: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Ports to the tier above; default radix / 2."""
    pod: Count | None = None
    """How many groups of the tier below (leaves for the second tier) one group of this tier joins; default `down`, in the top
    tier all."""
    oversubscription: Annotated[float, Field(strict=False, ge=1, le=1000)] | None = None
    """down over up; it takes uplinks away. Of leaves that say neither `down` nor `up`, down are the ports that NICs use."""


class Link(Spec):
    """A cable."""

    rate: LineRate
    """A direction."""
    efficiency: Fraction = 1.0
    """The fraction that payload gets."""
    cable: tuple[Length, ...] = Field(default=(), strict=False)
    """Lengths, in each tier from the NIC upwards."""


class TreeLink(Spec):
    """A cable of a fat tree."""

    rate: LineRate | None = None
    """A direction; default as fast as the ports of the NICs."""
    efficiency: Fraction = 1.0
    """The fraction that payload gets."""
    cable: tuple[Length, ...] = Field(default=(), strict=False)
    """Lengths, in each tier from the NIC upwards; more than there are tiers where `tiers` is left out."""


class Routing(Spec):
    """How a path is chosen among equals."""

    mode: Literal["adaptive", "dmodk", "ecmp"] = "adaptive"
    """`adaptive`: every packet takes the emptiest one, so parallel cables act as one. `dmodk`: the digits of the destination
    choose. `ecmp`: a hash of source, destination and queue pair chooses."""
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs a transfer, for `ecmp`."""
    seed: Index = 0
    """Of the hash."""


Reduction = Literal["none", "sharp"]


class FatTree(Spec):
    """A fat tree of 1 to 5 tiers."""

    kind: Name
    """Name of this kind."""
    rails: Annotated[int | str, PlainValidator(_rails), WithJsonSchema(_RAILS)] = "none"
    """`none` puts the NICs of a node on one leaf, `optimized` NIC j of every node on a leaf of rail j, a number k NIC j on
    rail j % k."""
    rail_planes: bool = False
    """Each rail is a network of its own; traffic changes rails only inside nodes."""
    planes: Annotated[int, Field(ge=1, le=16)] = 1
    """A NIC has that many ports of `link` each, one into each of as many equal trees, and spreads its packets over them."""
    scalable_unit: Count | None = None
    """Nodes that share a set of leaves, one a rail."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports of the switches in all tiers that do not say."""
    oversubscription: Annotated[float, Field(strict=False, ge=1, le=1000)] | None = None
    """Of the leaves: ports down that a full one has NICs on, over its uplinks; it takes uplinks away."""
    tiers: Annotated[tuple[Tier, ...], Field(strict=False), between(1, 5), BeforeValidator(_listed), Also(_TIERS)] = ()
    """From the leaves upwards, or how many; default as few as join all NICs, each leaf with equally many cables to every switch
    above it, as NVIDIA's reference architectures count them."""
    link: TreeLink = TreeLink()
    """Every cable."""
    switch_latency: Time = SWITCH_LATENCY
    """Through one switch and its ports."""
    routing: Routing = Routing()
    """Which path."""
    reduction: Reduction = "none"
    """`sharp` if the switches add up (SHARP)."""

    def tier(self, index: int) -> Tier:
        """Return a tier with the `radix` of all where it has none of its own."""
        tier = self.tiers[index]
        return tier if tier.radix is not None else tier.model_copy(update={"radix": self.radix})


class SingleNode(Spec):
    """No fabric at all."""

    kind: Name
    """Name of this kind."""


class Switch(Spec):
    """One ideal crossbar that joins all NICs."""

    kind: Name
    """Name of this kind."""
    link: Link | None = None
    """Its cables; default as fast as the NICs."""
    reduction: Reduction = "none"
    """`sharp` if it adds up (SHARP)."""


class Torus(Spec):
    """A torus: the router of each node has one cable to its two neighbours in each dimension, and its NICs hang on it.

    A path goes dimension by dimension, the shorter way around.
    """

    kind: Name
    """Name of this kind."""
    dims: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 6)]
    """Extents, whose product is the number of nodes; ranks run fastest along the first."""
    wrap: bool = True
    """The last meets the first."""
    link: Link
    """Every cable; its `cable` is one length, or one a dimension."""
    switch_latency: Time = SWITCH_LATENCY
    """Through one router."""


class GridDim(Spec):
    """One dimension of a grid: what joins the positions that differ in it alone."""

    kind: Literal["ring", "line", "mesh", "switch"]
    """`ring`, `line`: neighbours. `mesh`: every two. `switch`: a crossbar with a link to each position, in which a hop is two
    links."""
    size: Extent
    """Positions."""
    rate: Bandwidth
    """Of each link."""
    latency: Time = 0.0
    """Of each link."""


class Grid(Spec):
    """A network in each dimension of a grid of nodes. A path goes dimension by dimension."""

    kind: Name
    """Name of this kind."""
    dims: Annotated[tuple[GridDim, ...], Field(strict=False), between(1, 6)]
    """The sizes multiply to the number of nodes."""
    rails: bool = False
    """NIC j of every node is in grid j of as many equal ones; else the NICs of a node share one position."""


class Dragonfly(Spec):
    """A dragonfly (Kim, Dally, Scott and Abts 2008): fully connected groups of fully connected routers.

    A path is minimal: at most one cable in the first group, one between groups, one in the last.
    """

    kind: Name
    """Name of this kind."""
    a: Annotated[int, Field(ge=1, le=4096)]
    """Routers of a group."""
    p: Annotated[int, Field(ge=1, le=4096)]
    """NICs of a router."""
    h: Annotated[int, Field(ge=1, le=4096)]
    """Cables of a router to other groups."""
    groups: Count | None = None
    """a·h + 1 at most, which is the default; fewer have several cables a pair."""
    link: Link
    """Every cable; its `cable` are lengths to the NIC, inside a group, between groups."""
    switch_latency: Time = SWITCH_LATENCY
    """Through one router."""


class DragonflyPlus(Spec):
    """A Dragonfly+ (Shpiner et al., HiPINEB 2017; Megafly): groups of leaves and spines, every leaf joined to every spine.

    Every two groups are joined by equally many cables, spines · h / (groups - 1). A path is minimal: leaf, spine, leaf in a
    group, one more cable between the spines of two, and none through a third unless cables are dead. Adaptive routing spreads
    it evenly over all spines that lead there.
    """

    kind: Name
    """Name of this kind."""
    leaves: Annotated[int, Field(ge=1, le=4096)]
    """Leaves of a group."""
    spines: Annotated[int, Field(ge=1, le=4096)]
    """Spines of a group."""
    p: Annotated[int, Field(ge=1, le=4096)]
    """NICs of a leaf."""
    h: Annotated[int, Field(ge=1, le=4096)]
    """Cables of a spine to other groups."""
    uplinks: Count | None = None
    """Cables of a leaf, equally many to each spine; default one."""
    groups: Count | None = None
    """Default as many as the nodes fill."""
    group_nodes: Count | None = None
    """Nodes in a group; default as many as its leaves have ports for."""
    radix: Annotated[int, Field(ge=2, le=100_000)] | None = None
    """Ports of a switch, checked if given."""
    link: Link
    """Every cable; its `cable` are lengths to the NIC, inside a group, between groups."""
    switch_latency: Time = SWITCH_LATENCY
    """Through one switch and its ports."""
    routing: Routing = Routing()
    """Which path."""


class ExplicitLink(Spec):
    """Parallel cables between two ends, each a switch or `nic[e]` or `node[n]` (every NIC of node n)."""

    a: Name
    """One end."""
    b: Name
    """The other."""
    rate: LineRate
    """Of one cable, a direction."""
    latency: Time = 0.0
    """Of the cables."""
    count: Count = 1
    """How many."""


class ExplicitRouting(Spec):
    """How a path is chosen among the shortest ones of a graph written out."""

    mode: Literal["adaptive", "ecmp", "first"] = "adaptive"
    """`adaptive`: the bytes of a pair are spread over all of them, at each switch in proportion to the bytes/s of the cables
    that lead closer. `ecmp`: at each switch a hash of source, destination and queue pair chooses one of those cables.
    `first`: all take one path; ties go to the cable that stands first in the file."""
    qps: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs a transfer, for `ecmp`."""
    seed: Index = 0
    """Of the hash."""


class Explicit(Spec):
    """A graph written out. Paths have the fewest cables."""

    kind: Name
    """Name of this kind."""
    nodes: Annotated[tuple[Name, ...], Field(strict=False), between(1, 2000)]
    """Names of the switches."""
    links: Annotated[tuple[ExplicitLink, ...], Field(strict=False), between(1, 20_000)]
    """The cables."""
    routing: ExplicitRouting = ExplicitRouting()
    """Which path."""
