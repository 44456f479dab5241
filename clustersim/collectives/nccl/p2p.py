"""Messages between two GPUs, and all-to-all made of them: no tuner chooses, NCCL sends directly.

A message is alpha + S/B: alpha of LL inside a node up to 16 KiB, of Simple else and between nodes; B is what its channels carry,
and NVLink or the NIC gives. Channels are shared out among the ranks of a communicator, so that a large one has fewer for each
pair (NVIDIA/nccl, src/graph/paths.cc, src/enqueue.cc). A step's messages are these too, in the communicator in which they go.
All-to-all is one kernel for all its messages: each rank's
own links carry them at once, each message to another node adds NCCL's overhead of posting it (1 us, 2 us on AMD hosts), and PXN
sends through the GPU of its node that owns the receiver's rail. Where some GPUs have more rows than others, the GPU and the
NIC with the most decide: what they receive in a dispatch they send back in a combine.
"""

from __future__ import annotations

import math
from typing import Annotated

from clustersim.collectives.nccl.constants import US, V2_30
from clustersim.collectives.nccl.graphs import inside_rate, ring
from clustersim.collectives.nccl.measured_latency import MeasuredConstants, measured_constants
from clustersim.collectives.nccl.shape import Shape
from clustersim.collectives.skew import OPS as ALL_TO_ALL
from clustersim.config.evidence import Declared
from clustersim.config.topology import P2P_CHUNK
from clustersim.hardware.constants import LEAF_LATENCY, POST, POST_AMD
from clustersim.topology.model import NodeFacts

