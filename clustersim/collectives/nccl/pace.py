"""How long kernels take in fact: the tuner's closed forms with the constants of real GPUs in their place.

NCCL's tuner has one set of latencies for all GPUs, since it only has to rank algorithms. The forms hold, the constants do not: on
an A100 a hop of ring/Simple takes twice what the table says. The constants below were chosen on one source, the nccl-tests
tables of one node in ai-dynamo/aiconfigurator (A100, H100, H200, B200, GB200; NCCL 2.27.3 and 2.29.2; 1 KiB to 512 MiB),
by least relative error, and are rounded. Three are not: LL128 of Blackwell, for which that source has four rows, is near NCCL's
own figure; TREE_CHUNK and `flush` were settled with runs of several nodes in view (docs/collectives.md says which). What is not
here (hops between nodes, CollNet, PAT, efficiency of NVLS) is NCCL's newest table for every release: a release changes the
choice, not the wire.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl.constants import GB, PROTOCOLS, V2_30, Constants, Row, architecture
from clustersim.collectives.nccl.graphs import nvls
from clustersim.collectives.nccl.latency import chain, latency
from clustersim.collectives.nccl.model import ROOTED, Case, bandwidth
from clustersim.collectives.nccl.shape import Shape
from clustersim.topology.model import NodeFacts

MIB = 1 << 20
TREE_CHUNK = 8 * MIB
"""Bytes that NVLSTree has under way on one level of its trees: 16 channels × 8 heads × 64 KiB, checked on NVIDIA's curves."""


class Pace(NamedTuple):
    """One architecture. base, hop: us of a ring or tree kernel and of a hop inside a node, by protocol (LL, LL128, Simple).

    copy: bytes/s at which a rank adds or copies its own part in a ring, in turn with its sends. nvls: us of an NVLS kernel.
    loop: bytes that eight heads of NVLS have under way at once, and `fill` the part of the time for these that passes before
    the pipeline is full and after it runs empty. p2p, spread, own: messages: us of Simple, part of NVLink's rate that many at
    once reach, and bytes/s of a rank's message to itself.
    """

    base: Row
    hop: Row
    copy: float
    nvls: float
    loop: float
    fill: float
    p2p: float
    spread: float
    own: float


_AMPERE = Pace((10.5, 13.9, 22.0), (0.76, 3.1, 6.7), 420 * GB, 0.0, 16 * MIB, 0.7, 14.5, 0.91, 750 * GB)
_HOPPER = Pace((5.2, 22.0, 16.4), (0.77, 0.1, 2.0), 800 * GB, 25.0, 16 * MIB, 0.7, 13.0, 0.89, 2500 * GB)
_BLACKWELL = Pace((8.6, 14.0, 13.0), (1.23, 1.9, 6.2), 1160 * GB, 38.0, 64 * MIB, 0.7, 16.0, 0.93, 710 * GB)
PACES = (_AMPERE, _AMPERE, _HOPPER, _BLACKWELL)
"""Volta (taken to be like Ampere), Ampere, Hopper, Blackwell."""


@cache
def measured(arch: int) -> Constants:
    """Return the newest release's constants with the kernels and hops of an architecture in their place."""
    pace = PACES[arch]
    base = {**V2_30.base, "ring": pace.base, "tree": pace.base}
    switch = (0.0, 0.0, pace.nvls)
    inside = {**V2_30.nvlink, "ring": pace.hop, "tree": pace.hop, "nvls": switch, "nvls_tree": switch}
    return V2_30._replace(base=base, nvlink=inside, flush=1)


def paced(op: str, shape: Shape, node: NodeFacts, algorithm: str, protocol: str, size: float) -> tuple[float, float]:
    """Return seconds before and between the bytes, and bytes/s, of `size` bytes by an algorithm with a protocol."""
    delay, rate = _kernel(op, shape, node, algorithm, PROTOCOLS.index(protocol))
    if algorithm in ("nvls", "nvls_tree"):
        pace = PACES[architecture(node.architecture)]
        levels = shape.nodes.bit_length() - 1 if algorithm == "nvls_tree" else 0
        delay += (
            pace.fill * min(size, pace.loop * nvls(shape, node).channels / 8) + levels * min(size, TREE_CHUNK)
        ) / rate
    return delay, rate


@lru_cache(maxsize=4096)
def _kernel(op: str, shape: Shape, node: NodeFacts, algorithm: str, p: int) -> tuple[float, float]:
    arch = architecture(node.architecture)
    case = Case(op, shape, node, measured(arch))
    delay = chain(case, p) if op in ROOTED and algorithm == "ring" else latency(case, algorithm, p)
    rate = bandwidth(case, algorithm, p)
    if algorithm == "ring" and p == 2 and shape.nodes == 1 and op not in ROOTED:
        rate = 1 / (1 / rate + 1 / (shape.ranks * PACES[arch].copy))
    return delay, rate
