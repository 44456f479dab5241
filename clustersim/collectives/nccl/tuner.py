"""Which algorithm and protocol NCCL takes for a collective, and the time that it then expects."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl.constants import PROTOCOLS, TREE_CORRECTION
from clustersim.collectives.nccl.model import ALGORITHMS, ROOTED, Case, bandwidth, graph, latency, unavailable
from clustersim.collectives.nccl.shape import Shape
from clustersim.errors import InputError
from clustersim.topology.model import NcclFacts, NodeFacts

OPS = ("all_reduce", "all_gather", "reduce_scatter", *ROOTED)
FILES = {
    "ring": "rail_ring",
    "tree": "chain_tree",
    "nvls": "nvls",
    "nvls_tree": "nvls_tree",
    "collnet_direct": "collnet_direct",
    "collnet_chain": "collnet_chain",
    "pat": "pat",
    "direct": "direct",
}
"""NCCL's algorithm → the file of clustersim/collectives that has its steps and loads."""


class Estimate(NamedTuple):
    """What NCCL expects of one algorithm and protocol; `missing` says why it cannot be used (None: it can)."""

    algorithm: str
    protocol: str
    time_s: float
    latency_s: float
    rate_bytes_per_s: float
    channels: int
    missing: str | None


@lru_cache(maxsize=4096)
def _table(case: Case) -> tuple[Estimate, ...]:
    """Return all estimates for no bytes at all; rate before corrections that depend on the size."""
    rows = []
    for algorithm in ALGORITHMS:
        for p, protocol in enumerate(PROTOCOLS):
            missing = unavailable(case, algorithm, p)
            if missing:
                rows.append(Estimate(algorithm, protocol, float("inf"), 0.0, 0.0, 0, missing))
                continue
            rate, delay = bandwidth(case, algorithm, p), latency(case, algorithm, p)
            rows.append(Estimate(algorithm, protocol, delay, delay, rate, graph(case, algorithm).launched, None))
    return tuple(rows)


def tune(op: str, size: float, shape: Shape, node: NodeFacts, settings: NcclFacts | None = None) -> tuple[Estimate, ...]:
    """Return what NCCL expects of each algorithm and protocol for `op` on `size` bytes (as nccl-tests counts them).

    settings: overrides those of the cluster. Raises InputError for an operation that has no tuner.
    """
    settings = settings or node.nccl
    if op not in OPS:
        raise InputError(f"NCCL's tuner knows no {op}; it chooses for {', '.join(OPS)}")
    if shape.ranks < 2:
        return ()
    case = Case(op, shape, node._replace(nccl=settings) if settings != node.nccl else node, settings.version)
    return tuple(_sized(case, row, size) for row in _table(case))


def _sized(case: Case, row: Estimate, size: float) -> Estimate:
    if row.missing:
        return row
    rate, delay = row.rate_bytes_per_s, row.latency_s
    p = PROTOCOLS.index(row.protocol)
    log = (int(size) >> 6).bit_length() - 1
    if row.algorithm == "tree" and 0 <= log < 24:
        rate *= TREE_CORRECTION[p][log]
    if row.algorithm == "ring" and p == 2 and case.shape.nodes > 1 and case.op == "all_reduce":
        plateau = size / (row.channels * case.shape.ranks) >= 64
        delay *= (1.4 if case.arch >= 1 else 1.9) if plateau else 1.0
    return row._replace(time_s=delay + size / rate, latency_s=delay, rate_bytes_per_s=rate)


class Choice(NamedTuple):
    """What NCCL does for a collective: `file` of clustersim/collectives has its loads.

    latency_s: seconds before and between the bytes. rate_bytes_per_s: bytes of the collective's size a second at most, as
    far as NCCL is concerned; links of the fabric may give less. why: a sentence.
    """

    algorithm: str
    protocol: str
    channels: int
    latency_s: float
    rate_bytes_per_s: float
    why: str
    file: str

    @property
    def group_of(self) -> str:
        """The file of clustersim/collectives that has the loads."""
        return self.file
