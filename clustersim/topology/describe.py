"""The figures of a cluster as (label, value) rows of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.topology.faults import DEAD
from clustersim.topology.model import Topology
from clustersim.units import either, plural, scaled, seconds

Fact = tuple[str, str]
_LABELS = {"nvlink-up": "NVLink", "pcie-up": "PCIe", "mesh-up": "wires GPU – GPU", "ring-up": "ring", "nic-up": "NICs"}
_MOST_PATHS = 2**18
_SAMPLED = 2**16  # number of paths above which only a sample is checked
_MOST_LINKS = 2**24  # limit on links of all those paths: on a ring of thousands of nodes one path is thousands of links
_PROBED = 9  # number of probed routes from the first GPU: to itself, in even steps, to the last
_PAIRS = 2**15  # largest number of pairs whose routes are in memory at a time,
_LINKS = 2**21  # or fewer pairs, with this number of links


def describe(topology: Topology) -> list[Fact]:
    """Return rows (label, value): nodes, GPUs, NVLink, NICs, switches and cables, bisection, diameter, faults."""
    counts = topology.counts
    rows = [
        ("cluster", f"{topology.name} ({topology.kind})"),
        ("nodes", f"{topology.nodes:,}"),
        ("GPUs", f"{topology.gpu_summary}, {either(topology.numbering.widths)} a node"),
        *_node_links(topology),
        *_tiers(topology),
    ]
    if "bisection" in counts:
        sound = ", before faults" if "unfaulted" in counts else ""
        rows.append(("bisection", f"{scaled(counts['bisection'], 'B/s')} a direction{sound}"))
        rows.append(("oversubscription", f"{counts['oversubscription']:.3g} : 1{sound}"))
    longest = diameter(topology)
    most = "" if longest.exact else " (from a sample of GPUs)"
    if longest.hops:
        links = f"{longest.hops:g} link{'s' * (longest.hops != 1)}"
        rows.append(("diameter", f"{links}, {seconds(longest.latency)} from GPU to GPU when idle{most}"))
    rows.append(("directed links", f"{int(counts['links']):,}"))
    if len(topology.fanouts) > 1:
        rows.append(("fan-outs", " × ".join(str(fanout) for fanout in topology.fanouts)))
    if "power" in counts:
        rows.append(("power of the nodes", scaled(counts["power"], "W")))
    return [*rows, *faults(topology), *(("warning", said) for said in topology.notes + topology.warnings)]


def faults(topology: Topology) -> list[Fact]:
    """Return rows (label, number in words) on slow GPUs, slow links and dead parts; empty if there are none."""
    slow, counts, rows = int((topology.slowdown != 1).sum()), topology.counts, list[Fact]()
    if slow:
        rows.append(("slow GPUs", f"{slow:,}"))
    if "slow_links" in counts:
        rows.append(("slow links", f"{int(counts['slow_links']):,}"))
    nodes, up, down = (int(counts.get(f"dead_{what}", 0)) for what in ("nodes", "up", "down"))
    words = [plural(nodes, "node", "nodes")] if nodes else []
    words += [f"{plural(up, 'cable', 'cables')} upwards, {down:,} downwards"] if up or down else []
    return [*rows, ("dead", "; ".join(words))] if words else rows


def _node_links(topology: Topology) -> Iterator[Fact]:
    """Yield (label, rate in words) of each kind of links inside nodes, and of the NICs; dead links do not count."""
    for tier in topology.tiers:
        label = _LABELS.get(tier.name) or (tier.name.removesuffix("-up") if tier.name.startswith("ring-") else "")
        if label and tier.name.endswith("-up") and tier.links:
            part = topology.capacity[tier.span]
            part = part[part > DEAD] if (part > DEAD).any() else part * 0
            low, high = part.min(), part.max()
            rate = scaled(high, "B/s") if low == high else f"{scaled(low, 'B/s')} to {scaled(high, 'B/s')}"
            if tier.name in ("nvlink-up", "pcie-up") and topology.numbering.widths[-1] > 1:
                yield label, f"{rate} a GPU and direction"
            elif tier.name not in ("nvlink-up", "pcie-up"):
                yield label, f"{len(part):,} × {rate} a direction"


def _tiers(topology: Topology) -> Iterator[Fact]:
    """Yield (label, number in words) of switches and cables by tier, sockets, balance and reduction."""
    counts = topology.counts
    named = [key.removesuffix("_switches") for key in counts if key.endswith("_switches")]
    for name in named:
        yield f"{name} switches", f"{int(counts[f'{name}_switches']):,}"
    for key in ("groups", "routers", "switches"):
        if key in counts:
            yield key, f"{int(counts[key]):,}"
    for below, name in zip(["NIC", *named], named, strict=False):
        yield f"cables {below} – {name}", f"{int(counts[f'{name}_cables']):,}"
    for key in counts:
        name = key.removesuffix("_cables")
        if name != key and name not in named:
            yield f"cables {name}", f"{int(counts[key]):,}"
    if "sockets" in counts:
        if counts["nics"]:
            yield "NICs", f"{int(counts['nics']):,} × {scaled(topology.node.nic_line, 'B/s')} a direction"
        yield "CPUs", f"{int(counts['sockets']):,}, {topology.gpus // int(counts['sockets']):,} GPUs each"
    if "cables" in counts:
        yield "cables", f"{int(counts['cables']):,}"
    if "balanced" in counts:
        yield "balanced", "yes: a = 2p = 2h" if counts["balanced"] else "no: a = 2p = 2h loads all cables alike"
    if topology.reduction != "none":
        yield "reduction", f"{topology.reduction}: the switches add up"


# The distance between the GPUs of a cluster.


class Diameter(NamedTuple):
    """The longest routes between GPUs."""

    hops: float
    """Number of links of the longest route; for a pair with several paths, their mean."""
    latency: float
    """Latency of the slowest route on an idle fabric, in seconds."""
    exact: bool
    """Whether all pairs were checked."""


def diameter(topology: Topology) -> Diameter:
    """Return the largest number of links and the largest latency of any route, which may be of different routes.

    If there are many GPUs, only routes from an even sample of them to all GPUs are checked.
    """
    probe = topology.route(np.zeros(_PROBED, np.int64), np.linspace(0, topology.gpus - 1, _PROBED).astype(np.int64))
    # the memory of routes depends on their length and spread, so a few are probed before all are computed
    paths = 1 / float(probe.share.min(initial=1.0))
    longest = max(1, int(np.diff(probe.start).max()))
    most = min(_MOST_PATHS / paths, _MOST_LINKS / longest)
    batch = max(1, min(_PAIRS, _LINKS // longest))
    few = topology.gpus**2 <= most
    sources = topology.gpus if few else max(1, int(min(most, _SAMPLED)) // topology.gpus)
    sample = np.unique(np.linspace(0, topology.gpus - 1, sources).astype(np.int64))
    hops = latency = 0.0
    for first in range(0, len(sample) * topology.gpus, batch):
        pair = np.arange(first, min(first + batch, len(sample) * topology.gpus))
        routes = topology.route(sample[pair // topology.gpus], pair % topology.gpus)
        crossed = np.add.reduceat(np.append(routes.share, 0.0), routes.start[:-1]) * (np.diff(routes.start) > 0)
        hops, latency = max(hops, float(crossed.max())), max(latency, float(routes.latency.max()))
    return Diameter(round(hops, 9), latency, len(sample) == topology.gpus)
