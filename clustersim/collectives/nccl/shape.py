"""The shape of a communicator: its ranks, nodes and NICs, and the latency of its routes beyond NCCL's figures.

NCCL knows a network by the latency that its NICs declare. Its figures contain one leaf switch and one NVSwitch. The latency of
more switches and longer cables is added to the time that NCCL expects, and does not affect its choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct, distinct_rows
from clustersim.cache import fingerprint
from clustersim.collectives.model import Group, checked_shares
from clustersim.collectives.tree_steps import node_trees
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
    most: float = 0.0
    """Extra seconds of the slowest hop between nodes."""


def _extra_latencies(topology: Topology, ranks: Ints, starts: Sequence[Ints]) -> list[ExtraLatency]:
    """Return the extra latency of each communicator in `ranks` (communicators, n), routed together if nodes are as many."""
    inside = _inside(topology, ranks)
    found = [ExtraLatency(round(x, _DIGITS)) for x in inside]
    for nodes in {len(own) for own in starts} - {1}:
        rows = [row for row, own in enumerate(starts) if len(own) == nodes]
        first = np.stack([ranks[row, starts[row]] for row in rows])
        for row, (ring, tree, most) in zip(rows, _between(topology, first).tolist(), strict=True):
            found[row] = ExtraLatency(*map(round, (inside[row], ring, tree, most), repeat(_DIGITS)))
    return found


def _inside(topology: Topology, ranks: Ints) -> list[float]:
    """Return for each communicator the extra seconds of its first hop inside a node, 0 if it has none."""
    longer = np.zeros(len(ranks))
    node = topology.numbering.node_of(ranks)
    same_node = node[:, 1:] == node[:, :-1]
    with_neighbour = np.flatnonzero(same_node.any(axis=1))
    if len(with_neighbour):
        at = same_node[with_neighbour].argmax(axis=1)
        own = PCIE_LATENCY if topology.node.scale_up == "none" else NVLINK_LATENCY
        longer[with_neighbour] = topology.route(ranks[with_neighbour, at], ranks[with_neighbour, at + 1]).latency - own
    found: list[float] = np.maximum(longer, 0.0).tolist()
    return found


def _between(topology: Topology, first: Ints) -> Floats:
    """Return the columns `ring`, `tree`, `most` of ExtraLatency. `first` (communicators, nodes) are the first GPUs of nodes."""
    nodes = first.shape[1]
    trees = node_trees(nodes)
    sources = [first, np.repeat(first[:, :1], nodes - 1, axis=1), *(first[:, parent[1:]] for parent, _, _ in trees)]
    targets = [np.roll(first, -1, axis=1), *(first[:, 1:] for _ in sources[1:])]
    source, target = (np.concatenate(parts, axis=1) for parts in (sources, targets))
    hop = np.maximum(topology.route(source.ravel(), target.ravel()).latency - topology.node.net_latency, 0.0)
    ring, root, *down = np.split(hop.reshape(source.shape), np.cumsum([nodes] + [nodes - 1] * len(trees)), axis=1)
    most = np.maximum(ring.max(axis=1), root.max(axis=1))
    tree = np.max([_deepest(*one, hops) for one, hops in zip(trees, down, strict=True)], axis=0)
    return np.stack([ring.mean(axis=1), tree, most], axis=1)


def _deepest(parent: Ints, depth: Ints, deepest: int, hops: Floats) -> Floats:
    """Return the seconds on the slowest route down a tree; `hops` (…, nodes - 1) are the seconds into each node but the root."""
    extra = np.zeros((len(hops), len(parent)))
    for level in range(1, deepest + 1):
        here = np.flatnonzero(depth == level)
        extra[:, here] = extra[:, parent[here]] + hops[:, here - 1]
    longest: Floats = extra.max(axis=1)
    return longest


class SkewedLoads(NamedTuple):
    """Largest loads of a dispatch with uneven experts, per byte that one rank sends. A combine has the same loads backwards."""

    most: float
    """Largest share of the rows of one GPU."""
    inside: float
    """Largest number of bytes that a GPU receives from its own node."""
    nic: float
    """Largest number of bytes that a NIC receives from other nodes."""


class CommunicatorShape(NamedTuple):
    """Everything about a communicator that its collectives' times depend on. Equal shapes have equal times."""

    nodes: int
    ranks: int
    per_node: int
    """Ranks of a node."""
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
    beside: bool = False
    """Whether all messages stay inside nodes, although the communicator has several nodes."""
    joined: Rings | None = None
    """Links between the GPUs of one node, if they join only some pairs; None: the default of the node."""

    @property
    def group(self) -> Group:
        """Return the Group with `levels` from the node outwards, or one level if nodes differ in size."""
        if not self.even:
            return Group(self.ranks, (1, self.ranks), sizes=self.sizes)
        return Group(self.ranks, (self.per_node, self.nodes), rings=self.joined.orders if self.joined else ())


def ordered(ranks: Ints) -> Ints:
    """Return the GPUs of communicators, sorted by node as NCCL joins them (…, n)."""
    return np.sort(ranks, axis=-1)


