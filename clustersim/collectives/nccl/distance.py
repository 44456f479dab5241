"""How much longer the ways of a communicator are than those that NCCL's figures contain: one leaf, and one NVSwitch.

NCCL knows a network by the latency that its NICs declare. What a way has beyond that, more switches and longer cables, comes on
top of what NCCL expects, and it does not choose by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Floats, Ints
from clustersim.collectives.tree_steps import node_trees
from clustersim.topology.inside import NVLINK_LATENCY, PCIE_LATENCY
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
