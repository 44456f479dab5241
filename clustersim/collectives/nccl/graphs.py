"""Channels and their speed for each algorithm: what NCCL's graph search finds, in closed form.

The search (NVIDIA/nccl, src/graph/search.cc) tries a list of speeds and keeps the one whose channels together carry most. On a
node whose switches give every GPU the same bytes/s, and NICs all alike, the outcome is arithmetic; it agrees with the logs
of real nodes: 12 × 30 GB/s on 8 H100, 8 × 24 on several DGX A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple

from clustersim.collectives.nccl.constants import GB, architecture
from clustersim.collectives.nccl.shape import Shape
from clustersim.config.evidence import Declared
from clustersim.topology.model import NodeFacts

HEADS = 32  # NCCL_MAX_NVLS_ARITY
HEADS_BETWEEN: Annotated[int, Declared(chosen_on="their bus bandwidths")] = 8
"""Heads of rings between racks: read off published runs of several racks of GB200 (CoreWeave, OCI), not NCCL's source."""
MOST_CHANNELS = 32  # MAXCHANNELS / 2: those of the search are launched twice
_INTRA: Annotated[Mapping[str, tuple[float, ...]], Declared("GB/s")] = {
    "old": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
"""Bandwidths of a channel that NCCL tries inside nodes, the largest first (NVIDIA/nccl, src/graph/search.cc)."""
_INTER: Annotated[Mapping[str, tuple[float, ...]], Declared("GB/s")] = {
    "old": (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    "hopper": (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    "blackwell": (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}
"""The same between nodes."""
_SLACK = 1.0 + 1e-9


class ChannelGraph(NamedTuple):
    """How an algorithm lies on a communicator."""

    channels: int
    intra: float
    """Bytes/s of a channel inside nodes."""
    inter: float
    """Bytes/s of a channel between nodes."""
    launched: int
    """How many blocks of the kernel run."""


@lru_cache(maxsize=1024)
def ring(shape: Shape, node: NodeFacts) -> ChannelGraph:
    """Return the graph of rings, and of CollNet's chains, over a communicator."""
    if shape.nodes == 1:
        return _inside(node)
    found = max((_between(shape, node, each) for each in range(1, _channels_of_nic(node) + 1)), key=_carried)
    return found._replace(launched=_launched(found, node))


def _launched(found: ChannelGraph, node: NodeFacts) -> int:
    """Return how many blocks run for rings over several nodes: twice the channels, and twice again where these are few and fast.

    Source: ncclTopoDupChannels, src/graph/search.cc, whose copies have half the speed each; the rest of src/graph/connect.cc.
    """
    channels, speed, hopper = found.channels, found.inter, architecture(node.architecture) >= 2
    if speed >= 25 * GB and not (hopper and speed < 50 * GB and channels > 4):
        channels, speed = min(2 * channels, MOST_CHANNELS), speed / 2
    again = hopper and speed > 45 * GB and 2 * channels < 16
    return min(2 * channels * (2 if again else 1), 2 * MOST_CHANNELS)


def _between(shape: Shape, node: NodeFacts, each: int) -> ChannelGraph:
    """Return the rings over several nodes of which so many go through each NIC."""
    # A ring leaves a node by one NIC and comes in by another; the links inside carry all of them but the hop between nodes.
    channels = min(shape.nics * each, MOST_CHANNELS)
    room = inside_rate(node) * shape.per_node / max(shape.per_node - 1, 1) / channels
    speed = _fastest(_INTER, node, min(node.nic / each, room) if shape.per_node > 1 else node.nic / each)
    return ChannelGraph(channels, speed, speed, 0)


def _channels_of_nic(node: NodeFacts) -> int:
    """Return how many channels of the fastest speed a NIC carries; the search lets as many share it (ncclTopoSearchRecNet)."""
    return max(1, min(int(node.nic / _speeds(_INTER, node)[0] * _SLACK), MOST_CHANNELS))


def _carried(found: ChannelGraph) -> float:
    return found.channels * found.inter


@lru_cache(maxsize=1024)
def tree(shape: Shape, node: NodeFacts) -> ChannelGraph:
    """Return the graph of trees: the rings', made faster inside nodes up to twice the speed between.

    A NIC that carries both trees of two nodes moves each byte once a way, where a ring's moves it nearly twice; so the tuner
    takes the speed inside for two nodes (the second pass of ncclTopoCompute, src/graph/search.cc). CollNet gets the same there,
    which is left out: ABCI's table of SHARP on two nodes has 56 GB/s, and 96 would follow.
    """
    found = ring(shape, node)
    if shape.nodes == 1:
        return found
    room = inside_rate(node) * shape.per_node / max(shape.per_node - 1, 1) / found.channels * _SLACK
    faster = [speed for speed in reversed(_speeds(_INTER, node)) if found.inter < speed]
    for speed in faster:
        if found.intra >= 2 * found.inter or (shape.per_node > 1 and speed > room):
            break
        found = found._replace(intra=speed)
    return found


@lru_cache(maxsize=1024)
def nvls(shape: Shape, node: NodeFacts) -> ChannelGraph:
    """Return the graph of NVLS: a head a channel, and b bytes/s a channel such that every link carries heads + 1 of them."""
    heads = min(shape.per_node, HEADS) if shape.nodes == 1 else min(shape.nics, HEADS_BETWEEN)
    speed = _fastest(_INTRA, node, node.nvlink / (heads + 1))
    inter = _fastest(_INTER, node, node.nic) if shape.nodes > 1 else speed
    return ChannelGraph(heads, speed, inter, max(16, heads))


def inside_rate(node: NodeFacts) -> float:
    """Return the bytes/s that a GPU sends to its neighbours in the node."""
    return node.nvlink or node.pcie


def _inside(node: NodeFacts) -> ChannelGraph:
    links = inside_rate(node)
    best = (0.0, 0, 0.0)
    for speed in _speeds(_INTRA, node):
        channels = min(int(links / speed * _SLACK), MOST_CHANNELS)
        best = max(best, (channels * speed, channels, speed), key=lambda found: found[0])
    total, channels, speed = best if best[1] else (links, 1, links)
    if speed >= 25 * GB and not (architecture(node.architecture) >= 2 and speed < 50 * GB and channels > 4):
        channels, speed = min(2 * channels, MOST_CHANNELS), total / min(2 * channels, MOST_CHANNELS)
    return ChannelGraph(channels, speed, speed, min(2 * channels, 2 * MOST_CHANNELS))


def _fastest(table: Mapping[str, tuple[float, ...]], node: NodeFacts, most: float) -> float:
    """Return the fastest speed of the list that is no more than `most` bytes/s, or `most` itself below them all."""
    return next((speed for speed in _speeds(table, node) if speed <= most * _SLACK), most)


def _speeds(table: Mapping[str, tuple[float, ...]], node: NodeFacts) -> tuple[float, ...]:
    kind = ("old", "old", "hopper", "blackwell")[architecture(node.architecture)]
    return tuple(speed * GB for speed in table[kind])
