"""The links inside nodes: a crossbar of NVSwitches or PCIe, or wires from GPU to GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from clustersim.arrays import Ints, Mask
from clustersim.config.topology import ScaleUp
from clustersim.errors import ConfigError
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.hops import Hops, apart
from clustersim.topology.lattice import LONGEST, Dim, Lattice, names
from clustersim.topology.numbering import Numbering
from clustersim.topology.specs import MAX_LINKS, LinkRange, NodeSpecs

_WIRED = frozenset({"mesh", "ring", "torus"})


def inside(cluster: NodeSpecs) -> Lattice | Crossbars:
    """Return the routes from GPU to GPU of a node: on a grid whose lines stay inside nodes, or crossbars of different sizes."""
    if len({pool.node.gpus.count for pool in cluster.parts}) > 1:
        return Crossbars(cluster.numbering(), dims(cluster)[0].switch)
    return _grid(cluster)


def _grid(cluster: NodeSpecs) -> Lattice:
    return Lattice(dims(cluster), cluster.gpus, "gpu")  # rates are those of the first type


@dataclass(frozen=True, slots=True, eq=False)
class Crossbars(Hops):
    """A crossbar in each node, of nodes with different numbers of GPUs: links to it by GPU, then as many back."""

    numbering: Numbering
    """Which node each GPU is of."""
    switch: str
    """What a crossbar is called."""

    @property
    def firsts(self) -> tuple[int, int]:
        """First link, and the number of links."""
        return 0, 2 * self.numbering.gpus

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from GPUs to GPUs of their node."""
        found = np.stack([source, destination + self.numbering.gpus], axis=1)
        found[source == destination] = -1
        return found

    def ends(self, link: int) -> tuple[str, str]:
        """Return the two ends of a link by name."""
        gpu = link % self.numbering.gpus
        pair = f"gpu[{gpu}]", f"{self.switch}[{self.numbering.place('gpu', gpu)[0]}]"
        return pair if link < self.numbering.gpus else pair[::-1]

    def without(self, dead: Mask) -> Hops:
        """Raise UnreachableError: a GPU has one link each way."""
        raise apart(*self.ends(int(np.flatnonzero(dead)[0])))


def inner_ranges(cluster: NodeSpecs) -> list[LinkRange]:
    """Return the links inside nodes, each type's at its rate: those of a node follow those of the node before."""
    each = zip(*(_grid(replace(pool, pools=())).ranges() for pool in cluster.parts), strict=True)
    return [
        LinkRange(one[0].name, *(np.concatenate(arrays) for arrays in list(zip(*one, strict=True))[1:])) for one in each
    ]


def dims(cluster: NodeSpecs) -> tuple[Dim, ...]:
    """Return how the GPUs of a node are joined."""
    scale_up, gpus = cluster.node.scale_up, cluster.node.gpus.count
    delay = PCIE_LATENCY if scale_up.kind == "none" else NVLINK_LATENCY
    delay = delay if scale_up.latency is None else scale_up.latency
    if scale_up.kind == "none":
        return (Dim("pcie", "switch", gpus, cluster.node.host.usable, delay / 2, 1, "pcie"),)
    link = (scale_up.link or 0.0) * scale_up.payload_efficiency
    if scale_up.kind not in _WIRED:
        links = scale_up.links_per_gpu
        return (Dim("nvlink", "switch", gpus, links * link, delay / 2, links, scale_up.kind),)
    links = scale_up.links_per_peer
    if scale_up.kind == "mesh":
        return (Dim("mesh", "mesh", gpus, links * link, delay, links),)
    shape = shape_of(scale_up, gpus)
    called = ["ring"] if scale_up.kind == "ring" else [f"ring-{axis}" for axis in names(len(shape))]
    return tuple(Dim(n, "ring", size, links * link, delay, links) for n, size in zip(called, shape, strict=True))


def shape_of(scale_up: ScaleUp, gpus: int) -> tuple[int, ...]:
    """Return the extents of the wires between GPUs: a ring is a torus of one dimension."""
    return scale_up.shape or (gpus,)


