"""How much longer the ways of a communicator are than those that NCCL's figures contain: one leaf, and one NVSwitch.

NCCL knows a network by the latency that its NICs declare. What a way has beyond that, more switches and longer cables, comes on
top of what NCCL expects, and it does not choose by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct
from clustersim.collectives.model import Group
from clustersim.collectives.skew import checked
from clustersim.collectives.tree_steps import node_trees
from clustersim.errors import InputError
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.memo import fingerprint
from clustersim.topology.model import Topology

_DIGITS = 9  # nanoseconds: communicators that lie alike are one shape


class Far(NamedTuple):
    """Seconds beyond NCCL's own: of a hop `inside` a node, of a `ring`'s hop from node to node (the mean of all), of the
    longest way from the root of its trees to a leaf, and of the farthest hop, that to the node `most` away.
    """

    inside: float = 0.0
    ring: float = 0.0
    tree: float = 0.0
    most: float = 0.0


def far(topology: Topology, ranks: Ints, starts: Ints) -> Far:
    """Return how far the nodes of a communicator are apart: GPUs `ranks` (n,) node by node, of which `starts` begin a node."""
    question = ("far", fingerprint(ranks), fingerprint(starts))
    return topology.memo.once(question, lambda: _far(topology, ranks, starts))


def _far(topology: Topology, gpus: Ints, heads: Ints) -> Far:
    inside = 0.0
    if len(gpus) > len(heads):
        near = int(np.flatnonzero(np.diff(gpus // topology.gpus_per_node) == 0)[0])
        own = PCIE_LATENCY if topology.node.scale_up == "none" else NVLINK_LATENCY
        inside = max(0.0, float(topology.route(gpus[[near]], gpus[[near + 1]]).latency[0]) - own)
    if len(heads) == 1:
        return Far(round(inside, _DIGITS))
    first = gpus[heads]
    ring = _beyond(topology, first, np.roll(first, -1))
    most = max(float(ring.max()), float(_beyond(topology, first[:1].repeat(len(first) - 1), first[1:]).max()))
    tree = _deepest(topology, first)
    return Far(*(round(x, _DIGITS) for x in (inside, float(ring.mean()), tree, most)))


def _beyond(topology: Topology, source: Ints, target: Ints) -> Floats:
    longer: Floats = np.maximum(topology.route(source, target).latency - topology.node.net_latency, 0.0)
    return longer


def _deepest(topology: Topology, first: Ints) -> float:
    """Return the seconds beyond NCCL's on the longest way down one of the trees over the nodes."""
    longest = 0.0
    for parent, depth, deepest in node_trees(len(first)):
        way = np.zeros(len(first))
        hop = np.append(0.0, _beyond(topology, first[parent[1:]], first[1:]))
        for level in range(1, deepest + 1):
            here = depth == level
            way[here] = way[parent[here]] + hop[here]
        longest = max(longest, float(way.max()))
    return longest


# What NCCL's tuner sees of a communicator: how many ranks on how many nodes, and which NICs they own.


class SkewedLoads(NamedTuple):
    """Where a dispatch meets its experts, for each byte that one rank sends; a combine brings the same bytes back.

    most: the largest share of one GPU. inside: the most that a GPU receives from its own node. nic: the most that a NIC
    receives from other nodes.
    """

    most: float
    inside: float
    nic: float


class Shape(NamedTuple):
    """A communicator: `ranks` on `nodes`, `per_node` on each, which own `nics` NICs there (0: none needed).

    even: every node has as many. aligned: position i of every node is the same GPU there, so rings and trees between nodes
    stay on a rail. busiest: the largest loads of an all-to-all when some GPUs get more rows than others (None: all alike).
    far: how much longer its ways are than those that NCCL's figures contain.
    """

    nodes: int
    ranks: int
    per_node: int
    nics: int
    even: bool = True
    aligned: bool = True
    busiest: SkewedLoads | None = None
    far: Far = Far()

    @property
    def group(self) -> Group:
        """The group of the collectives' files, `levels` from the node outwards; one level when nodes are uneven."""
        if not self.even:
            return Group(self.ranks, (1, self.ranks))
        return Group(self.ranks, (self.per_node, self.nodes))


