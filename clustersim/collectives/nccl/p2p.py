"""Messages between two GPUs, and all-to-all made of them: no tuner chooses, NCCL sends directly.

A message is alpha + S/B: alpha of LL inside a node up to 16 KiB, of Simple else and between nodes; B is what NVLink or the NIC
gives (NVIDIA/nccl, src/enqueue.cc; SimAI charges the same sums). All-to-all is one kernel for all its messages: each rank's
own links carry them at once, each message to another node adds NCCL's overhead of posting it (1 us, 2 us on AMD hosts), and PXN
sends through the GPU of its node that owns the receiver's rail. Where some GPUs have more rows than others, the GPU and the
NIC with the most decide: what they receive in a dispatch they send back in a combine.
"""

from __future__ import annotations

import math

from clustersim.collectives.nccl.constants import GB, US, V2_30, architecture
from clustersim.collectives.nccl.graphs import inside_rate, ring
from clustersim.collectives.nccl.measured_latency import MeasuredConstants, measured_constants
from clustersim.collectives.nccl.shape import Shape
from clustersim.collectives.skew import OPS as ALL_TO_ALL
from clustersim.hardware.constants import LEAF_LATENCY, POST, POST_AMD
from clustersim.topology.model import NodeFacts

OPS = ("send", *ALL_TO_ALL)
LL_BYTES = 16 * 1024
"""Bytes of the largest message that uses LL (NCCL_P2P_LL_THRESHOLD)."""
SLOWER = 14e9
"""Bytes/s of a NIC that one channel serves (NCCL_P2P_PER_CHANNEL_NET_BW)."""
LOOP = 32 << 20
"""Bytes of an all_to_all in flight."""
FILL = 0.35
"""The part of their time that goes by unused at the ends of an all_to_all."""


def channels(shape: Shape, node: NodeFacts) -> int:
    """Return how many channels carry the messages of one pair of GPUs."""
    if shape.nodes == 1:
        wide = 2 * max(node.links, 1)
        return int(min(1 << (wide.bit_length() - 1), 32))
    release = tuple(int(part) for part in node.nccl.version.split(".")[:2])
    return math.ceil(node.nic_line / SLOWER) if release >= (2, 29) else _scaled(shape, node)


def _scaled(shape: Shape, node: NodeFacts) -> int:
    """Return the channels of a pair up to 2.28: two, or one where each channel would serve more than four peers.

    Source: ncclTopoGetNchannels, src/graph/paths.cc; on Hopper few channels are doubled once more (src/graph/connect.cc).
    """
    found = ring(shape, node)
    few = architecture(node.architecture) >= 2 and found.inter > 45 * GB and found.launched < 16
    return 1 if 2 * shape.ranks > 4 * found.launched * (2 if few else 1) else 2


def protocol(op: str, size: float, shape: Shape) -> str:
    """Return the protocol of the largest message; `size` as nccl-tests counts it, all that one rank sends."""
    each = size * _most(shape) if op in ALL_TO_ALL else size
    return "LL" if shape.nodes == 1 and each <= LL_BYTES else "Simple"


def timing(op: str, size: float, shape: Shape, node: NodeFacts) -> tuple[float, float]:
    """Return seconds before and between the bytes, and bytes/s, of one message or of an all_to_all of `size` bytes a rank."""
    constants = measured_constants(node)
    delay, rate = _latency(op, size, shape, node, constants) * US, _rate(op, shape, node, constants)
    delay += shape.extra_latency.inside if shape.nodes == 1 else shape.extra_latency.most
    if shape.nodes > 1:
        messages = shape.ranks - shape.per_node if op in ALL_TO_ALL else 1
        delay += max(0.0, node.net_latency - LEAF_LATENCY) * 2 + messages * (POST_AMD if node.cpu == "amd" else POST)
    return (delay + FILL * min(size, LOOP) / rate if op in ALL_TO_ALL else delay), rate


def _latency(op: str, size: float, shape: Shape, node: NodeFacts, constants: MeasuredConstants) -> float:
    """Return us; a message between nodes costs a kernel and a hop of ring/Simple."""
    if protocol(op, size, shape) == "LL":
        return constants.base[0] + (V2_30.pci["ring"][0] if node.scale_up == "none" else constants.hop[0])
    if shape.nodes == 1:
        return constants.p2p
    return (constants.p2p if op in ALL_TO_ALL else constants.base[0]) + V2_30.net["ring"][2]


def _rate(op: str, shape: Shape, node: NodeFacts, constants: MeasuredConstants) -> float:
    inside = inside_rate(node) * constants.spread
    if op == "send":
        return inside if shape.nodes == 1 else min(node.nic, channels(shape, node) * SLOWER)
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
