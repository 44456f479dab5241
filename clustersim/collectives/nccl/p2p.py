"""Messages between two GPUs, and all-to-all made of them: no tuner chooses, NCCL sends directly.

A message is alpha + S/B: alpha of LL inside a node up to 16 KiB a channel, of Simple else and between nodes; B is what NVLink or
the NIC gives (NVIDIA/nccl, src/enqueue.cc; SimAI charges the same sums). All-to-all is one kernel for all its messages: each
rank's own links carry them at once, and PXN sends through the GPU of its node that owns the receiver's rail.
"""

from __future__ import annotations

from clustersim.collectives.nccl.constants import US, constants
from clustersim.collectives.nccl.graphs import inside_rate
from clustersim.collectives.nccl.model import LEAF
from clustersim.collectives.nccl.shape import Shape
from clustersim.topology.model import NodeFacts

OPS = ("send", "all_to_all")
LL_BYTES = 16 * 1024  # a channel
SLOWER = 14e9  # bytes/s that one channel gets through a NIC


def channels(shape: Shape, node: NodeFacts) -> int:
    """Return how many channels carry the messages of one pair of GPUs."""
    if shape.nodes == 1:
        wide = 2 * max(node.links, 1)
        return int(min(1 << (wide.bit_length() - 1), 32))
    return max(1, round(node.nic / SLOWER))


def latency(size: float, shape: Shape, node: NodeFacts) -> tuple[str, float]:
    """Return protocol and seconds of a message of no bytes; `size` bytes to each peer choose the protocol."""
    c = constants(node.nccl.version)
    if shape.nodes > 1:
        return "Simple", (c.base["ring"][2] + c.net["ring"][2]) * US + 2 * max(0.0, node.net_latency - LEAF)
    hops = c.pci if node.scale_up == "none" else c.nvlink
    low = size <= LL_BYTES * channels(shape, node)
    p = 0 if low else 2
    return ("LL" if low else "Simple"), (c.base["ring"][p] + hops["ring"][p]) * US


def rate(op: str, shape: Shape, node: NodeFacts) -> float:
    """Return bytes/s of a message, or of what one rank sends in an all_to_all (its own share counted), as nccl-tests does."""
    inside = inside_rate(node)
    if op == "send":
        return inside if shape.nodes == 1 else node.nic
    n, each = shape.ranks, shape.per_node
    port = node.nic * shape.nics / each if shape.nodes > 1 else inside
    return n / max((each - 1) / inside, (n - each) / port)
