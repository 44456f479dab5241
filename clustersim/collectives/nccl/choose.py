"""NCCL's choice for a collective, and the seconds that the collective takes on an idle fabric.

NCCL chooses the algorithm and protocol with the least time that its tuner expects.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl import p2p
from clustersim.collectives.nccl.constants import PROTOCOLS, V2_30, architecture, constants, tree_correction
from clustersim.collectives.nccl.measured_latency import measured, measured_constants, measured_timing
from clustersim.collectives.nccl.model import (
    ALGORITHMS,
    ROOTED,
    SIMPLE_ONLY,
    TuningCase,
    bandwidth,
    graph,
    latency,
    unavailable,
)
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.errors import InputError
from clustersim.topology.model import NodeFacts
from clustersim.units import seconds

TUNED = ("all_reduce", "all_gather", "reduce_scatter", *ROOTED)
"""Operations whose algorithm and protocol NCCL's tuner chooses."""
FILES = {name: name for name in (*ALGORITHMS, "direct")} | {"ring": "rail_ring", "tree": "rail_tree"}
"""File of clustersim/collectives/algorithms with the steps and loads of each of NCCL's algorithms."""
MESHED = ("mesh_ring", "mesh_tree")
"""Files with RCCL's rings and trees where links join every two GPUs of a node."""
OPS = (*TUNED, *p2p.OPS)
"""Operations that NCCL can run: those with a tuner, and those made of messages."""


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
    if op not in TUNED:
        raise InputError(f"NCCL's tuner knows no {op}; it chooses for {', '.join(TUNED)}")
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


@lru_cache(maxsize=4096)
def choose(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> Choice:
    """Return NCCL's choice for `op` on `size` bytes (as nccl-tests counts them) in a communicator of that shape. Cached.

    `node` has NCCL's figures of the communicator's nodes (`Topology.facts`), with the NCCL release and forced settings in
    `node.nccl`. The latency excludes the launch time. Raises InputError for an unknown operation, fewer than two ranks, or
    settings that exclude every algorithm.
    """
    if op not in OPS:
        raise InputError(f"NCCL knows no {op}; it does {', '.join(OPS)}")
    if shape.ranks < 2:
        raise InputError("a collective needs two GPUs or more; one has no peer")
    node = node.within(shape.rings)
    if op in p2p.OPS:
        delay, rate = p2p.timing(op, size, shape, node)
        protocol, channels = p2p.protocol(op, size, shape), p2p.channels(op, size, shape, node)
        return Choice("direct", protocol, channels, delay, rate, delay + size / rate)
    choices = _usable(op, size, shape, node)
    if not choices:
        raise InputError(_nothing(op, size, shape, node))
    delay, rate = measured_timing(op, shape, node, choices[0].algorithm, choices[0].protocol, size)
    return choices[0]._replace(latency_s=delay, rate_bytes_per_s=rate)


def _usable(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> list[Choice]:
    """Return the choices of algorithm and protocol that are available, sorted by the seconds that NCCL's tuner expects."""
    return sorted((row for row in tune(op, size, shape, node) if row.missing is None), key=lambda row: row.time_s)


def file_of(algorithm: str, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return the file of collectives/algorithms with the steps and loads of NCCL's `algorithm` in a communicator of that shape.

    Where links join every two GPUs of a node, rings and trees use all of them. With links for some pairs, trees load them as
    rings do.
    """
    if shape.rings is not None and shape.rings.orders and algorithm == "tree":
        return FILES["ring"]
    name = f"mesh_{algorithm}"
    meshed = node.within(shape.rings).scale_up == "mesh" and shape.even
    return name if meshed and name in MESHED else FILES[algorithm]


def collective_seconds(choice: Choice, size: float, launch: float | None = None) -> float:
    """Return the seconds of a collective of `size` bytes, if links of the fabric do not limit the rate.

    `launch` is the launch time in seconds that is added to the choice's latency; None adds nothing.
    """
    return (launch or 0.0) + choice.latency_s + size / choice.rate_bytes_per_s


def why(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return a sentence with the reason for NCCL's choice. Arguments and errors are those of `choose`."""
    choose(op, size, shape, node)
    if op in p2p.OPS:
        path = f"messages go directly, over {'NVLink or PCIe' if shape.nodes == 1 else 'the NIC'}; no tuner decides"
        if not shape.busiest or op == "send":
            return path
        return f"{path}; the busiest GPU has {shape.busiest.row_share * shape.ranks:.3g} times the mean of the rows"
    choices = _usable(op, size, shape, node)
    best = f"{choices[0].algorithm}/{choices[0].protocol} is expected to take {seconds(choices[0].time_s)}"
    if len(choices) == 1:
        return f"{best}, and is the only one left"
    return f"{best}, {choices[1].algorithm}/{choices[1].protocol} {seconds(choices[1].time_s)}"


def _nothing(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return a sentence with the reason why no algorithm and protocol of NCCL can run the collective, and the remedy."""
    algo, proto = node.nccl.algo, node.nccl.proto
    forced = " and ".join(filter(None, (algo, proto))) or "anything"
    rows = [row for row in tune(op, size, shape, node) if row.algorithm == algo or (not algo and row.protocol == proto)]
    reasons = [row.missing for row in rows if row.missing and not row.missing.startswith(("nccl.algo ", "nccl.proto "))]
    # reasons that hold for every protocol come before reasons of a single protocol
    reason = min(reasons, key=lambda text: text == SIMPLE_ONLY, default="nothing fits both")
    return f"NCCL cannot do {op} with {forced} here ({reason}); drop nccl.algo or nccl.proto"
