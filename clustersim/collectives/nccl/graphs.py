"""Channels and their speed for each algorithm: the result of NCCL's graph search, in closed form.

The search (NVIDIA/nccl, src/graph/search.cc) tries a list of speeds and keeps the one whose channels together carry most. If the
switches of a node give every GPU the same bytes/s and all NICs are equal, the result is arithmetic. It agrees with the logs of
real nodes: 12 × 30 GB/s on 8 H100, 8 × 24 GB/s on several DGX A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Annotated, NamedTuple

from clustersim.collectives.nccl.constants import GB, architecture
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.config.evidence import Declared
from clustersim.topology.model import NodeFacts

HEADS = 32  # NCCL_MAX_NVLS_ARITY
"""Largest number of heads of NVLS, GPUs of a node that each reduce a part."""
HEADS_BETWEEN: Annotated[int, Declared(chosen_on="their bus bandwidths")] = 8
"""Heads of rings between racks, read off published runs of several racks of GB200 (CoreWeave, OCI), not NCCL's source."""
MOST_CHANNELS = 32  # MAXCHANNELS / 2, because two thread blocks are launched for each channel of the search
"""Largest number of channels that the search finds."""
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
"""Bandwidths of a channel that NCCL tries between nodes, the largest first (same source)."""
FULL: Annotated[tuple[float, ...], Declared("B/s")] = (inf, inf, 18 * 20.6 * GB, 18 * 40.1 * GB)
"""Bytes/s of all links of a GPU by generation (NVIDIA/nccl, src/graph/topo.h). NCCL's search lists NVLS speeds for a GPU with all
links; with fewer links the speed is reduced in proportion, because switches add at the rate of the links."""
_SLACK = 1.0 + 1e-9


class ChannelGraph(NamedTuple):
    """Channels of an algorithm on a communicator, and their speed."""

    channels: int
    intra: float
    """Bytes/s of a channel inside nodes."""
    inter: float
    """Bytes/s of a channel between nodes."""
    launched: int
    """Number of thread blocks that the kernel launches; 0 until it is known."""


@lru_cache(maxsize=1024)
def ring(shape: CommunicatorShape, node: NodeFacts) -> ChannelGraph:
    """Return the channels of rings on a communicator, which PAT and CollNet use too."""
    if shape.nodes == 1:
        return _inside(node)
    # the most channels that the search lets share a NIC (ncclTopoSearchRecNet, src/graph/search.cc)
    most = max(1, min(int(node.nic / _speeds(_INTER, node)[0] * _SLACK), MOST_CHANNELS))
    graphs = [_between(shape, node, per_nic) for per_nic in range(1, most + 1)]
    best = max(graphs, key=lambda channel_graph: channel_graph.channels * channel_graph.inter)
    return best._replace(launched=_launched(best, node))


def _launched(channel_graph: ChannelGraph, node: NodeFacts) -> int:
    """Return the number of thread blocks for rings over several nodes: two per channel, or four where channels are few and fast.

    Source: ncclTopoDupChannels in src/graph/search.cc, whose copies have half the speed each, and src/graph/connect.cc.
    """
    channels, speed, hopper = channel_graph.channels, channel_graph.inter, architecture(node.architecture) >= 2
    if speed >= 25 * GB and not (hopper and speed < 50 * GB and channels > 4):
        channels, speed = min(2 * channels, MOST_CHANNELS), speed / 2
    doubled_twice = hopper and speed > 45 * GB and 2 * channels < 16
    return min(2 * channels * (2 if doubled_twice else 1), 2 * MOST_CHANNELS)


def _between(shape: CommunicatorShape, node: NodeFacts, per_nic: int) -> ChannelGraph:
    """Return the rings over several nodes if `per_nic` channels go through each NIC, without `launched`."""
    # A ring leaves a node by one NIC and enters by another, so the links inside carry all hops of the ring but one.
    channels = min(shape.nics * per_nic, MOST_CHANNELS)
    links_rate = inside_rate(node) * shape.per_node / max(shape.per_node - 1, 1) / channels
    speed = _fastest(_INTER, node, min(node.nic / per_nic, links_rate) if shape.per_node > 1 else node.nic / per_nic)
    return ChannelGraph(channels, speed, speed, 0)


