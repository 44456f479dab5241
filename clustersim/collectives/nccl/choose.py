"""What NCCL does with a collective, and how long that takes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from clustersim.collectives.nccl import p2p
from clustersim.collectives.nccl.measured_latency import paced
from clustersim.collectives.nccl.model import SIMPLE_ONLY
from clustersim.collectives.nccl.shape import Shape
from clustersim.collectives.nccl.tuner import OPS as TUNED
from clustersim.collectives.nccl.tuner import Estimate, tune
from clustersim.errors import InputError
from clustersim.topology.model import NodeFacts
from clustersim.units import seconds as spelt

FILES = {
    "ring": "rail_ring",
    "tree": "rail_tree",
    "nvls": "nvls",
    "nvls_tree": "nvls_tree",
    "collnet_direct": "collnet_direct",
    "collnet_chain": "collnet_chain",
    "pat": "pat",
    "direct": "direct",
}
"""NCCL's algorithm → the file of clustersim/collectives that has its steps and its loads on links."""
MESHED = ("mesh_ring", "mesh_tree")
OPS = (*TUNED, *p2p.OPS)


class Choice(NamedTuple):
    """What NCCL does with one collective.

    latency_s: seconds before and between the bytes, the launch of the kernel included. rate_bytes_per_s: bytes of the
    collective's size a second as far as NCCL, GPUs and NICs go; links of the fabric may give less. On an idle fabric that
    gives no less it takes latency_s + size / rate_bytes_per_s. file: the module of clustersim/collectives with the loads,
    for the shape's group. why: a sentence.
    """

    algorithm: str
    protocol: str
    channels: int
    latency_s: float
    rate_bytes_per_s: float
    file: str
    why: str


@lru_cache(maxsize=4096)
def choose(op: str, size: float, shape: Shape, node: NodeFacts) -> Choice:
    """Return what NCCL does with `op` on `size` bytes, as nccl-tests counts them, in a communicator of that shape.

    `node.nccl` has the release and what is forced; its `launch` is not in the latency. Raises InputError for an unknown
    operation, fewer than two ranks, or settings under which nothing is left.
    """
    if op not in OPS:
        raise InputError(f"NCCL knows no {op}; it does {', '.join(OPS)}")
    if shape.ranks < 2:
        raise InputError("a collective needs two GPUs or more; one has nobody to send to")
    if op in p2p.OPS:
        return _messages(op, size, shape, node)
    found = sorted((row for row in tune(op, size, shape, node) if row.missing is None), key=lambda row: row.time_s)
    if not found:
        raise InputError(_nothing(op, size, shape, node))
    best = found[0]
    delay, rate = paced(op, shape, node, best.algorithm, best.protocol, size)
    file = _file(op, best.algorithm, shape, node)
    return Choice(best.algorithm, best.protocol, best.channels, delay, rate, file, _why(found))


def _file(op: str, algorithm: str, shape: Shape, node: NodeFacts) -> str:
    """Return the file with the loads: where links join every two GPUs of a node, rings and trees use them all."""
    name = f"mesh_{algorithm}"
    return name if node.scale_up == "mesh" and shape.even and name in MESHED else FILES[algorithm]


def candidates(op: str, shape: Shape, node: NodeFacts) -> tuple[str, ...]:
    """Return the files of clustersim/collectives whose loads `op` may need, whatever its size."""
    if op in p2p.OPS:
        return (FILES["direct"],)
    usable = (row.algorithm for row in tune(op, 1, shape, node) if row.missing is None)
    return tuple(dict.fromkeys(_file(op, name, shape, node) for name in usable))


def collective_seconds(choice: Choice, size: float, launch: float | None = None) -> float:
    """Return the time of `size` bytes on an idle fabric that gives what NCCL asks for."""
    return (launch or 0.0) + choice.latency_s + size / choice.rate_bytes_per_s


def _messages(op: str, size: float, shape: Shape, node: NodeFacts) -> Choice:
    delay, rate = p2p.timing(op, size, shape, node)
    protocol = p2p.protocol(op, size, shape)
    why = f"messages go directly, over {'NVLink or PCIe' if shape.nodes == 1 else 'the NIC'}; no tuner decides"
    if shape.busiest and op != "send":
        why += f"; the busiest GPU has {shape.busiest.most * shape.ranks:.3g} times the mean of the rows"
    return Choice("direct", protocol, p2p.channels(shape, node), delay, rate, FILES["direct"], why)


def _why(found: list[Estimate]) -> str:
    best = f"{found[0].algorithm}/{found[0].protocol} is expected to take {spelt(found[0].time_s)}"
    if len(found) == 1:
        return f"{best}, and is the only one left"
    return f"{best}, {found[1].algorithm}/{found[1].protocol} {spelt(found[1].time_s)}"


def _nothing(op: str, size: float, shape: Shape, node: NodeFacts) -> str:
    algo, proto = node.nccl.algo, node.nccl.proto
    asked = " and ".join(filter(None, (algo, proto))) or "anything"
    rows = [row for row in tune(op, size, shape, node) if row.algorithm == algo or (not algo and row.protocol == proto)]
    reasons = [row.missing for row in rows if row.missing and not row.missing.startswith(("nccl.algo ", "nccl.proto "))]
    # what no protocol mends comes before a protocol that the algorithm lacks
    reason = min(reasons, key=lambda said: said == SIMPLE_ONLY, default="nothing fits both")
    return f"NCCL cannot do {op} with {asked} here ({reason}); drop nccl.algo or nccl.proto"
