"""Which links carried what, and which of them make the step long."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan
from clustersim.engine.network import Network, Variant
from clustersim.engine.traffic import Traffic
from clustersim.report.critical_path import Path
from clustersim.topology.model import Topology

_SAME = 1 + 1e-9


def link_bytes(plan: Plan) -> Floats:
    """Return the bytes that crossed every link in the step."""
    return plan.network.bytes_by_link(dict(one for program in plan.programs for one in program.carried().items()))


def limiting_seconds(path: Path, network: Network) -> Floats:
    """Return, by link, the seconds of the critical path in which bytes move at the rate that this link gives them.

    Of a transfer that NCCL or its GPUs keep below what its links would give, no link is one. Idle rates: what transfers take
    from each other is not in it.
    """
    found = np.zeros(len(network.topology.capacity))
    sizes: dict[Variant, dict[int, float]] = {}
    for span, times in path:
        for (variant, cell), size in (span.activity.carried if span.activity else {}).items():
            own = sizes.setdefault(variant, {})
            own[cell] = own.get(cell, 0.0) + size * times
    for variant, own in sizes.items():
        groups = network.cells.groups[variant[0]].first[list(own)]
        for t in network.traffic[variant]:
            _add_limiting(found, t, network.topology, groups, np.array(list(own.values())))
    return found


def _add_limiting(found: Floats, t: Traffic, topology: Topology, groups: Ints, size: Floats) -> None:
    """Add the seconds that `size` bytes of some groups take on the links that give them their rate."""
    links = len(topology.capacity)
    group, link, weight = t.of_groups(topology, groups)
    key, inverse = np.unique(group * links + link, return_inverse=True)
    group, link = np.divmod(key, links)
    each = np.bincount(inverse, weight, len(key)) / topology.capacity[link]
    slowest = np.zeros(len(groups))
    np.maximum.at(slowest, group, each)
    decide = slowest * t.bound[groups] * _SAME >= 1
    slow = decide[group] & (each >= slowest[group] / _SAME)
    np.add.at(found, link[slow], (size * slowest)[group[slow]])


def busiest(topology: Topology, crossed: Floats, limiting: Floats, end: float) -> list[dict[str, Any]]:
    """Return one link of each tier that carried anything: that which limits the critical path longest, else the most used.

    Those that limit come first, longest first, then the others by mean utilization over the step (bytes / capacity / s).
    """
    use = crossed / topology.capacity / end
    slows = np.round(limiting, 9)
    tops = [
        tier.first + int(np.lexsort((use[tier.first :][: tier.links], slows[tier.first :][: tier.links]))[-1])
        for tier in topology.tiers
        if tier.links
    ]
    return [
        {
            "link": topology.link_name(i),
            **dict(zip(("from", "to"), ends(topology, i), strict=True)),
            "bytes": float(crossed[i]),
            "utilization": float(use[i]),
            "limiting_s": float(limiting[i]),
        }
        for i in sorted(tops, key=lambda i: (-slows[i], -use[i]))
        if crossed[i] > 0
    ]


def ends(topology: Topology, link: int) -> tuple[str, str]:
    """Return where a link leads from and to: GPUs and NICs by their node, switches as `show --draw` and exports name them."""
    a, b = (_place(topology, end) for end in topology.ends(link))
    return a, b


def _place(topology: Topology, name: str) -> str:
    kind, _, number = name.partition("[")
    each = {"gpu": topology.gpus_per_node, "nic": topology.node.nics}.get(kind, 0)
    if not each:
        return name
    node, local = divmod(int(number.rstrip("]")), each)
    return f"node {node} {kind.upper()} {local}"