def ordered(ranks: Ints) -> Ints:
    """Return the GPUs of communicators (…, n) node by node, as NCCL joins them whatever their ranks."""
    return np.sort(ranks, axis=-1)


def shapes(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> tuple[tuple[Shape, ...], Ints]:
    """Return the different shapes of many communicators of equal size, and which of them each is.

    ranks: GPUs (groups, n), `ordered`. shares: as in Group. Of communicators that lie on nodes in the same way, the first and
    the last say how far these are apart. Raises InputError as `shape` does.
    """
    node, local = np.divmod(ranks, topology.gpus_per_node)
    alike = np.concatenate((node - node[:, :1], local), axis=1)
    _, first, which = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    last[which.reshape(-1)] = np.arange(len(ranks))
    found = [_farther(shape(topology, ranks[i], shares), topology, ranks[j]) for i, j in zip(first, last, strict=True)]
    kinds = tuple(dict.fromkeys(found))
    return kinds, np.array([kinds.index(one) for one in found])[which.reshape(-1)]


def _farther(one: Shape, topology: Topology, ranks: Ints) -> Shape:
    """Return a shape with the larger distances of its own and those of other ranks that lie in the same way."""
    starts = np.flatnonzero(np.diff(ranks // topology.gpus_per_node, prepend=-1))
    other = far(topology, ranks, starts)
    return one if other == one.far else one._replace(far=Far(*map(max, one.far, other)))


def shape(topology: Topology, ranks: Ints, shares: tuple[float, ...] = ()) -> Shape:
    """Return the shape of the communicator of GPUs `ranks` (n,), `ordered`, and of `shares` as in Group.

    Raises InputError for no GPU, one that is not there, or one named twice.
    """
    ranks = np.asarray(ranks, np.int64)
    if not len(ranks):
        raise InputError("a communicator needs one GPU or more; name some")
    if ranks.min() < 0 or ranks.max() >= topology.gpus:
        raise InputError(
            f"GPU {ranks[(ranks < 0) | (ranks >= topology.gpus)][0]} is not among 0 to {topology.gpus - 1}"
        )
    if len(distinct(ranks)) < len(ranks):
        raise InputError("a communicator has one GPU twice; name each once")
    node, local = np.divmod(ranks, topology.gpus_per_node)
    _, starts, at, counts = np.unique(node, return_index=True, return_inverse=True, return_counts=True)
    nodes, most = len(counts), int(counts.max())
    even = bool((counts == most).all()) and bool((np.diff(np.sort(starts)) == most).all())
    rows = local.reshape(nodes, most) if even else local[None]
    nic = np.asarray(topology.node.nic_of)[local]
    nics = len(distinct(nic[node == node[0]])) if nodes > 1 else 0
    aligned = even and bool((rows == rows[0]).all())
    shares = checked(shares, len(ranks))
    busiest = _busiest(np.array(shares), counts[at], at * (nic.max() + 1) + nic) if shares else None
    return Shape(nodes, len(ranks), most, nics, even, aligned, busiest, far(topology, ranks, starts))


def _busiest(shares: Floats, beside: Ints, port: Ints) -> SkewedLoads:
    """Return the largest loads, given how many GPUs of the group are on the node of each, and the NIC of each.

    Receivers decide: on nodes with equally many GPUs nobody sends more than the busiest receiver gets. What else a group may
    look like, its links bound it.
    """
    coming = np.bincount(port, (len(shares) - beside) * shares)
    return SkewedLoads(float(shares.max()), float(((beside - 1) * shares).max()), float(coming.max()))
