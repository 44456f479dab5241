"""How much longer the routes of a communicator are than those that NCCL's figures contain: one leaf, and one NVSwitch.

NCCL knows a network by the latency that its NICs declare. What a route has beyond that, more switches and longer cables, comes on
top of what NCCL expects, and it does not choose by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct, distinct_rows
from clustersim.cache import fingerprint
from clustersim.collectives.model import Group
from clustersim.collectives.skew import checked
from clustersim.collectives.tree_steps import node_trees
from clustersim.errors import InputError
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.model import Topology

_DIGITS = 9  # nanoseconds: communicators on nodes of one layout are one shape


class ExtraLatency(NamedTuple):
    """Seconds of routes beyond those that NCCL's own figures contain."""

    inside: float = 0.0
    """Of a hop inside a node."""
    ring: float = 0.0
    """Of a ring's hop from node to node, the mean of all."""
    tree: float = 0.0
    """Of the longest route from the root of the trees to a leaf."""
    most: float = 0.0
    """Of the longest hop."""


def extra_latency(topology: Topology, ranks: Ints, starts: Ints) -> ExtraLatency:
    """Return how much longer the routes of a communicator are than NCCL knows.

    ranks: GPUs (n,) node by node, of which `starts` begin a node.
    """
    question = ("extra latency", fingerprint(ranks), fingerprint(starts))
    return topology.cache.once(question, lambda: _extra_latencies(topology, ranks[None], [starts])[0])


def _extra_latencies(topology: Topology, ranks: Ints, starts: Sequence[Ints]) -> list[ExtraLatency]:
    """Return the same of many communicators (communicators, n); those on equally many nodes are routed in one go."""
    inside = _inside(topology, ranks)
    found = [ExtraLatency(round(x, _DIGITS)) for x in inside]
    for nodes in {len(own) for own in starts} - {1}:
        rows = [row for row, own in enumerate(starts) if len(own) == nodes]
        first = np.stack([ranks[row, starts[row]] for row in rows])
        for row, (ring, tree, most) in zip(rows, _between(topology, first).tolist(), strict=True):
            found[row] = ExtraLatency(*(round(x, _DIGITS) for x in (inside[row], ring, tree, most)))
    return found


def _inside(topology: Topology, ranks: Ints) -> list[float]:
    """Return the seconds beyond NCCL's of the first hop inside a node of each communicator, 0 where there is none."""
    longer = np.zeros(len(ranks))
    node = topology.numbering.node_of(ranks)
    beside = node[:, 1:] == node[:, :-1]
    with_neighbour = np.flatnonzero(beside.any(axis=1))
    if len(with_neighbour):
        at = beside[with_neighbour].argmax(axis=1)
        own = PCIE_LATENCY if topology.node.scale_up == "none" else NVLINK_LATENCY
        longer[with_neighbour] = topology.route(ranks[with_neighbour, at], ranks[with_neighbour, at + 1]).latency - own
    found: list[float] = np.maximum(longer, 0.0).tolist()
    return found


def _between(topology: Topology, first: Ints) -> Floats:
    """Return `ring`, `tree` and `most` of ExtraLatency; nodes begin at GPUs `first` (communicators, nodes)."""
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
    """Return the seconds on the longest route down a tree over nodes; `hops` (…, nodes - 1) lead to each node but the root."""
    extra = np.zeros((len(hops), len(parent)))
    for level in range(1, deepest + 1):
        here = np.flatnonzero(depth == level)
        extra[:, here] = extra[:, parent[here]] + hops[:, here - 1]
    longest: Floats = extra.max(axis=1)
    return longest


# What NCCL's tuner sees of a communicator: how many ranks on how many nodes, and which NICs they own.


class SkewedLoads(NamedTuple):
    """Where a dispatch meets its experts, for each byte that one rank sends; a combine brings the same bytes back."""

    most: float
    """The largest share of one GPU."""
    inside: float
    """The most that a GPU receives from its own node."""
    nic: float
    """The most that a NIC receives from other nodes."""


class Shape(NamedTuple):
    """A communicator."""

    nodes: int
    ranks: int
    per_node: int
    """Ranks of a node."""
    nics: int
    """NICs that the ranks of a node own, on the node with the fewest; 0: none is needed."""
    even: bool = True
    """Whether every node has as many ranks."""
    aligned: bool = True
    """Whether position i of every node is the same GPU there, so that rings and trees between nodes stay on a rail."""
    busiest: SkewedLoads | None = None
    """The largest loads of an all-to-all when some GPUs get more rows than others; None: all get as many."""
    extra_latency: ExtraLatency = ExtraLatency()
    """How much longer its routes are than those that NCCL's figures contain."""
    types: tuple[int, ...] = ()
    """The types of its nodes, by their place in `Topology.kinds`, where the cluster has several."""
    sizes: tuple[int, ...] = ()
    """Ranks of each node, where these differ."""
    beside: bool = False
    """Whether a message in it stays in a node, though it has several."""

    @property
    def group(self) -> Group:
        """The group of the collectives' files, `levels` from the node outwards; one level when nodes are uneven."""
        if not self.even:
            return Group(self.ranks, (1, self.ranks), sizes=self.sizes)
        return Group(self.ranks, (self.per_node, self.nodes))


