"""Messages between two GPUs, and all-to-all made of them. NCCL has no tuner for them: it sends directly.

A message takes alpha + S/B. Alpha is that of LL inside a node up to 16 KiB, otherwise and between nodes that of Simple; B is the
rate of its channels, limited by NVLink or the NIC. The channels of a communicator are divided among its ranks, so that each pair
of a large one has fewer (NVIDIA/nccl, src/graph/paths.cc, src/enqueue.cc). Pipeline messages follow the same rules in their own
communicator. All-to-all is one kernel for all its messages. Each rank's links carry them at once, each message to another node
adds NCCL's overhead to post it (1 us; 2 us on AMD hosts), and PXN sends through the GPU of its node that owns the receiver's
rail. If some GPUs have more rows than others, the busiest GPU and NIC set the time: they send back in a combine what they
receive in a dispatch.
"""

from __future__ import annotations

import math
from typing import Annotated

from clustersim.collectives.model import SKEWED
from clustersim.collectives.nccl.constants import US, V2_30
from clustersim.collectives.nccl.graphs import inside_rate, ring
from clustersim.collectives.nccl.measured_latency import MeasuredConstants, measured_constants
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.config.evidence import Declared
from clustersim.config.topology import P2P_CHUNK
from clustersim.hardware.constants import LEAF_LATENCY, POST, POST_AMD
from clustersim.topology.model import NodeFacts

