"""The shape of a communicator: its ranks, nodes and NICs, and the latency of its routes beyond NCCL's figures.

NCCL knows a network by the latency that its NICs declare. Its figures contain one leaf switch and one NVSwitch. The latency of
more switches and longer cables is added to the time that NCCL expects, and does not affect its choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct, distinct_rows
from clustersim.cache import fingerprint
from clustersim.collectives.model import Group, checked_shares
from clustersim.collectives.shared_steps import node_trees
from clustersim.errors import InputError
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.model import Rings, Topology

_DIGITS = 9  # nanoseconds: communicators on nodes with the same layout are one shape


class ExtraLatency(NamedTuple):
    """Latency of routes beyond that in NCCL's own figures, in seconds."""

    inside: float = 0.0
    """Extra seconds of a hop inside a node."""
    ring: float = 0.0
    """Mean extra seconds of a ring's hops between nodes."""
    tree: float = 0.0
    """Extra seconds of the slowest route from the root of the trees to a leaf."""
    slowest: float = 0.0
    """Extra seconds of the slowest hop between nodes."""


def _extra_latencies(topology: Topology, ranks: Ints, starts: Sequence[Ints]) -> Floats:
    """Return the four values of ExtraLatency for each communicator in `ranks` (communicators, n), as (communicators, 4).

    starts: indices of each node's first rank.
    """
    extra = np.zeros((len(ranks), len(ExtraLatency._fields)))
    extra[:, 0] = _inside(topology, ranks)
    for nodes in {len(starts_of_comm) for starts_of_comm in starts} - {1}:
        rows = [row for row, starts_of_comm in enumerate(starts) if len(starts_of_comm) == nodes]
        extra[rows, 1:] = _between(topology, np.stack([ranks[row, starts[row]] for row in rows]))
    return np.round(extra, _DIGITS)


def _inside(topology: Topology, ranks: Ints) -> list[float]:
    """Return for each communicator the extra seconds of its first hop inside a node, 0 if it has none."""
    extra = np.zeros(len(ranks))
    node = topology.numbering.node_of(ranks)
    same_node = node[:, 1:] == node[:, :-1]
    with_neighbour = np.flatnonzero(same_node.any(axis=1))
    if len(with_neighbour):
        position = same_node[with_neighbour].argmax(axis=1)
        included = PCIE_LATENCY if topology.node.scale_up == "none" else NVLINK_LATENCY
        extra[with_neighbour] = (
            topology.route(ranks[with_neighbour, position], ranks[with_neighbour, position + 1]).latency - included
        )
    seconds: list[float] = np.maximum(extra, 0.0).tolist()
    return seconds


def _between(topology: Topology, first: Ints) -> Floats:
    """Return `ring`, `tree` and `slowest` of ExtraLatency (comms, 3). `first` (comms, nodes) is the first GPU of each node."""
    nodes = first.shape[1]
    trees = node_trees(nodes)
    sources = [first, np.repeat(first[:, :1], nodes - 1, axis=1), *(first[:, parent[1:]] for parent, _, _ in trees)]
    targets = [np.roll(first, -1, axis=1), *(first[:, 1:] for _ in sources[1:])]
    source, target = (np.concatenate(parts, axis=1) for parts in (sources, targets))
    hop = np.maximum(topology.route(source.ravel(), target.ravel()).latency - topology.node.net_latency, 0.0)
    ring, root, *down = np.split(hop.reshape(source.shape), np.cumsum([nodes] + [nodes - 1] * len(trees)), axis=1)
    slowest = np.maximum(ring.max(axis=1), root.max(axis=1))
    tree = np.max([_deepest(parent, hops) for (parent, _, _), hops in zip(trees, down, strict=True)], axis=0)
    return np.stack([ring.mean(axis=1), tree, slowest], axis=1)


def _deepest(parent: Ints, hops: Floats) -> Floats:
    """Return the extra seconds on the slowest route down a tree, for each communicator (communicators,).

    `parent` is that of `node_trees`. `hops` (communicators, nodes - 1) is the extra seconds of the hop from the parent to each
    node except the root.
    """
    extra = np.concatenate((np.zeros((len(hops), 1)), hops), axis=1)
    while parent.any():  # each round doubles the length of the part of its route that a node has summed
        extra, parent = extra + extra[:, parent], parent[parent]
    longest: Floats = extra.max(axis=1)
    return longest