def ordered(ranks: Ints) -> Ints:
    """Return the GPUs of communicators (…, n) node by node, as NCCL joins them whatever their ranks."""
    return np.sort(ranks, axis=-1)


def shapes(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> tuple[tuple[Shape, ...], Ints]:
    """Return the different shapes of many communicators of equal size, and which of them each is.

    ranks: GPUs (groups, n), `ordered`. shares: as in Group. Of communicators on nodes of one layout, the first and
    the last say how long their routes are. Raises InputError as `shape` does.
    """
    node, local = topology.numbering.split(ranks)
    types = topology.kind_of(ranks) if topology.pools else ranks[:, :0]
    first, which = distinct_rows(np.concatenate((node - node[:, :1], local, types), axis=1))
    last = np.zeros(len(first), np.int64)
    last[which] = np.arange(len(ranks))
    found = [_shape(topology, row, shares) for row in ranks[first]]
    others = [np.flatnonzero(np.diff(row, prepend=-1)) for row in node[last]]
    extra = _extra_latencies(
        topology, np.concatenate((ranks[first], ranks[last])), [starts for _, starts in found] + others
    )
    of_first, of_last = extra[: len(first)], extra[len(first) :]
    whole = [
        one._replace(extra_latency=ExtraLatency(*map(max, a, b)))
        for (one, _), a, b in zip(found, of_first, of_last, strict=True)
    ]
    return different(whole, which)


def different(found: Sequence[Shape], which: Ints) -> tuple[tuple[Shape, ...], Ints]:
    """Return each shape once, and which of them each communicator is that was one of `found`."""
    kinds = tuple(dict.fromkeys(found))
    return kinds, np.array([kinds.index(one) for one in found])[which]


def pair_shapes(topology: Topology, pairs: Ints) -> tuple[tuple[Shape, ...], Ints]:
    """Return the different shapes of the communicators of two GPUs each `pairs` (pairs, 2), `ordered`, and which of them each is.

    Each has the extra latency of its own route. Raises InputError as `shape` does.
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


def shape(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> Shape:
    """Return the shape of the communicator of GPUs `ranks` (n,), `ordered`, and of `shares` as in Group.

    Raises InputError for no GPU, one that is not there, or one named twice.
    """
    one, starts = _shape(topology, np.asarray(ranks, np.int64), shares)
    return one._replace(extra_latency=extra_latency(topology, np.asarray(ranks, np.int64), starts))


def _shape(topology: Topology, ranks: Ints, shares: tuple[float, ...]) -> tuple[Shape, Ints]:
    if not len(ranks):
        raise InputError("a communicator needs one GPU or more; name some")
    if ranks.min() < 0 or ranks.max() >= topology.gpus:
        raise InputError(
            f"GPU {ranks[(ranks < 0) | (ranks >= topology.gpus)][0]} is not among 0 to {topology.gpus - 1}"
        )
    if len(distinct(ranks)) < len(ranks):
        raise InputError("a communicator has one GPU twice; name each once")
    return layout(topology, ranks, shares)


def layout(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> tuple[Shape, Ints]:
    """Return the shape of a communicator without its extra latency, and where its nodes begin; as `shape`, unchecked.

    Where all nodes are of one type, ranks may be on more nodes than there are.
    """
    node, local = topology.numbering.split(ranks)
    _, starts, at, counts = np.unique(node, return_index=True, return_inverse=True, return_counts=True)
    nodes, most = len(counts), int(counts.max())
    even = bool((counts == most).all()) and bool((np.diff(np.sort(starts)) == most).all())
    rows = local.reshape(nodes, most) if even else local[None]
    nic = topology.numbering.nic[ranks % topology.gpus]
    port = at * (nic.max() + 1) + nic
    nics = int(np.bincount(distinct(port) // (nic.max() + 1)).min()) if nodes > 1 else 0
    aligned = even and bool((rows == rows[0]).all())
    shares = checked(shares, len(ranks))
    busiest = _busiest(np.array(shares), counts[at], port) if shares else None
    sizes = () if even else tuple(counts.tolist())
    types = types_of(topology, ranks)
    return Shape(nodes, len(ranks), most, nics, even, aligned, busiest, types=types, sizes=sizes), starts


def types_of(topology: Topology, ranks: Ints) -> tuple[int, ...]:
    """Return the types of the nodes of GPUs, by their place in `Topology.kinds`; none where the cluster has one type."""
    return tuple(distinct(topology.kind_of(ranks)).tolist()) if topology.pools else ()


def _busiest(shares: Floats, beside: Ints, port: Ints) -> SkewedLoads:
    """Return the largest loads, given how many GPUs of the group are on the node of each, and the NIC of each.

    Receivers decide: on nodes with equally many GPUs no rank sends more than the busiest receiver gets. What else a group may
    look like, its links bound it.
    """
    coming = np.bincount(port, (len(shares) - beside) * shares)
    return SkewedLoads(float(shares.max()), float(((beside - 1) * shares).max()), float(coming.max()))
