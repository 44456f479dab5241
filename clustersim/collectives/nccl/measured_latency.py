"""Measured kernel and hop times in the closed forms of NCCL's tuner.

NCCL's tuner has one set of latencies for all GPUs, because it only ranks algorithms. Its closed forms are accurate, its
constants are not: on an A100 a hop of ring/Simple takes twice as long as in its table. The constants below minimize the relative
error on one source and are rounded: the nccl-tests tables of one node in ai-dynamo/aiconfigurator (A100, H100, H200, B200,
GB200; NCCL 2.27.3 and 2.29.2; 1 KiB to 512 MiB). Three have other sources. LL128 of Blackwell has only four rows there and is
near NCCL's own figure. LL128's hop of Hopper is NCCL's, because twelve rows cannot separate hop and kernel. LL's hop between
nodes is 7 us, from one sweep of two InfiniBand nodes (NVIDIA/nccl-tests issue 309), where NCCL has 5. All other constants (hops
between nodes, which are those of NCCL's trees, CollNet, PAT, efficiency of NVLS) are from NCCL's newest table for every release:
a release changes the choice, not the wire. A NIC's latency counts once per hop (`flush`), not twice as in the tuner.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Annotated, NamedTuple

from clustersim.collectives.nccl.constants import (
    GB,
    PROTOCOLS,
    V2_30,
    Constants,
    PerProtocol,
    architecture,
    tree_correction,
)
from clustersim.collectives.nccl.graphs import nvls
from clustersim.collectives.nccl.model import ROOTED, TuningCase, bandwidth, chain, detour, latency
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.config.evidence import Declared
from clustersim.hardware.constants import LEAF_LATENCY
from clustersim.topology.model import NodeFacts

MIB = 1 << 20
NET_LL: Annotated[float, Declared("us", "one sweep of two InfiniBand nodes")] = 7.0
"""Microseconds of LL's hop between nodes: one sweep of two InfiniBand nodes (NVIDIA/nccl-tests issue 309), where NCCL has 5."""
CHUNKS_IN_FLIGHT = 2
"""Parts of a ring that one connection carries at once by Simple: a part takes 4 of its 8 slots (NVIDIA/nccl,
src/include/collectives.h: ALLGATHER_CHUNKSTEPS, src/include/device.h: NCCL_STEPS)."""
LATE_LOOPS: Annotated[
    float, Declared(chosen_on="those two; 1 GiB in the best jobs of 4 to 64 such nodes (ULTRA) is 3 to 6 % off")
] = 1.5
"""Times that each loop of NVLSTree waits for a NIC that is slower than NCCL's figures assume. 8 nodes of AWS p5 have 104 GB/s bus
bandwidth with 8 MiB in flight and 280 with 64 MiB (NVIDIA/nccl, pull request 1112, 4 GiB); of the 159 us of a loop of 8 MiB the
wire takes 45."""
KIB = 1 << 10
_SHRINK = ((32, 256), (16, 128), (4, 64), (1, 32))
"""Rules that limit the chunk size of small messages, applied in order: (multiple of the bytes in flight below which the rule
applies, largest chunk in KiB)."""
_NEARLY = 0.99
"""Share of a NIC's nominal rate from which it counts as that rate in `_tuned`."""


class MeasuredConstants(NamedTuple):
    """Kernel and hop times of one GPU architecture. Tuples of three are for LL, LL128 and Simple."""

    base: PerProtocol
    """Time of a ring or tree kernel without hops, in us."""
    hop: PerProtocol
    """Time of a hop inside a node, in us."""
    copy: float
    """Bytes/s at which a rank adds or copies its own part in a ring, alternating with its sends."""
    nvls: float
    """Time of an NVLS kernel, in us."""
    bytes_in_flight: float
    """Bytes that eight heads of NVLS have in flight at once."""
    fill: float
    """Share of the time of the bytes in flight that passes while the pipeline fills and drains."""
    p2p: float
    """Latency of a message by Simple, in us."""
    spread: float
    """Share of NVLink's rate that many simultaneous messages reach."""
    to_self: float
    """Bytes/s of a rank's message to itself."""
    net: PerProtocol = (NET_LL, *V2_30.net["tree"][1:])
    """Time of a hop between nodes, in us, the same for rings and trees."""