OPS = ("send", *SKEWED)
LL_BYTES: Annotated[int, Declared("B")] = 16 * 1024
"""Bytes of the largest message that uses LL (NCCL_P2P_LL_THRESHOLD)."""
SLOWER: Annotated[float, Declared("B/s")] = 14e9
"""Bytes/s of a NIC that one channel serves (NCCL_P2P_PER_CHANNEL_NET_BW) with steps of the default size."""
COPIED: Annotated[float, Declared("B/s", "18.7 to 21.2 GB/s a channel")] = 20e9
"""Bytes/s of NVLink that one channel serves. Measured sendrecv per channel: 18.7 to 20.4 GB/s on H100 with 4 and 8 channels
(xxrjun's cluster), 19.7 to 21.2 on B200 with 4 and 16 channels from 16 MiB on (Vultr's)."""
PEERS: Annotated[int, Declared()] = 8
"""Number of messages that one block carries at once (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""
POSTED = P2P_CHUNK / SLOWER - P2P_CHUNK / COPIED
"""Seconds of a step between nodes that are hidden behind the copy of its bytes."""
NVLINK_STEP: Annotated[int, Declared("B")] = 512 * 1024
"""Bytes of one step of a message over NVLink (NCCL_P2P_NVL_CHUNKSIZE)."""
LOOP: Annotated[int, Declared("B", "not recorded; 304 runs of all_to_all: 11.5, 11.6, 11.7 %")] = 32 << 20
"""Bytes of an all_to_all that are in flight at once."""
FILL: Annotated[float, Declared(chosen_on="not recorded; 304 runs of all_to_all: 11.5, 11.6, 11.8 %")] = 0.35
"""Share of the time of the bytes in flight that passes unused while an all_to_all fills and drains its pipeline."""


def channels(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> int:
    """Return the number of channels of a message of `size` bytes, or of each pair of GPUs in an all-to-all.

    Small messages get few channels, so that each has work, and initially no more than all pairs could have at once
    (src/enqueue.cc: addP2pToPlan).
    """
    largest = count = _pair_channels(shape, node)
    if op in SKEWED:
        return largest
    while count > 1 and count * shape.ranks > _shared_channels(shape, node):
        count //= 2
    inside = NVLINK_STEP if node.nvlink else P2P_CHUNK
    step = node.nccl.p2p_chunk if shape.nodes > 1 else inside
    least, large = (step // 2, step) if shape.nodes > 1 else (step // 8, step * 32)
    count = min(count, max(1, math.ceil(size / least)))
    while size > large * count and 2 * count <= largest:
        count *= 2
    return count


def _shared_channels(shape: CommunicatorShape, node: NodeFacts) -> int:
    """Return the number of channels that all pairs of a communicator share, a power of two."""
    return _power(ring(shape, node).launched)


def _pair_channels(shape: CommunicatorShape, node: NodeFacts) -> int:
    """Return the largest number of channels per pair. If any pair is on different nodes, the number for such pairs holds for all.

    Source: ncclTopoGetNchannels and ncclTopoComputeP2pChannels, src/graph/paths.cc. Pairs on different nodes have two channels
    up to NCCL 2.19, one from 2.20 if a channel would serve more than four peers, and from 2.29 the number that saturates the NIC,
    halved until one round of channels reaches all peers.
    """
    total = _shared_channels(shape, node)
    if shape.nodes == 1:
        return min(_power(2 * max(node.links, 1)), total)
    release = tuple(int(part) for part in node.nccl.version.split(".")[:2])
    if release < (2, 29):
        crowded = release >= (2, 20) and 2 * shape.ranks > 4 * ring(shape, node).launched
        return 1 if crowded else min(2, total)
    count = _power(math.ceil(min(node.nic_line, node.pcie or math.inf) / SLOWER))
    while count > 1 and count * math.ceil(shape.ranks / PEERS) > total:
        count //= 2
    return count


def _power(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def protocol(op: str, size: float, shape: CommunicatorShape) -> str:
    """Return the protocol of the largest message, `Simple` or `LL`. `size` is all bytes that one rank sends, as in nccl-tests."""
    share = shape.busiest.row_share if shape.busiest else 1 / shape.ranks
    message_bytes = size * share if op in SKEWED else size
    return "Simple" if _across(shape) or message_bytes > LL_BYTES else "LL"


def timing(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> tuple[float, float]:
    """Return (latency in seconds without launch, bytes/s) of a message or of an all-to-all in which a rank sends `size` bytes."""
    constants = measured_constants(node)
    delay = node.nccl.slowdown * _latency(op, size, shape, node, constants) * US
    rate = _rate(op, size, shape, node, constants)
    delay += shape.extra_latency.slowest if _across(shape) else shape.extra_latency.inside
    if _across(shape):
        messages = shape.ranks - shape.per_node if op in SKEWED else 1
        delay += max(0.0, node.net_latency - LEAF_LATENCY) * 2 + messages * (POST_AMD if node.cpu == "amd" else POST)
    return (delay + FILL * min(size, LOOP) / rate if op in SKEWED else delay), rate


def _latency(op: str, size: float, shape: CommunicatorShape, node: NodeFacts, constants: MeasuredConstants) -> float:
    """Return the latency in us, without what routes and NICs add to NCCL's figures. `size` is all bytes that one rank sends."""
    if protocol(op, size, shape) == "LL":
        return constants.base[0] + (V2_30.pci["ring"][0] if node.scale_up == "none" else constants.hop[0])
    if not _across(shape):
        return constants.p2p
    return (constants.p2p if op in SKEWED else constants.base[0]) + V2_30.net["ring"][2]


def _across(shape: CommunicatorShape) -> bool:
    """Return whether messages of the communicator go between nodes."""
    return shape.nodes > 1 and not shape.inside_nodes


def _rate(op: str, size: float, shape: CommunicatorShape, node: NodeFacts, constants: MeasuredConstants) -> float:
    """Return the bytes/s of one message (`send`), or of all messages of a rank: the least that channels, links and NICs allow."""
    inside = inside_rate(node) * constants.spread
    if op == "send":
        carried = channels(op, size, shape, node)
        if _across(shape):
            chunk = node.nccl.p2p_chunk
            return min(node.nic, carried * chunk / (chunk / COPIED + POSTED))
        return min(inside, carried * COPIED) if node.nvlink else inside
    if shape.busiest is not None:
        row_share, inside_node, nic = shape.busiest
        return 1 / (
            inside_node / inside + row_share / constants.to_self
            if shape.nodes == 1
            else max(inside_node / inside, nic / node.nic)
        )
    ranks, per_node = shape.ranks, shape.per_node
    if shape.nodes == 1:
        return ranks / ((ranks - 1) / inside + 1 / constants.to_self)
    return ranks / max((per_node - 1) / inside, (ranks - per_node) * per_node / (node.nic * shape.nics))
