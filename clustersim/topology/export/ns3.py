"""A cluster as the text that ns-3 reads in SimAI and ASTRA-sim.

Line 1: nodes, GPUs a server, NVSwitches, other switches, links, GPU type. Line 2: the numbers of the switches, NVSwitches first.
Then one row a cable: source, destination, rate, delay, error rate (SimAI, inputs/topo/gen_Topo_Template.py). GPUs are 0, 1, …
and stand for their NICs too. In-node links and NIC cables get the delays of that template, as ns-3 plays the protocol itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clustersim.topology.faults import DEAD
from clustersim.topology.graph import numbers
from clustersim.topology.model import Topology
from clustersim.topology.routing import GpuRouter, Remaining

_INNER = ("nvlink", "pcie", "mesh", "ring")
_NVLINK_DELAY, _NIC_DELAY = 25e-9, 500e-9


class Ns3Link(NamedTuple):
    """A cable: names of its ends, bytes/s, seconds."""

    a: str
    b: str
    rate: float
    delay: float


def text(topology: Topology) -> str:
    """Return the file; build the topology with one link a cable first (`cabled`)."""
    rows = list(rows_of(topology))
    number = {f"gpu[{g}]": i for i, g in enumerate(numbers(topology).tolist())}
    ends = dict.fromkeys(end for row in rows for end in (row.a, row.b) if end not in number)
    inner = [end for end in ends if _kind(end) in ("nvswitch", "nvlink", "pcie")]
    outer = [end for end in ends if end not in set(inner)]
    number |= {end: topology.gpus + i for i, end in enumerate([*inner, *outer])}
    kind = topology.gpu.name.split("-")[0].upper()
    head = f"{len(number)} {topology.numbering.widths[-1]} {len(inner)} {len(outer)} {len(rows)} {kind}"
    switches = " ".join(str(number[end]) for end in [*inner, *outer])
    body = (f"{number[r.a]} {number[r.b]} {r.rate * 8e-9:.10g}Gbps {r.delay * 1e3:.10g}ms 0" for r in rows)
    return "\n".join([head, switches, *body, ""])


def rows_of(topology: Topology) -> Iterator[Ns3Link]:
    """Yield every cable that lives, NICs merged into the GPU that they belong to."""
    owner = _owners(topology)
    alive = {f"gpu[{g}]" for g in numbers(topology).tolist()}
    for tier in topology.tiers:
        if not tier.name.endswith("-up"):
            continue
        inner = tier.name.split("-")[0] in _INNER
        for link in range(tier.first, tier.first + tier.links):
            a, b = (_merged(end, owner) for end in topology.ends(link))
            rate, cables = float(topology.capacity[link]), int(topology.cables[link])
            if a == b or any(e.startswith("gpu[") and e not in alive for e in (a, b)) or rate <= DEAD or not cables:
                continue
            nic = tier.name in ("nic-up", "port-up")
            delay = _NVLINK_DELAY if inner else _NIC_DELAY if nic else float(topology.latency[link])
            count = 1 if inner else cables
            yield from [Ns3Link(a, b, rate / count, delay)] * count


def _owners(topology: Topology) -> list[int]:
    """Return the GPU that owns each NIC."""
    router = topology.router.router if isinstance(topology.router, Remaining) else topology.router
    if not isinstance(router, GpuRouter):
        return []
    owners: list[int] = router.owner[: router.endpoints].tolist()
    return owners


def _kind(end: str) -> str:
    return end.partition("[")[0]


def _merged(end: str, owner: list[int]) -> str:
    kind, _, number = end.partition("[")
    return f"gpu[{owner[int(number[:-1])]}]" if kind in ("nic", "ports") else end
