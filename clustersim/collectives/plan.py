"""How a collective runs: one plan for each distinct collective and shape of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from clustersim.collectives.model import AllPairs, Group, Phase, phases, uniform
from clustersim.collectives.nccl.choose import choose, collective_seconds, file_of
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.config.evidence import Declared
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

NCCL = "nccl"
"""Name of the algorithm that means NCCL's own choice."""
MESSAGES = frozenset({"send", "ring_exchange"})
"""Operations that are messages between two ranks and have no algorithm."""
CALLS: Mapping[str, float] = {"hybridep": 144e-6}
"""Seconds of overhead per call by algorithm, for routing tables, copies and launches. HybridEP through PyTorch takes 123 to 162
us longer than its kernels on 8 B200 and 8 GB200 (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md)."""
SMS: Mapping[str, int] = {"deepep": 20, "hybridep": 32}
"""SMs that an algorithm occupies (deepseek-ai/DeepEP, Buffer.num_sms; Megatron-Bridge, scripts/performance/utils/overrides.py:
moe_hybridep_num_sms)."""
BUFFERED: Annotated[int, Declared()] = 3
"""Bytes of GPU memory traffic per byte received by NCCL's Simple protocol: the sender writes to a buffer of the receiver, who
reads it and writes the result (src/device/prims_simple.h); a reduction also reads its own operand."""


def bus_factor(op: str, n: int) -> float:
    """Return busbw / algbw: the bytes that a GPU receives per byte of the collective's size (nccl-tests, doc/PERFORMANCE.md)."""
    ring = (n - 1) / n
    return {"all_reduce": 2 * ring}.get(op, 1.0 if op in MESSAGES or op in ("broadcast", "reduce") else ring)


class CollectivePlan(NamedTuple):
    """Algorithm, protocol, latency and rate of a collective, and the phases of its traffic."""

    algorithm: str
    """File of collectives/algorithms; empty for a message."""
    protocol: str
    """NCCL's protocol LL, LL128 or Simple; empty for an algorithm that NCCL does not have."""
    levels: tuple[int, ...]
    """Fan-outs of the groups from the node outwards, as the phases use them."""
    sizes: tuple[int, ...]
    """Number of positions of each node, where these differ, as in Group."""
    latency: float | None
    """Seconds before bytes move, launch included. None: the launch plus the rounds of each phase times its slowest hop."""
    rate: float
    """Largest bytes/s of the collective's size that the protocol reaches."""
    phases: tuple[Phase | AllPairs, ...]
    """Phases in order; none for a single rank."""
    channels: int = 0
    """NCCL's channels, or thread blocks of another library, each of which occupies an SM; 0 if unknown."""


def plan(
    topology: Topology, algorithm: str, kinds: Sequence[CommunicatorShape], group: Group, collective: Collective
) -> CollectivePlan:
    """Return the plan of a collective by `algorithm`: its phases, latency, rate and channels in groups shaped like `group`.

    `kinds` are the distinct `nccl.shape.shapes` of the groups, used only for NCCL; for messages, the shapes of the communicators
    that carry them. If groups differ in layout, NCCL's choice is the one of the group with the longest time. Raises InputError
    for an unsupported operation or forced settings that NCCL cannot use, UnknownNameError for an unknown algorithm.
    """
    op = collective.op
    if op in MESSAGES:
        return _messages(topology, algorithm, kinds, group, collective)
    if algorithm != NCCL:
        parts, latency, blocks = _phases(algorithm, op, group), CALLS.get(algorithm), SMS.get(algorithm, 0)
        return CollectivePlan(algorithm, "", group.levels, (), latency, float("inf"), parts, blocks)
    launch = topology.node.nccl.launch or 0.0
    choices = [(kind, choose(op, collective.size, kind, topology.facts(kind.types))) for kind in kinds]
    kind, choice = max(choices, key=lambda row: collective_seconds(row[1], collective.size))
    file = file_of(choice.algorithm, kind, topology.facts(kind.types))
    levels = kind.group.levels
    sizes = kind.sizes if all(other.sizes == kind.sizes for other in kinds) else ()
    parts = _phases(file, op, group._replace(levels=levels, sizes=sizes, rings=kind.group.rings))
    rate, latency = choice.rate_bytes_per_s, launch + choice.latency_s
    return CollectivePlan(file, choice.protocol, levels, sizes, latency, rate, parts, choice.channels)


def _messages(
    topology: Topology, algorithm: str, kinds: Sequence[CommunicatorShape], group: Group, collective: Collective
) -> CollectivePlan:
    """Return NCCL's plan of a message, or of a ring exchange, which is n - 1 messages in sequence. Arguments as in `plan`."""
    first = np.zeros(1, np.int64)
    message = Phase(1, first, first + 1, np.ones(1))  # from position 0 to position 1
    parts, rounds = ((message,), 1) if collective.op == "send" else (ring_exchange(group.n), group.n - 1)
    if not rounds:
        return CollectivePlan(algorithm, "", group.levels, (), 0.0, float("inf"), parts)
    size = collective.size / rounds
    choices = [choose("send", size, kind, topology.facts(kind.types)) for kind in kinds]
    slowest = max(choices, key=lambda choice: collective_seconds(choice, size))
    latency, rate = rounds * ((topology.node.nccl.launch or 0.0) + slowest.latency_s), slowest.rate_bytes_per_s
    return CollectivePlan(algorithm, slowest.protocol, group.levels, (), latency, rate, parts, slowest.channels)


def _phases(algorithm: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the phases of an algorithm file; none for a group of one rank."""
    return phases(algorithm, op, group) if group.n > 1 else ()


def ring_exchange(n: int) -> tuple[Phase, ...]:
    """Return one phase in which each of `n` positions sends its bytes to the next position n - 1 times; none for n = 1."""
    ranks = np.arange(n, dtype=np.int64)
    return (uniform(n - 1, ranks, np.roll(ranks, -1), 1.0),) if n > 1 else ()