def shapes(
    topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()
) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes of communicators of equal size, and the index of each communicator's shape (groups,).

    `ranks` (groups, n) are GPUs sorted by node; `shares`: each rank's part of the rows. Among communicators with equal layout,
    the first and the last one set the route latencies of all. Raises InputError for unknown or repeated GPUs.
    """
    node, local = topology.numbering.split(ranks)
    types = topology.kind_of(ranks) if topology.pools else ranks[:, :0]
    first, which = distinct_rows(np.concatenate((node - node[:, :1], local, types), axis=1))
    last = np.zeros(len(first), np.int64)
    last[which] = np.arange(len(ranks))
    found = [layout(topology, row, shares) for row in _checked(topology, ranks[first])]
    starts = [own for _, own in found]
    extra = _extra_latencies(topology, np.concatenate((ranks[first], ranks[last])), starts + starts)
    of_first, of_last = extra[: len(first)], extra[len(first) :]
    whole = [
        one._replace(extra_latency=ExtraLatency(*map(max, a, b)))
        for (one, _), a, b in zip(found, of_first, of_last, strict=True)
    ]
    return different(whole, which)


def different(found: Sequence[CommunicatorShape], which: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes of `found`, and the index into them for each entry of `which`, itself an index into `found`."""
    kinds = tuple(dict.fromkeys(found))
    return kinds, np.array([kinds.index(one) for one in found])[which]


def pair_shapes(topology: Topology, pairs: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct shapes of communicators of two GPUs `pairs` (pairs, 2), and the index of each pair's shape (pairs,).

    Each pair is sorted by node, and has the extra latency of its own route. Raises InputError for unknown or repeated GPUs.
    """
    found, which = shapes(topology, pairs)
    inside, across = np.array(_inside(topology, pairs)), np.zeros(len(pairs))
    apart = np.flatnonzero(np.array([one.nodes > 1 for one in found])[which])
    if len(apart):
        across[apart] = _between(topology, pairs[apart])[:, 2]
    extra = np.round(np.stack([inside, across], axis=1), _DIGITS)
    first, of = distinct_rows(np.column_stack([which, np.round(extra * 10**_DIGITS).astype(np.int64)]))
    rows = zip(which[first].tolist(), extra[first].tolist(), strict=True)
    return different(
        [found[kind]._replace(extra_latency=ExtraLatency(near, most=far)) for kind, (near, far) in rows], of
    )


def shape(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> CommunicatorShape:
    """Return the shape of the communicator of GPUs `ranks` (n,), sorted by node. shares: each rank's part of the rows.

    Raises InputError if `ranks` is empty, has an unknown GPU, or has a GPU twice.
    """
    ranks = np.asarray(ranks, np.int64)

    def found() -> CommunicatorShape:
        one, starts = layout(topology, _checked(topology, ranks[None])[0], shares)
        return one._replace(extra_latency=_extra_latencies(topology, ranks[None], [starts])[0])

    return topology.cache.once(("shape", fingerprint(ranks), shares), found)


def _checked(topology: Topology, ranks: Ints) -> Ints:
    """Return the GPUs of communicators (communicators, n). Raises InputError for none, unknown or repeated GPUs."""
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
    """Return the shape of a communicator without its extra latency, and the index of each node's first rank. Inputs go unchecked.

    If all nodes are of one type, `ranks` may be on more nodes than the cluster has.
    """
    node, local = topology.numbering.split(ranks)
    own = distinct(node)
    at, nodes = own.searchsorted(node), len(own)
    starts, counts = np.empty(nodes, np.int64), np.bincount(at)
    starts[at[::-1]] = np.arange(len(node))[::-1]  # of those that are written to one place the last one stays
    most = int(counts.max())
    even = bool((counts == most).all()) and bool((np.diff(np.sort(starts)) == most).all())
    nic = topology.numbering.nic[ranks % topology.gpus]
    width = nic.max() + 1
    port = at * width + nic
    nics = int(np.bincount(distinct(port) // width).min()) if nodes > 1 else 0
    shares = checked_shares(shares, len(ranks))
    busiest = _busiest(np.array(shares), counts[at], port) if shares else None
    sizes = () if even else tuple(counts.tolist())
    types = types_of(topology, ranks)
    joined = topology.facts(types).rings(tuple(local[:most].tolist())) if even else None
    return CommunicatorShape(
        nodes, len(ranks), most, nics, even, busiest, types=types, sizes=sizes, joined=joined
    ), starts


def types_of(topology: Topology, ranks: Ints) -> tuple[int, ...]:
    """Return the node types of GPUs, as indices into `Topology.kinds`; none if the cluster has one type."""
    return tuple(distinct(topology.kind_of(ranks)).tolist()) if topology.pools else ()


def _busiest(shares: Floats, on_node: Ints, port: Ints) -> SkewedLoads:
    """Return the largest loads if rows are uneven. `on_node` is the number of members on each GPU's node, `port` the GPU's NIC.

    Receivers set the time: on nodes with equally many GPUs, no rank sends more than the busiest receiver gets. For other layouts
    the links bound the group.
    """
    coming = np.bincount(port, (len(shares) - on_node) * shares)
    return SkewedLoads(float(shares.max()), float(((on_node - 1) * shares).max()), float(coming.max()))
