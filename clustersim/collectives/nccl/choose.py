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
"""Files with RCCL's rings and trees where links join every two GPUs of a node."""
OPS = (*TUNED, *p2p.OPS)
"""Operations that NCCL can run: those with a tuner, and those made of messages."""


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
