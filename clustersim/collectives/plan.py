"""How a collective is carried, planned by one call for each distinct collective and shape of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from clustersim.collectives.model import AllPairs, Group, Phase, phases, uniform
from clustersim.collectives.nccl.choose import choose, collective_seconds, file_of
from clustersim.collectives.nccl.shape import Shape
from clustersim.config.evidence import Declared
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

NCCL = "nccl"
"""The algorithm that stands for what NCCL's tuner would choose."""
MESSAGES = frozenset({"send", "ring_exchange"})
"""What is no collective: messages between two ranks, which no algorithm carries."""

CALLS: Mapping[str, float] = {"hybridep": 144e-6}
"""Seconds of a call besides what its bytes take, by algorithm: notes of who sends what where, copies, launches. HybridEP's times
through PyTorch over those of its kernels alone, 123 to 162 us on 8 B200 and 8 GB200 (deepseek-ai/DeepEP, branch hybrid-ep,
docs/README_Hybrid-EP.md)."""
SMS: Mapping[str, int] = {"deepep": 20, "hybridep": 32}
"""SMs that an algorithm holds (deepseek-ai/DeepEP, Buffer.num_sms; Megatron-Bridge, scripts/performance/utils/overrides.py:
moe_hybridep_num_sms)."""

BUFFERED: Annotated[int, Declared()] = 3
"""Bytes of memory for each that a GPU receives by NCCL's Simple protocol: the sender writes it to a buffer of the receiver, who
reads it, and writes it (src/device/prims_simple.h); a reduction reads what it is added to."""


def bus_factor(op: str, n: int) -> float:
    """Return busbw over algbw, the bytes that a GPU receives for each of its size (nccl-tests, doc/PERFORMANCE.md)."""
    ring = (n - 1) / n
    return {"all_reduce": 2 * ring}.get(op, 1.0 if op in MESSAGES or op in ("broadcast", "reduce") else ring)


class CollectivePlan(NamedTuple):
    """What carries a collective, and the phases in which it does."""

    algorithm: str
    """A file of collectives/algorithms/; empty for a message."""
    protocol: str
    """LL, LL128 or Simple of NCCL; empty for an algorithm that NCCL does not have."""
    levels: tuple[int, ...]
    """Fan-outs of the groups from the node outwards, as the phases take them."""
    sizes: tuple[int, ...]
    """Positions of each node, where these differ, as in Group."""
    latency: float | None
    """Seconds before the bytes move, launch included; None: the launch, and the rounds of each phase times its slowest hop."""
    rate: float
    """Bytes/s of the collective's size that the protocol reaches at most."""
    phases: tuple[Phase | AllPairs, ...]
    """One after the other; none for a single rank."""
    channels: int = 0
    """NCCL's channels, or blocks of another library, each of which holds an SM; 0 where it chooses none."""


def plan(
    topology: Topology, algorithm: str, kinds: Sequence[Shape], group: Group, collective: Collective
) -> CollectivePlan:
    """Return how `algorithm` carries a collective in groups that are each a `group` by position.

    kinds: their different `nccl.shape.shapes`, which NCCL alone asks for; of messages those of the communicators in which they
    go. Where groups lie on nodes differently, its choice is that of the one with the longest time. Raises as
    `collectives.model.phases`, and InputError where NCCL cannot do what it is forced to.
    """
    op = collective.op
    if op in MESSAGES:
        return _messages(topology, algorithm, kinds, group, collective)
    if algorithm != NCCL:
        parts, latency, sms = _phases(algorithm, op, group), CALLS.get(algorithm), SMS.get(algorithm, 0)
        return CollectivePlan(algorithm, "", group.levels, (), latency, float("inf"), parts, sms)
    launch = topology.node.nccl.launch or 0.0
    found = [(kind, choose(op, collective.size, kind, topology.facts(kind.types))) for kind in kinds]
    kind, choice = max(found, key=lambda one: collective_seconds(one[1], collective.size))
    file = file_of(choice.algorithm, kind, topology.facts(kind.types))
    levels = kind.group.levels
    sizes = kind.sizes if all(other.sizes == kind.sizes for other in kinds) else ()
    parts = _phases(file, op, group._replace(levels=levels, sizes=sizes))
    rate, latency = choice.rate_bytes_per_s, launch + choice.latency_s
    return CollectivePlan(file, choice.protocol, levels, sizes, latency, rate, parts, choice.channels)


def _messages(
    topology: Topology, algorithm: str, kinds: Sequence[Shape], group: Group, collective: Collective
) -> CollectivePlan:
    """Return how NCCL carries a message, or a ring exchange as so many messages one after the other."""
    parts, rounds = ((_message(),), 1) if collective.op == "send" else (ring_exchange(group.n), group.n - 1)
    if not rounds:
        return CollectivePlan(algorithm, "", group.levels, (), 0.0, float("inf"), parts)
    size = collective.size / rounds
    found = [choose("send", size, kind, topology.facts(kind.types)) for kind in kinds]
    own = max(found, key=lambda one: collective_seconds(one, size))
    latency = rounds * ((topology.node.nccl.launch or 0.0) + own.latency_s)
    return CollectivePlan(algorithm, own.protocol, group.levels, (), latency, own.rate_bytes_per_s, parts, own.channels)


def _phases(algorithm: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    return phases(algorithm, op, group) if group.n > 1 else ()


def _message() -> Phase:
    """Return the phase in which position 0 sends all bytes to position 1."""
    first = np.zeros(1, np.int64)
    return Phase(1, first, first + 1, np.ones(1))


def ring_exchange(n: int) -> tuple[Phase, ...]:
    """Return the phase in which every position sends to the next one, n - 1 times, all of its bytes together."""
    ranks = np.arange(n, dtype=np.int64)
    return (uniform(n - 1, ranks, np.roll(ranks, -1), 1.0),) if n > 1 else ()
