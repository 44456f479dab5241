"""NCCL's choice for a collective, and the seconds that the collective takes on an idle fabric."""

from __future__ import annotations

from functools import lru_cache

from clustersim.collectives.nccl import p2p
from clustersim.collectives.nccl.measured_latency import measured_timing
from clustersim.collectives.nccl.model import ALGORITHMS, SIMPLE_ONLY
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.collectives.nccl.tuner import OPS as TUNED
from clustersim.collectives.nccl.tuner import Choice, tune
from clustersim.errors import InputError
from clustersim.topology.model import NodeFacts
from clustersim.units import seconds

FILES = {name: name for name in (*ALGORITHMS, "direct")} | {"ring": "rail_ring", "tree": "rail_tree"}
"""File of clustersim/collectives/algorithms with the steps and loads of each of NCCL's algorithms."""
MESHED = ("mesh_ring", "mesh_tree")
OPS = (*TUNED, *p2p.OPS)


@lru_cache(maxsize=4096)
def choose(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> Choice:
    """Return NCCL's choice for `op` on `size` bytes (as nccl-tests counts them) in a communicator of that shape. Cached.

    `node.nccl` has the NCCL release and forced settings; the latency leaves out `node.launch`. Raises InputError for an unknown
    operation, fewer than two ranks, or settings that exclude every algorithm.
    """
    if op not in OPS:
        raise InputError(f"NCCL knows no {op}; it does {', '.join(OPS)}")
    if shape.ranks < 2:
        raise InputError("a collective needs two GPUs or more; one has no peer")
    node = node.within(shape.joined)
    if op in p2p.OPS:
        return _messages(op, size, shape, node)
    found = _usable(op, size, shape, node)
    if not found:
        raise InputError(_nothing(op, size, shape, node))
    delay, rate = measured_timing(op, shape, node, found[0].algorithm, found[0].protocol, size)
    return found[0]._replace(latency_s=delay, rate_bytes_per_s=rate)


def _usable(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> list[Choice]:
    """Return the choices that are available to NCCL, sorted by the seconds that its tuner expects, the fastest first."""
    return sorted((row for row in tune(op, size, shape, node) if row.missing is None), key=lambda row: row.time_s)


def file_of(algorithm: str, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return the file of collectives/algorithms with the loads of one of NCCL's algorithms, for the shape's group.

    Where links join every two GPUs of a node, rings and trees use all of them. With links for some pairs, trees load them as
    rings do.
    """
    if shape.joined is not None and shape.joined.orders and algorithm == "tree":
        return FILES["ring"]
    name = f"mesh_{algorithm}"
    meshed = node.within(shape.joined).scale_up == "mesh" and shape.even
    return name if meshed and name in MESHED else FILES[algorithm]


def collective_seconds(choice: Choice, size: float, launch: float | None = None) -> float:
    """Return the seconds of `size` bytes on an idle fabric that provides the rate that NCCL can use.

    `launch` replaces the launch time in the choice's latency if it is not None.
    """
    return (launch or 0.0) + choice.latency_s + size / choice.rate_bytes_per_s


def _messages(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> Choice:
    """Return the choice for point-to-point messages, which no tuner decides."""
    delay, rate = p2p.timing(op, size, shape, node)
    return Choice(
        "direct", p2p.protocol(op, size, shape), p2p.channels(op, size, shape, node), delay, rate, delay + size / rate
    )


def why(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return a sentence with the reason for NCCL's choice (`choose`). Raises InputError for what NCCL cannot do."""
    choose(op, size, shape, node)
    if op in p2p.OPS:
        said = f"messages go directly, over {'NVLink or PCIe' if shape.nodes == 1 else 'the NIC'}; no tuner decides"
        if not shape.busiest or op == "send":
            return said
        return f"{said}; the busiest GPU has {shape.busiest.most * shape.ranks:.3g} times the mean of the rows"
    found = _usable(op, size, shape, node)
    best = f"{found[0].algorithm}/{found[0].protocol} is expected to take {seconds(found[0].time_s)}"
    if len(found) == 1:
        return f"{best}, and is the only one left"
    return f"{best}, {found[1].algorithm}/{found[1].protocol} {seconds(found[1].time_s)}"


def _nothing(op: str, size: float, shape: CommunicatorShape, node: NodeFacts) -> str:
    """Return a sentence: why no algorithm and protocol of NCCL supports a collective here, and the remedy."""
    algo, proto = node.nccl.algo, node.nccl.proto
    asked = " and ".join(filter(None, (algo, proto))) or "anything"
    rows = [row for row in tune(op, size, shape, node) if row.algorithm == algo or (not algo and row.protocol == proto)]
    reasons = [row.missing for row in rows if row.missing and not row.missing.startswith(("nccl.algo ", "nccl.proto "))]
    # reasons that hold for every protocol come before reasons of a single protocol
    reason = min(reasons, key=lambda said: said == SIMPLE_ONLY, default="nothing fits both")
    return f"NCCL cannot do {op} with {asked} here ({reason}); drop nccl.algo or nccl.proto"