@lru_cache(maxsize=1024)
def tree(shape: CommunicatorShape, node: NodeFacts) -> ChannelGraph:
    """Return the channels of trees: those of rings, up to twice as fast inside nodes as between them.

    A NIC that carries both trees of two nodes moves each byte once in each direction, where a ring's moves it nearly twice. So
    the tuner uses the speed inside for two nodes (the second pass of ncclTopoCompute, src/graph/search.cc). CollNet gets the
    same in NCCL but not here: ABCI's table of SHARP on two nodes has 56 GB/s, where 96 would follow.
    """
    channel_graph = ring(shape, node)
    if shape.nodes == 1:
        return channel_graph
    links_rate = inside_rate(node) * shape.per_node / max(shape.per_node - 1, 1) / channel_graph.channels * _SLACK
    faster = [speed for speed in reversed(_speeds(_INTER, node)) if channel_graph.inter < speed]
    for speed in faster:
        if channel_graph.intra >= 2 * channel_graph.inter or (shape.per_node > 1 and speed > links_rate):
            break
        channel_graph = channel_graph._replace(intra=speed)
    return channel_graph


@lru_cache(maxsize=1024)
def nvls(shape: CommunicatorShape, node: NodeFacts) -> ChannelGraph:
    """Return the channels of NVLS, one per head, at a speed such that a GPU's links carry the bytes of heads + 1 channels."""
    heads = min(shape.per_node, HEADS) if shape.nodes == 1 else min(shape.nics, HEADS_BETWEEN)
    links_share = min(node.nvlink / FULL[architecture(node.architecture)], 1.0)  # H800: 215 of 480 GB/s, 8 of 18 links
    speed = _fastest(_INTRA, node, node.nvlink / links_share / (heads + 1)) * links_share
    inter = _fastest(_INTER, node, node.nic) if shape.nodes > 1 else speed
    return ChannelGraph(heads, speed, inter, max(16, heads))


def inside_rate(node: NodeFacts) -> float:
    """Return the bytes/s at which a GPU sends inside its node: the rate of NVLink, or of PCIe without NVLink."""
    return node.nvlink or node.pcie


def _inside(node: NodeFacts) -> ChannelGraph:
    """Return the channels of a ring inside a node, as NCCL's search finds them: most bandwidth first."""
    links_rate = inside_rate(node)
    best = (0.0, 0, 0.0)
    for speed in _speeds(_INTRA, node):
        channels = min(int(links_rate / speed * _SLACK), MOST_CHANNELS)
        best = max(best, (channels * speed, channels, speed), key=lambda candidate: candidate[0])
    total, channels, speed = best if best[1] else (links_rate, 1, links_rate)
    if speed >= 25 * GB and not (architecture(node.architecture) >= 2 and speed < 50 * GB and channels > 4):
        channels, speed = min(2 * channels, MOST_CHANNELS), total / min(2 * channels, MOST_CHANNELS)
    return ChannelGraph(channels, speed, speed, min(2 * channels, 2 * MOST_CHANNELS))


def _fastest(table: Mapping[str, tuple[float, ...]], node: NodeFacts, limit: float) -> float:
    """Return the fastest of the GPU generation's channel speeds up to `limit` bytes/s, or `limit` if all are faster."""
    return next((speed for speed in _speeds(table, node) if speed <= limit * _SLACK), limit)


def _speeds(table: Mapping[str, tuple[float, ...]], node: NodeFacts) -> tuple[float, ...]:
    """Return the channel speeds that NCCL's search tries on the node's GPU generation, in bytes/s, the largest first."""
    generation = ("old", "old", "hopper", "blackwell")[architecture(node.architecture)]
    return tuple(speed * GB for speed in table[generation])
