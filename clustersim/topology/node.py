"""Links inside nodes: a crossbar of NVSwitches or PCIe, or wires from GPU to GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.topology import KINDS_OF, ScaleUp
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.lattice import AXES, LONGEST, Dim, Lattice
from clustersim.topology.node_graph import PAIRED, NodeGraph, SideBySide, graph_of_lattice, graph_of_node, place_nodes
from clustersim.topology.numbering import Numbering
from clustersim.topology.specs import MAX_LINKS, LinkRange, NodeSpecs

_WIRED = KINDS_OF["links_per_peer"]


def inner_network(cluster: NodeSpecs) -> tuple[Lattice | NodeGraph | SideBySide, list[LinkRange]]:
    """Return the routes between GPUs of a node, and the ranges of links of all nodes, type after type.

    A grid's lines stay inside nodes; crossbars may differ in size; pairs, islands and different node types are graphs.
    """
    graphs = [graph_of_node(pool) for pool in cluster.parts]
    # dimensions of each type; crossbars may differ in size
    shapes = [[(dim.name, dim.kind, dim.size * (dim.kind != "switch")) for dim in dims(pool)] for pool in cluster.parts]
    if any(graphs) or any(shape != shapes[0] for shape in shapes):
        nodes_of_types = [
            graph or graph_of_lattice(_grid(replace(pool, nodes=1)), pool.node.gpus.count)
            for pool, graph in zip(cluster.parts, graphs, strict=True)
        ]
        nodes = place_nodes(nodes_of_types, [pool.nodes for pool in cluster.parts])
        return nodes, list(nodes.ranges())
    tiers = zip(*(_grid(pool).ranges() for pool in cluster.parts), strict=True)
    ranges = [LinkRange(parts[0].name, *map(np.concatenate, list(zip(*parts, strict=True))[1:])) for parts in tiers]
    if len({pool.node.gpus.count for pool in cluster.parts}) == 1:
        return _grid(cluster), ranges
    wide = dims(cluster)[0]._replace(size=cluster.gpus)
    return _Crossbars((wide,), cluster.gpus, "gpu", numbering=cluster.numbering()), ranges


def _grid(cluster: NodeSpecs) -> Lattice:
    """Return the links inside all nodes as a lattice of GPUs."""
    return Lattice(dims(cluster), cluster.gpus, "gpu")  # rates are those of the first type


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossbars(Lattice):
    """A crossbar in each node, with different numbers of GPUs per node: all links belong to one wide crossbar."""

    numbering: Numbering
    """Node of each GPU."""

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return (GPU, crossbar of its node) of each cable; cable i is that of GPU i."""
        return cable, self.positions + self.numbering.node_of(cable)

    def name(self, vertex: int) -> str:
        """Return the name of a vertex: GPUs first, then the crossbars, one per node."""
        switch = vertex - self.positions
        return f"gpu[{vertex}]" if switch < 0 else f"{self.dims[0].switch}[{switch}]"


def dims(cluster: NodeSpecs) -> tuple[Dim, ...]:
    """Return the grid dimensions that connect the GPUs of a node; a switch or PCIe is one dimension with a crossbar."""
    scale_up, gpus = cluster.node.scale_up, cluster.node.gpus.count
    delay = PCIE_LATENCY if scale_up.kind == "none" else NVLINK_LATENCY
    delay = delay if scale_up.latency is None else scale_up.latency
    if scale_up.kind in ("none", "pairs"):
        return (Dim("pcie", "switch", gpus, cluster.node.host.usable, delay / 2, 1, "pcie"),)
    link = (scale_up.link or 0.0) * scale_up.payload_efficiency
    if scale_up.kind not in _WIRED:
        links = scale_up.links_per_gpu
        return (Dim("nvlink", "switch", gpus, links * link, delay / 2, links, scale_up.kind),)
    links = scale_up.links_per_peer
    if scale_up.kind == "mesh":
        return (Dim("mesh", "mesh", gpus, links * link, delay, links),)
    shape = scale_up.shape or (gpus,)  # a ring is a torus of one dimension
    names = ["ring"] if scale_up.kind == "ring" else [f"ring-{axis}" for axis in AXES[: len(shape)]]
    return tuple(Dim(n, "ring", size, links * link, delay, links) for n, size in zip(names, shape, strict=True))


