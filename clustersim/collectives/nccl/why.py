"""Why a line of the table is as it is: what NCCL expected of each algorithm and protocol, and which link is busiest."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.collectives.loads import TooManyWaysError
from clustersim.collectives.model import Ints
from clustersim.collectives.nccl.available import SIMPLE_ONLY
from clustersim.collectives.nccl.busiest import busiest
from clustersim.collectives.nccl.named import NO_PROTOCOL
from clustersim.collectives.nccl.shape import Shape, shape
from clustersim.collectives.nccl.table import Line, parts
from clustersim.collectives.nccl.tuner import OPS as TUNED
from clustersim.collectives.nccl.tuner import tune
from clustersim.topology.model import Topology
from clustersim.units import scaled, seconds


def considered(topology: Topology, ranks: Ints, op: str, last: Line, shares: tuple[float, ...] = ()) -> str:
    """Return what was considered for a line of `op` over GPUs `ranks` (n,), and what decides its bandwidth."""
    one, choice = shape(topology, ranks, shares), last.choice
    if choice.protocol == NO_PROTOCOL:
        rate = scaled(choice.rate_bytes_per_s, "B/s")
        spent = f"launch {seconds(topology.launch)}, hops {seconds(choice.latency_s)}, bytes at {rate}"
        return f"{op} of {last.size} B: {choice.why}\n{spent}"
    rows = [f"{op} of {last.size} B: {choice.why}", *_candidates(topology, op, last.size, one)]
    rows.append(
        f"kernels take {seconds(choice.latency_s)} before and between the bytes, {choice.file} has the loads on links"
    )
    rows.append(_link(topology, ranks, op, last, one, shares))
    return "\n".join(rows)


def _candidates(topology: Topology, op: str, size: int, one: Shape) -> Iterator[str]:
    if op not in TUNED:
        return
    for e in sorted(tune(op, size, one, topology.node), key=lambda e: e.time_s):
        if e.missing != SIMPLE_ONLY:
            name = f"  {e.algorithm}/{e.protocol}"
            said = e.missing or f"{seconds(e.time_s)}, {e.channels} channels, {scaled(e.rate_bytes_per_s, 'B/s')}"
            yield f"{name:<24} {said}"


def _link(topology: Topology, ranks: Ints, op: str, last: Line, one: Shape, shares: tuple[float, ...]) -> str:
    """Return the sentence of the busiest link: how much of it the bytes take while they move, and whether it sets their pace."""
    try:
        found = busiest(topology, ranks, parts(op, last.choice.file, one, shares))
    except TooManyWaysError:
        return "its pairs have too many ways to name the busiest link"
    own = last.choice.rate_bytes_per_s
    used = min(own, found.rate) * found.weight / found.capacity
    name, room = topology.link_name(found.link), scaled(found.capacity, "B/s")
    others = f"; {found.others:,} more are as busy" if found.others else ""
    if found.rate <= own * (1 + 1e-9):
        return f"{name} decides: {100 * used:.0f} % of its {room} while the bytes move{others}"
    return f"NCCL's own rate decides; {name} is the busiest link: {100 * used:.0f} % of its {room} while the bytes move{others}"