_ONE_NODE = Declared(
    "us, B/s", "nccl-tests of one node (ai-dynamo/aiconfigurator: A100, H100, H200, B200, GB200)", "part"
)
_AMPERE: Annotated[MeasuredConstants, _ONE_NODE] = MeasuredConstants(
    (10.5, 13.9, 22.0), (0.76, 3.1, 6.7), 420 * GB, 0.0, 16 * MIB, 0.7, 14.5, 0.91, 750 * GB
)
"""Constants of Ampere with the least relative error, rounded."""
_HOPPER: Annotated[MeasuredConstants, _ONE_NODE] = MeasuredConstants(
    (5.2, 10.0, 16.4), (0.77, 1.9, 2.0), 800 * GB, 25.0, 16 * MIB, 0.7, 13.0, 0.89, 2500 * GB
)
"""Constants of Hopper with the least relative error, rounded; LL128's hop is NCCL's."""
_BLACKWELL: Annotated[MeasuredConstants, _ONE_NODE] = MeasuredConstants(
    (8.6, 14.0, 13.0), (1.23, 1.9, 6.2), 1160 * GB, 38.0, 64 * MIB, 0.7, 16.0, 0.93, 710 * GB
)
"""Constants of Blackwell with the least relative error, rounded; LL128 is near NCCL's own figure."""
MEASURED = (_AMPERE, _AMPERE, _HOPPER, _BLACKWELL)
"""Constants of Volta (assumed equal to Ampere), Ampere, Hopper and Blackwell."""
_CDNA: Annotated[MeasuredConstants, Declared("us, B/s", scope="part")] = _AMPERE._replace(
    base=(12.0, 12.0, 17.0),
    hop=(0.8, 0.8, 2.1),
    net=(10.5, 10.5, 25.0),
)
"""AMD: RCCL's own figures for MI300X (ROCm/rccl, src/graph/tuning.cc, model 5); copies and messages are taken to be Ampere's."""


def measured_constants(node: NodeFacts) -> MeasuredConstants:
    """Return the measured constants for the GPU architecture of a node."""
    return _CDNA if node.architecture.startswith("cdna") else MEASURED[architecture(node.architecture)]


@cache
def measured(constants: MeasuredConstants) -> Constants:
    """Return the tuner constants of the newest release, with the measured kernel and hop times of `constants`."""
    base = {**V2_30.base, "ring": constants.base, "tree": constants.base}
    switch = (0.0, 0.0, constants.nvls)
    inside = {**V2_30.nvlink, "ring": constants.hop, "tree": constants.hop, "nvls": switch, "nvls_tree": switch}
    net = {**V2_30.net, "tree": constants.net, "ring": constants.net}
    return V2_30._replace(base=base, nvlink=inside, net=net, flush=1, nvls_heads=8)


def measured_timing(
    op: str, shape: CommunicatorShape, node: NodeFacts, algorithm: str, protocol: str, size: float
) -> tuple[float, float]:
    """Return (latency in seconds without launch, bytes/s of the collective's size). protocol: LL, LL128 or Simple."""
    delay, rate = _kernel(op, shape, node, algorithm, PROTOCOLS.index(protocol), size if op in ROOTED else 0.0)
    constants = measured_constants(node)
    if algorithm == "nvls":
        delay += constants.fill * min(size, constants.bytes_in_flight * nvls(shape, node).channels / 8) / rate
    if algorithm == "tree":
        rate *= tree_correction(PROTOCOLS.index(protocol), size)
    if algorithm == "nvls_tree":
        loop = tree_bytes_in_flight(size, shape, node)
        delay += (constants.fill + shape.nodes.bit_length() - 1) * loop / rate + late_loops(size / loop, shape, node)
    return delay, rate