def check(cluster: NodeSpecs) -> None:
    """Raise ConfigError if the links inside a node do not fit its GPUs."""
    scale_up, gpus, at = cluster.node.scale_up, cluster.node.gpus.count, (*cluster.at, "scale_up")
    if scale_up.kind == "none":
        return
    if scale_up.link is None and not (scale_up.pairs and all(rate for *_, rate in scale_up.pairs)):
        raise cluster.error(at, "scale_up.link is missing; add the rate of one link, like 25GB/s")
    for problems in (_misplaced(scale_up), _misshapen(scale_up, gpus), _mispaired(scale_up, gpus), _excessive(cluster)):
        for key, message in problems:
            raise cluster.error((*at, key), f"scale_up.{key}: {message}")


def _misplaced(scale_up: ScaleUp) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for each key that does not belong to this kind of scale-up network."""
    kind, counts = scale_up.kind, ("links_per_gpu", "links_per_peer", "pairs")
    right = next(key for key in counts if kind in KINDS_OF[key])
    for wrong in counts:
        if wrong in scale_up.model_fields_set and wrong != right:
            yield wrong, f"{kind} counts its links by {right}; write that"
    for key in ("shape", "island"):
        if getattr(scale_up, key) and kind not in KINDS_OF[key]:
            yield key, f"is for kind: {' or '.join(sorted(KINDS_OF[key]))}, not {kind}; drop one of the two"


def _misshapen(scale_up: ScaleUp, gpus: int) -> Iterator[tuple[str, str]]:
    """Yield (key of scale_up, problem and remedy) where links do not fit a node's number of GPUs."""
    if scale_up.kind in _WIRED and gpus == 1:
        yield "kind", f"a {scale_up.kind} of one GPU joins nothing; write none"
    if scale_up.island and gpus % scale_up.island:
        yield "island", f"{scale_up.island} does not divide the {gpus} GPUs of a node; write a divisor of it"
    if scale_up.island and gpus > PAIRED:
        yield "island", f"nodes of {gpus} GPUs are too large for islands (at most {PAIRED}); write smaller nodes"
    if scale_up.kind == "torus" and prod(scale_up.shape or ()) != gpus:
        shape = " × ".join(map(str, scale_up.shape or ())) or "missing, which"
        yield "shape", f"{shape} is not the {gpus} GPUs of a node; write extents whose product is {gpus}"


def _mispaired(scale_up: ScaleUp, gpus: int) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for each error in the list of GPU pairs that links join."""
    if scale_up.kind != "pairs":
        return
    if not scale_up.pairs:
        yield "pairs", "is missing; write [GPU, GPU, links] of each pair that links join, or kind: none"
    if gpus > PAIRED:
        yield "pairs", f"nodes of {gpus} GPUs are too large to be written pair by pair (at most {PAIRED}); use nvswitch"
    for i, (a, b, _, _) in enumerate(scale_up.pairs):
        if b >= gpus:
            yield "pairs", f"[{a}, {b}] names GPU {b} of a node of {gpus}; write 0 to {gpus - 1}"
        if any(pair[:2] == (a, b) for pair in scale_up.pairs[:i]):
            yield "pairs", f"[{a}, {b}] stands there twice; write it once, with all its links"


def _excessive(cluster: NodeSpecs) -> Iterator[tuple[str, str]]:
    """Yield (key of scale_up, problem and remedy) where rings or meshes have too many links."""
    scale_up, gpus = cluster.node.scale_up, cluster.node.gpus.count
    if scale_up.kind in ("ring", "torus") and max(scale_up.shape or (gpus,)) > LONGEST:
        yield "kind", f"a ring of {gpus} GPUs is too long (at most {LONGEST}); use a torus"
    links = cluster.nodes * gpus * (gpus - 1)
    if scale_up.kind == "mesh" and links > MAX_LINKS:
        yield "kind", f"{links} links are too many (at most {MAX_LINKS}); use nvswitch"


def merge_types(types: Sequence[NodeSpecs]) -> NodeSpecs:
    """Return the nodes of all types as one cluster, one type after the other; equal adjacent types are merged."""
    merged: list[NodeSpecs] = []
    for pool in types:
        if merged and (merged[-1].node, merged[-1].gpu) == (pool.node, pool.gpu):
            merged[-1] = replace(merged[-1], nodes=merged[-1].nodes + pool.nodes)
        else:
            merged.append(pool)
    if len(merged) == 1:
        return merged[0]
    return replace(merged[0], nodes=sum(pool.nodes for pool in merged), pools=tuple(merged))


def check_pools(cluster: NodeSpecs) -> None:
    """Raise ConfigError if a cluster mixes GPUs of two vendors."""
    for pool in cluster.pools[1:]:
        if pool.gpu.vendor != cluster.gpu.vendor:
            both = f"{pool.gpu.name} beside {cluster.gpu.name}"
            what = f"{both}: no library joins GPUs of two vendors; write those of one"
            raise pool.error((*pool.at, "gpus", "model"), f"gpus.model: {what}")