class SkewedLoads(NamedTuple):
    """Largest loads of a dispatch with uneven experts, per byte that one rank sends. A combine has the same loads backwards."""

    row_share: float
    """Share of all rows that go to the GPU with most rows."""
    inside: float
    """Largest number of bytes that a GPU receives from its own node, per byte that one rank sends."""
    nic: float
    """Largest number of bytes that a NIC receives from other nodes, per byte that one rank sends."""


class CommunicatorShape(NamedTuple):
    """Everything about a communicator that its collectives' times depend on. Equal shapes have equal times."""

    nodes: int
    """Number of nodes."""
    ranks: int
    """Number of ranks."""
    per_node: int
    """Number of ranks of a node; of the largest node if nodes differ."""
    nics: int
    """Number of NICs used by the ranks of the node that has the fewest; 0 if no NIC is needed."""
    even: bool = True
    """Whether every node has the same number of ranks."""
    busiest: SkewedLoads | None = None
    """Largest loads of an all-to-all if some GPUs get more rows than others; None if all GPUs get equally many."""
    extra_latency: ExtraLatency = ExtraLatency()
    """Latency of the communicator's routes beyond that in NCCL's figures."""
    types: tuple[int, ...] = ()
    """Types of the communicator's nodes, as indices into `Topology.kinds`, if the cluster has several types."""
    sizes: tuple[int, ...] = ()
    """Number of ranks of each node, if nodes differ; empty if all have `per_node`."""
    inside_nodes: bool = False
    """Whether all messages stay inside nodes, although the communicator has several nodes."""
    rings: Rings | None = None
    """Links between the GPUs of one node, if they join only some pairs; None: the default of the node."""

    @property
    def group(self) -> Group:
        """Return the Group with levels (ranks per node, nodes), or (1, ranks) with `sizes` if nodes differ in size."""
        if not self.even:
            return Group(self.ranks, (1, self.ranks), sizes=self.sizes)
        return Group(self.ranks, (self.per_node, self.nodes), rings=self.rings.orders if self.rings else ())


def ordered(ranks: Ints) -> Ints:
    """Return the GPUs of communicators (…, n) in ascending order, and so by node, as NCCL joins them."""
    return np.sort(ranks, axis=-1)


def shapes(
    topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()
) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes of communicators of equal size, and the index of each communicator's shape (groups,).

    `ranks` (groups, n) are GPUs sorted by node. shares: share of all rows for each rank's experts, empty if equal. Communicators
    with equal layout get the larger route latencies of the first and the last of them. Raises InputError for unknown or repeated
    GPUs.
    """
    node, local = topology.numbering.split(ranks)
    types = topology.kind_of(ranks) if topology.pools else ranks[:, :0]
    first, which = distinct_rows(np.concatenate((node - node[:, :1], local, types), axis=1))
    last = np.zeros(len(first), np.int64)
    last[which] = np.arange(len(ranks))
    layouts = [layout(topology, row, shares) for row in _checked(topology, ranks[first])]
    starts = [first_ranks for _, first_ranks in layouts]
    extra = _extra_latencies(topology, np.concatenate((ranks[first], ranks[last])), starts + starts)
    slower = np.maximum(*np.split(extra, 2)).tolist()
    complete = [
        layout_shape._replace(extra_latency=ExtraLatency(*seconds))
        for (layout_shape, _), seconds in zip(layouts, slower, strict=True)
    ]
    return different(complete, which)


def different(candidates: Sequence[CommunicatorShape], indices: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes among `candidates`, and an index into them for each of `indices`, indices into `candidates`."""
    distinct_shapes = tuple(dict.fromkeys(candidates))
    return distinct_shapes, np.array([distinct_shapes.index(candidate) for candidate in candidates])[indices]