@lru_cache(maxsize=4096)
def _kernel(
    op: str, shape: CommunicatorShape, node: NodeFacts, algorithm: str, p: int, chain_bytes: float
) -> tuple[float, float]:
    """Return (latency in seconds, bytes/s of the collective's size) before the corrections that depend on the size.

    p: 0 LL, 1 LL128, 2 Simple. chain_bytes: bytes of a broadcast or reduce, 0 for other operations.
    """
    constants = measured_constants(node)
    case = TuningCase(op, shape, node, measured(constants), max(0.0, node.net_latency - LEAF_LATENCY))
    delay = chain(case, p, chain_bytes) if op in ROOTED and algorithm == "ring" else latency(case, algorithm, p)
    delay *= node.nccl.slowdown
    delay, rate = delay + detour(case, algorithm) + late_chunks(case, algorithm, p), bandwidth(case, algorithm, p)
    if algorithm == "ring" and p == 2 and shape.nodes == 1 and op not in ROOTED:
        rate = 1 / (1 / rate + 1 / (shape.ranks * constants.copy))
    return delay, rate


def late_chunks(case: TuningCase, algorithm: str, p: int) -> float:
    """Return the seconds that the parts of a ring wait for a NIC that is slower than NCCL's figures assume.

    A connection between nodes carries all parts but one, two at a time, and each pair waits for the NIC. NCCL's closed form
    counts one hop per node instead, which is less where nodes are few and GPUs many. Return 0 for algorithms
    other than ring, protocols other than Simple (p = 2), broadcast and reduce, and on one node.
    """
    nodes = case.shape.nodes
    if algorithm != "ring" or p != 2 or nodes == 1 or case.op in ROOTED:
        return 0.0
    passes = 2 if case.op == "all_reduce" else 1
    waits = (case.shape.ranks - 1) / CHUNKS_IN_FLIGHT - (nodes - 1)
    return passes * max(0.0, waits) * case.late


def late_loops(loops: float, shape: CommunicatorShape, node: NodeFacts) -> float:
    """Return the seconds that NVLSTree waits for a NIC that is slower than NCCL's figures assume, if it runs `loops` loops.

    Loops after the first wait only where a node passes on data of another, so not on two nodes (436 GB/s bus bandwidth in AWS's
    best runs).
    """
    late = max(0.0, node.net_latency - LEAF_LATENCY) if shape.nodes > 2 else 0.0
    return LATE_LOOPS * max(0.0, loops - 1) * late


def tree_bytes_in_flight(size: float, shape: CommunicatorShape, node: NodeFacts) -> float:
    """Return the bytes of a message of `size` bytes that NVLSTree has in flight: channels × heads × chunk.

    NVLSTree moves these bytes on one level of its trees before it starts the next batch (calcCollChunking, src/enqueue.cc).
    """
    channels, chunk = _tuned(shape, node)
    parts = channels * nvls(shape, node).channels
    for multiple, limit_kib in _SHRINK:
        if size < multiple * parts * chunk:
            chunk = min(chunk, limit_kib * KIB)
    return min(size, parts * chunk)


def _tuned(shape: CommunicatorShape, node: NodeFacts) -> tuple[int, int]:
    """Return NVLSTree's (channels, largest chunk in bytes) (ncclNvlsChannels, ncclNvlsTreeSm100Tuning: src/transport/nvls.cc)."""
    nodes, per_node, nic = shape.nodes, shape.per_node, node.nic / GB
    if node.tree_chunk is not None:
        return 16, int(node.tree_chunk)
    chunk = 64 if nodes >= 4 else 128
    if architecture(node.architecture) < 3:
        return 16, chunk * KIB
    on_switch = node.cpu != "arm"  # a PCIe switch joins GPU and NIC; Grace's own root ports stand between them
    if nodes == 2 and nic >= 48 * _NEARLY:
        small = per_node >= 16 or (per_node > 4 and on_switch and nic < 96 * _NEARLY)
        return 32, (256 if per_node <= 4 else 64 if small else 128) * KIB
    if nic >= 96 * _NEARLY:
        return (24, 256 * KIB) if per_node <= 8 else (32, (128 if per_node < 32 else 64) * KIB)
    return (24, (64 if on_switch else 128) * KIB) if nic >= 48 * _NEARLY else (32, chunk * KIB)