def check(cluster: NodeSpecs) -> ConfigError | None:
    """Return the error in the links inside a node, if any."""
    scale_up, gpus = cluster.node.scale_up, cluster.node.gpus.count
    if scale_up.kind == "none":
        return None
    if scale_up.link is None:
        return cluster.error(
            (*cluster.at, "scale_up"), "scale_up.link is missing; add the rate of one link, like 25GB/s"
        )
    key, message = (
        _misplaced(scale_up) or _misshapen(scale_up, gpus) or _excessive(scale_up, gpus, cluster.nodes) or ("", "")
    )
    return cluster.error((*cluster.at, "scale_up", key), f"scale_up.{key}: {message}") if key else None


def _misplaced(scale_up: ScaleUp) -> tuple[str, str] | None:
    kind, given = scale_up.kind, scale_up.model_fields_set
    wrong, right = ("links_per_gpu", "links_per_peer")[:: 1 if kind in _WIRED else -1]
    if wrong in given:
        return wrong, f"{kind} counts its links by {right}; write that"
    if "shape" in given and kind != "torus":
        return "shape", f"is for kind: torus, not {kind}; drop one of the two"
    return None


def _misshapen(scale_up: ScaleUp, gpus: int) -> tuple[str, str] | None:
    if scale_up.kind in _WIRED and gpus == 1:
        return "kind", f"a {scale_up.kind} of one GPU joins nothing; write none"
    if scale_up.kind == "torus" and prod(scale_up.shape or ()) != gpus:
        shape = " × ".join(map(str, scale_up.shape or ())) or "missing, which"
        return "shape", f"{shape} is not the {gpus} GPUs of a node; write extents whose product is {gpus}"
    return None


def _excessive(scale_up: ScaleUp, gpus: int, nodes: int) -> tuple[str, str] | None:
    if scale_up.kind in ("ring", "torus") and max(scale_up.shape or (gpus,)) > LONGEST:
        return "kind", f"a ring of {gpus} GPUs is too long (at most {LONGEST}); use a torus"
    links = nodes * gpus * (gpus - 1)
    if scale_up.kind == "mesh" and links > MAX_LINKS:
        return "kind", f"{links} links are too many (at most {MAX_LINKS}); use nvswitch"
    return None


def pooled(types: Sequence[NodeSpecs]) -> NodeSpecs:
    """Return the nodes of all types, one type after the other; neighbours that are equal are one type."""
    merged: list[NodeSpecs] = []
    for one in types:
        if merged and (merged[-1].node, merged[-1].gpu) == (one.node, one.gpu):
            merged[-1] = replace(merged[-1], nodes=merged[-1].nodes + one.nodes)
        else:
            merged.append(one)
    if len(merged) == 1:
        return merged[0]
    return replace(merged[0], nodes=sum(one.nodes for one in merged), pools=tuple(merged))


def check_pools(cluster: NodeSpecs) -> None:
    """Raise ConfigError where nodes of one type do not fit beside those of the first."""
    for one in cluster.pools[1:]:
        if problem := _apart(cluster.pools[0], one):
            raise problem


def _apart(first: NodeSpecs, other: NodeSpecs) -> ConfigError | None:
    """Return the reason why nodes of two types cannot form one cluster, if any."""
    if first.gpu.vendor != other.gpu.vendor:
        what = f"{other.gpu.name} beside {first.gpu.name}: no library joins GPUs of two vendors; write those of one"
        return other.error((*other.at, "gpus", "model"), f"gpus.model: {what}")
    ours, theirs = (_joined(one) for one in (first, other))
    if ours == theirs:
        return None
    if [dim[:2] for dim in ours] == [dim[:2] for dim in theirs]:
        few = f"{other.node.gpus.count} GPUs a node beside {first.node.gpus.count} of the first pool"
        wired = f"nodes joined by a {other.node.scale_up.kind} have as many; write as many, or join them by switches"
        return other.error((*other.at, "gpus", "count"), f"gpus.count: {few}; {wired}")
    what = f"{other.node.scale_up.kind} beside {first.node.scale_up.kind} of the first pool"
    return other.error((*other.at, "scale_up"), f"scale_up.kind: {what}; join the GPUs of all nodes alike")


def _joined(cluster: NodeSpecs) -> list[tuple[str, str, int]]:
    """Return the links among the GPUs of a node: a crossbar may have any size."""
    return [(dim.name, dim.kind, 0 if dim.kind == "switch" else dim.size) for dim in dims(cluster)]