def pair_shapes(topology: Topology, pairs: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes of communicators of two GPUs `pairs` (pairs, 2), and the index of each pair's shape (pairs,).

    Each pair is sorted by node, and has the extra latency of its own route. Raises InputError for unknown or repeated GPUs.
    """
    by_layout, layout_of = shapes(topology, pairs)
    inside, across = np.array(_inside(topology, pairs)), np.zeros(len(pairs))
    between_nodes = np.flatnonzero(np.array([pair_shape.nodes > 1 for pair_shape in by_layout])[layout_of])
    if len(between_nodes):
        across[between_nodes] = _between(topology, pairs[between_nodes])[:, 2]
    extra = np.round(np.stack([inside, across], axis=1), _DIGITS)
    first, shape_of = distinct_rows(np.column_stack([layout_of, np.round(extra * 10**_DIGITS).astype(np.int64)]))
    rows = zip(layout_of[first].tolist(), extra[first].tolist(), strict=True)
    return different(
        [by_layout[i]._replace(extra_latency=ExtraLatency(inside_, slowest=across_)) for i, (inside_, across_) in rows],
        shape_of,
    )


def shape(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> CommunicatorShape:
    """Return the shape of the communicator of GPUs `ranks` (n,), sorted by node.

    shares: share of all rows for each rank's experts, empty if equal. Raises InputError if `ranks` is empty, has an unknown GPU,
    or has a GPU twice.
    """
    ranks = np.asarray(ranks, np.int64)
    question = ("shape", fingerprint(ranks), shares)
    return topology.cache.once(question, lambda: shapes(topology, _checked(topology, ranks[None]), shares)[0][0])


def _checked(topology: Topology, ranks: Ints) -> Ints:
    """Return `ranks` (communicators, n) itself. Raises InputError for none, unknown or repeated GPUs."""
    if not ranks.shape[1]:
        raise InputError("a communicator needs one GPU or more; name some")
    if ranks.min() < 0 or ranks.max() >= topology.gpus:
        raise InputError(
            f"GPU {ranks[(ranks < 0) | (ranks >= topology.gpus)][0]} is not among 0 to {topology.gpus - 1}"
        )
    if (np.diff(np.sort(ranks)) == 0).any():
        raise InputError("a communicator has one GPU twice; name each once")
    return ranks


def layout(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> tuple[CommunicatorShape, Ints]:
    """Return the shape of a communicator without its extra latency, and the index in `ranks` (n,) of each node's first rank.

    shares: share of all rows for each rank's experts, empty if equal. Raises InputError for invalid `shares`, but does not check
    the GPUs. If all nodes are of one type, `ranks` may be on more nodes than the cluster has.
    """
    node, local = topology.numbering.split(ranks)
    distinct_nodes = distinct(node)
    node_index, nodes = distinct_nodes.searchsorted(node), len(distinct_nodes)
    starts, counts = np.empty(nodes, np.int64), np.bincount(node_index)
    starts[node_index[::-1]] = np.arange(len(node))[::-1]  # the last value written to an entry stays: the first rank
    largest = int(counts.max())
    even = bool((counts == largest).all()) and bool((np.diff(np.sort(starts)) == largest).all())
    nic = topology.numbering.nic[ranks % topology.gpus]
    width = nic.max() + 1
    port = node_index * width + nic
    nics = int(np.bincount(distinct(port) // width).min()) if nodes > 1 else 0
    shares = checked_shares(shares, len(ranks))
    busiest = _busiest(np.array(shares), counts[node_index], port) if shares else None
    sizes = () if even else tuple(counts.tolist())
    types = types_of(topology, ranks)
    rings = topology.facts(types).rings(tuple(local[:largest].tolist())) if even else None
    return CommunicatorShape(
        nodes, len(ranks), largest, nics, even, busiest, types=types, sizes=sizes, rings=rings
    ), starts


def types_of(topology: Topology, ranks: Ints) -> tuple[int, ...]:
    """Return the distinct node types of GPUs, as indices into `Topology.kinds`; empty if the cluster has one type."""
    return tuple(distinct(topology.kind_of(ranks)).tolist()) if topology.pools else ()


def _busiest(shares: Floats, on_node: Ints, port: Ints) -> SkewedLoads:
    """Return the largest loads of a dispatch with uneven experts, in bytes per byte that one rank sends.

    shares: share of all rows for each rank's experts (n,), with sum 1. on_node: number of ranks on the node of each rank (n,).
    port: index of the NIC of each rank (n,).

    Receivers set the time: on nodes with equally many GPUs, no rank sends more than the busiest receiver gets. For other layouts
    the links bound the group.
    """
    coming = np.bincount(port, (len(shares) - on_node) * shares)
    return SkewedLoads(float(shares.max()), float(((on_node - 1) * shares).max()), float(coming.max()))
