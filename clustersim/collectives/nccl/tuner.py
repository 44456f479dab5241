"""NCCL's choice of algorithm and protocol: the one with the least time that its tuner expects."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl.constants import PROTOCOLS, V2_30, architecture, constants, tree_correction
from clustersim.collectives.nccl.measured_latency import measured, measured_constants
from clustersim.collectives.nccl.model import ALGORITHMS, ROOTED, TuningCase, bandwidth, graph, latency, unavailable
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.errors import InputError
from clustersim.topology.model import NodeFacts

OPS = ("all_reduce", "all_gather", "reduce_scatter", *ROOTED)
"""Operations whose algorithm and protocol NCCL's tuner chooses."""


class Choice(NamedTuple):
    """An algorithm and protocol of NCCL for a collective. On an idle fabric it takes latency_s + size / rate_bytes_per_s."""

    algorithm: str
    """Name of the algorithm, such as `ring`."""
    protocol: str
    """Protocol LL, LL128 or Simple; `-` for an algorithm outside NCCL."""
    channels: int
    """Number of channels that the kernel launches, or that one message uses; 0 if not available or outside NCCL."""
    latency_s: float
    """Seconds of a collective without bytes, without the launch time `nccl.launch`."""
    rate_bytes_per_s: float
    """Bytes/s of the collective's size that NCCL, GPUs and NICs allow; links of the fabric may allow less."""
    time_s: float
    """Seconds that the tuner expects and NCCL chooses by."""
    missing: str | None = None
    """Reason why the choice is not available; None if it is."""


@lru_cache(maxsize=4096)
def _table(op: str, shape: CommunicatorShape, node: NodeFacts) -> tuple[Choice, ...]:
    """Return a choice for each algorithm and protocol, available or not, without the corrections that depend on the size."""
    release = constants(node.nccl.version)  # RCCL, on AMD, has figures of its own
    figures = measured(measured_constants(node)) if node.architecture.startswith("cdna") else release
    case = TuningCase(op, shape, node, figures, node.plugin_latency)
    return tuple(_choice(case, algorithm, p) for algorithm in ALGORITHMS for p in range(len(PROTOCOLS)))


def _choice(case: TuningCase, algorithm: str, p: int) -> Choice:
    """Return the choice of an algorithm and protocol number (0 LL, 1 LL128, 2 Simple), with infinite time if not available."""
    missing = unavailable(case, algorithm, p) or _unwanted(case, algorithm, p)
    if missing:
        return Choice(algorithm, PROTOCOLS[p], 0, 0.0, 0.0, float("inf"), missing)
    rate, delay = bandwidth(case, algorithm, p), latency(case, algorithm, p)
    return Choice(algorithm, PROTOCOLS[p], graph(case, algorithm).launched, delay, rate, delay + 1 / rate)


def _unwanted(case: TuningCase, algorithm: str, p: int) -> str | None:
    """Return the reason why `nccl.algo` or `nccl.proto` excludes an algorithm and protocol number, or None."""
    settings = case.node.nccl
    if settings.algo not in (None, algorithm):
        return f"nccl.algo is {settings.algo}"
    return f"nccl.proto is {settings.proto}" if settings.proto not in (None, PROTOCOLS[p]) else None


def tune(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> tuple[Choice, ...]:
    """Return a choice for each algorithm and protocol for `op` on `size` bytes (as nccl-tests counts them), available or not.

    `node.nccl` has the release and forced settings. Fewer than two ranks have no choices. Raises InputError for an operation
    without a tuner.
    """
    if op not in OPS:
        raise InputError(f"NCCL's tuner knows no {op}; it chooses for {', '.join(OPS)}")
    if shape.ranks < 2:
        return ()
    node = node.within(shape.rings)
    return tuple(_sized(op, row, size, shape, node) for row in _table(op, shape, node))


def _corrected(algorithm: str, node: NodeFacts) -> bool:
    """Return whether the tuner applies TREE_CORRECTION: to trees, and since 2.30 to NVLSTree on Blackwell with x86 hosts."""
    if algorithm != "nvls_tree":
        return algorithm == "tree"
    newest = constants(node.nccl.version) is V2_30
    return newest and architecture(node.architecture) >= 3 and node.cpu != "arm"


def _sized(op: str, row: Choice, size: float, shape: CommunicatorShape, node: NodeFacts) -> Choice:
    """Return a choice for `size` bytes, with the corrections that tuning.cc makes when a collective is launched."""
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
