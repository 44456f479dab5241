"""Which algorithm and protocol NCCL takes for a collective: the least of the times that its tuner expects."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl.constants import PROTOCOLS, V2_30, Constants, architecture, constants, tree_correction
from clustersim.collectives.nccl.measured_latency import measured, measured_constants
from clustersim.collectives.nccl.model import ALGORITHMS, ROOTED, TuningCase, bandwidth, graph, latency, unavailable
from clustersim.collectives.nccl.shape import Shape
from clustersim.errors import InputError
from clustersim.topology.model import NodeFacts

OPS = ("all_reduce", "all_gather", "reduce_scatter", *ROOTED)


class Choice(NamedTuple):
    """One thing that NCCL can do with a collective: on an idle fabric it takes latency_s + size / rate_bytes_per_s."""

    algorithm: str
    """Such as `ring`."""
    protocol: str
    """LL, LL128 or Simple."""
    channels: int
    """Copies of the algorithm side by side."""
    latency_s: float
    """Seconds before and between the bytes, the launch of the kernel included."""
    rate_bytes_per_s: float
    """Bytes of the collective's size a second as far as NCCL, GPUs and NICs go; links of the fabric may give less."""
    time_s: float
    """Seconds that the tuner expects, by which NCCL chooses."""
    missing: str | None = None
    """Why it is not to be had; None: it is."""


@lru_cache(maxsize=4096)
def _table(op: str, shape: Shape, node: NodeFacts) -> tuple[Choice, ...]:
    """Return all choices for no bytes; rate before corrections that depend on the size."""
    case = TuningCase(op, shape, node, _constants(node), node.plugin_latency)
    return tuple(_choice(case, algorithm, p) for algorithm in ALGORITHMS for p in range(len(PROTOCOLS)))


def _constants(node: NodeFacts) -> Constants:
    """Return the tuner's figures of the library: of NCCL's release, of RCCL on AMD."""
    release = constants(node.nccl.version)
    return measured(measured_constants(node)) if node.architecture.startswith("cdna") else release


def _choice(case: TuningCase, algorithm: str, p: int) -> Choice:
    missing = unavailable(case, algorithm, p) or _unwanted(case, algorithm, p)
    if missing:
        return Choice(algorithm, PROTOCOLS[p], 0, 0.0, 0.0, float("inf"), missing)
    rate, delay = bandwidth(case, algorithm, p), latency(case, algorithm, p)
    return Choice(algorithm, PROTOCOLS[p], graph(case, algorithm).launched, delay, rate, delay + 1 / rate)


def _unwanted(case: TuningCase, algorithm: str, p: int) -> str | None:
    settings = case.node.nccl
    if settings.algo not in (None, algorithm):
        return f"nccl.algo is {settings.algo}"
    return f"nccl.proto is {settings.proto}" if settings.proto not in (None, PROTOCOLS[p]) else None


def tune(op: str, size: float, shape: Shape, node: NodeFacts) -> tuple[Choice, ...]:
    """Return NCCL's expected time of each algorithm and protocol for `op` on `size` bytes, as nccl-tests counts them.

    `node.nccl` has the release and what is forced. Raises InputError for an operation that has no tuner.
    """
    if op not in OPS:
        raise InputError(f"NCCL's tuner knows no {op}; it chooses for {', '.join(OPS)}")
    if shape.ranks < 2:
        return ()
    return tuple(_sized(op, row, size, shape, node) for row in _table(op, shape, node))


def _corrected(algorithm: str, node: NodeFacts) -> bool:
    """Say whether the tuner takes TREE_CORRECTION off: for trees, and since 2.30 for NVLSTree of Blackwell on x86."""
    if algorithm != "nvls_tree":
        return algorithm == "tree"
    newest = constants(node.nccl.version) is V2_30
    return newest and architecture(node.architecture) >= 3 and node.cpu != "arm"


def _sized(op: str, row: Choice, size: float, shape: Shape, node: NodeFacts) -> Choice:
    """Return a choice for `size` bytes, with what tuning.cc corrects when a collective is launched."""
    if row.missing:
        return row
    rate, delay = row.rate_bytes_per_s, row.latency_s
    p = PROTOCOLS.index(row.protocol)
    if _corrected(row.algorithm, node):
        rate *= tree_correction(p, size)
    if row.algorithm == "ring" and p == 2 and shape.nodes > 1 and op == "all_reduce":
        plateau = size >= 64 * row.channels * shape.ranks
        delay *= (1.4 if architecture(node.architecture) else 1.9) if plateau else 1.0
    return row._replace(time_s=delay + size / rate, latency_s=delay, rate_bytes_per_s=rate)
