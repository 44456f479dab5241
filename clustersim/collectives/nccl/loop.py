"""Bytes that NVLSTree has under way at once: channels × heads × chunk, as NCCL cuts them (calcCollChunking, src/enqueue.cc)."""

from __future__ import annotations

from clustersim.collectives.nccl.constants import GB, architecture
from clustersim.collectives.nccl.graphs import nvls
from clustersim.collectives.nccl.shape import Shape
from clustersim.topology.model import NodeFacts

KIB = 1 << 10
_SHRINK = ((32, 256), (16, 128), (4, 64), (1, 32))
"""A message below so many times the bytes under way gets chunks of so many KiB at most, one rule after the other."""
_NEARLY = 0.99


def under_way(size: float, shape: Shape, node: NodeFacts) -> float:
    """Return bytes, of a message of `size`, that NVLSTree moves on one level of its trees before it begins on the next."""
    channels, chunk = _tuned(shape, node)
    parts = channels * nvls(shape, node).channels
    for times, most in _SHRINK:
        if size < times * parts * chunk:
            chunk = min(chunk, most * KIB)
    return min(size, parts * chunk)


def _tuned(shape: Shape, node: NodeFacts) -> tuple[int, int]:
    """Return channels and the largest chunk in bytes (ncclNvlsChannels and ncclNvlsTreeSm100Tuning, src/transport/nvls.cc)."""
    nodes, each, nic = shape.nodes, shape.per_node, node.nic / GB
    chunk = 64 if nodes >= 4 else 128
    if architecture(node.architecture) < 3:
        return 16, chunk * KIB
    near = node.cpu != "arm"  # a PCIe switch joins GPU and NIC; Grace's own root ports stand between them
    if nodes == 2 and nic >= 48 * _NEARLY:
        small = each >= 16 or (each > 4 and near and nic < 96 * _NEARLY)
        return 32, (256 if each <= 4 else 64 if small else 128) * KIB
    if nic >= 96 * _NEARLY:
        return (24, 256 * KIB) if each <= 8 else (32, (128 if each < 32 else 64) * KIB)
    return (24, (64 if near else 128) * KIB) if nic >= 48 * _NEARLY else (32, chunk * KIB)