OPS = ("send", *ALL_TO_ALL)
LL_BYTES: Annotated[int, Declared("B")] = 16 * 1024
"""Bytes of the largest message that uses LL (NCCL_P2P_LL_THRESHOLD)."""
SLOWER: Annotated[float, Declared("B/s")] = 14e9
"""Bytes/s of a NIC that one channel serves (NCCL_P2P_PER_CHANNEL_NET_BW) with steps of the default size."""
COPIED: Annotated[float, Declared("B/s", "18.7 to 21.2 GB/s a channel")] = 20e9
"""Bytes/s of NVLink that one channel serves: sendrecv of 4 and 8 channels has 18.7 to 20.4 GB/s each on H100 (xxrjun's cluster),
of 4 and 16 channels 19.7 to 21.2 on B200 from 16 MiB on (Vultr's)."""
PEERS: Annotated[int, Declared()] = 8
"""Messages that one block carries at once (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""
POSTED = P2P_CHUNK / SLOWER - P2P_CHUNK / COPIED
"""Seconds of a step between nodes that go by beside the copy of its bytes."""
NVLINK_STEP: Annotated[int, Declared("B")] = 512 * 1024
"""The same over NVLink (NCCL_P2P_NVL_CHUNKSIZE)."""
LOOP: Annotated[int, Declared("B", "not recorded; 304 runs of all_to_all: 11.5, 11.6, 11.7 %")] = 32 << 20
"""Bytes of an all_to_all in flight."""
FILL: Annotated[float, Declared(chosen_on="not recorded; 304 runs of all_to_all: 11.5, 11.6, 11.8 %")] = 0.35
"""The part of their time that goes by unused at the ends of an all_to_all."""


def channels(op: str, size: float, shape: Shape, node: NodeFacts) -> int:
    """Return how many channels carry `size` bytes from one GPU to another; of an all-to-all, those that a pair has.

    Few for a small message, so that each has something to do, and at first no more than all pairs could have at once
    (src/enqueue.cc: addP2pToPlan).
    """
    most = found = _of_pair(shape, node)
    if op in ALL_TO_ALL:
        return most
    while found > 1 and found * shape.ranks > _of_all(shape, node):
        found //= 2
    inside = NVLINK_STEP if node.nvlink else P2P_CHUNK
    step = node.nccl.p2p_chunk if shape.nodes > 1 else inside
    least, large = (step // 2, step) if shape.nodes > 1 else (step // 8, step * 32)
    found = min(found, max(1, math.ceil(size / least)))
    while size > large * found and 2 * found <= most:
        found *= 2
    return found


def _of_all(shape: Shape, node: NodeFacts) -> int:
    """Return the channels that carry messages of a communicator, a power of two."""
    return _power(ring(shape, node).launched)


def _of_pair(shape: Shape, node: NodeFacts) -> int:
    """Return the most channels that carry the messages of a pair: where some are on other nodes, so many have all of them.

    Source: ncclTopoGetNchannels and ncclTopoComputeP2pChannels, src/graph/paths.cc: two between nodes up to 2.19, from 2.20 on
    one where a channel would have more than four peers, from 2.29 on what the NIC needs, halved until a round has all peers.
    """
    total = _of_all(shape, node)
    if shape.nodes == 1:
        return min(_power(2 * max(node.links, 1)), total)
    release = tuple(int(part) for part in node.nccl.version.split(".")[:2])
    if release < (2, 29):
        crowded = release >= (2, 20) and 2 * shape.ranks > 4 * ring(shape, node).launched
        return 1 if crowded else min(2, total)
    found = _power(math.ceil(min(node.nic_line, node.pcie or math.inf) / SLOWER))
    while found > 1 and found * math.ceil(shape.ranks / PEERS) > total:
        found //= 2
    return found


def _power(count: int) -> int:
    """Return the least power of two from `count` on."""
    return 1 << (count - 1).bit_length()


def protocol(op: str, size: float, shape: Shape) -> str:
    """Return the protocol of the largest message; `size` as nccl-tests counts it, all that one rank sends."""
    each = size * _most(shape) if op in ALL_TO_ALL else size
    return "Simple" if _across(shape) or each > LL_BYTES else "LL"


def timing(op: str, size: float, shape: Shape, node: NodeFacts) -> tuple[float, float]:
    """Return seconds before and between the bytes, and bytes/s, of one message or of an all_to_all of `size` bytes a rank."""
    constants = measured_constants(node)
    delay = node.nccl.slowdown * _latency(op, size, shape, node, constants) * US
    rate = _rate(op, size, shape, node, constants)
    delay += shape.extra_latency.most if _across(shape) else shape.extra_latency.inside
    if _across(shape):
        messages = shape.ranks - shape.per_node if op in ALL_TO_ALL else 1
        delay += max(0.0, node.net_latency - LEAF_LATENCY) * 2 + messages * (POST_AMD if node.cpu == "amd" else POST)
    return (delay + FILL * min(size, LOOP) / rate if op in ALL_TO_ALL else delay), rate


def _latency(op: str, size: float, shape: Shape, node: NodeFacts, constants: MeasuredConstants) -> float:
    """Return us; a message between nodes costs a kernel and a hop of ring/Simple."""
    if protocol(op, size, shape) == "LL":
        return constants.base[0] + (V2_30.pci["ring"][0] if node.scale_up == "none" else constants.hop[0])
    if not _across(shape):
        return constants.p2p
    return (constants.p2p if op in ALL_TO_ALL else constants.base[0]) + V2_30.net["ring"][2]


def _across(shape: Shape) -> bool:
    """Return whether messages go from node to node."""
    return shape.nodes > 1 and not shape.beside


def _rate(op: str, size: float, shape: Shape, node: NodeFacts, constants: MeasuredConstants) -> float:
    inside = inside_rate(node) * constants.spread
    if op == "send":
        carried = channels(op, size, shape, node)
        if _across(shape):
            chunk = node.nccl.p2p_chunk
            return min(node.nic, carried * chunk / (chunk / COPIED + POSTED))
        return min(inside, carried * COPIED) if node.nvlink else inside
    if shape.busiest is not None:
        most, inside_node, nic = shape.busiest
        return 1 / (
            inside_node / inside + most / constants.own
            if shape.nodes == 1
            else max(inside_node / inside, nic / node.nic)
        )
    n, each = shape.ranks, shape.per_node
    if shape.nodes == 1:
        return n / ((n - 1) / inside + 1 / constants.own)
    return n / max((each - 1) / inside, (n - each) * each / (node.nic * shape.nics))


def _most(shape: Shape) -> float:
    """Return the part of what a rank sends that its largest message carries."""
    return shape.busiest.most if shape.busiest else 1 / shape.ranks
