"""The figures of a cluster as label and value, for people."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.topology.model import Topology
from clustersim.units import scaled

Row = tuple[str, str]


def describe(topology: Topology) -> list[Row]:
    """Return rows (label, value): nodes, GPUs, NVLink, NICs, switches and cables of each tier, bisection, oversubscription."""
    counts = topology.counts
    rows = [
        ("cluster", f"{topology.name} ({topology.kind})"),
        ("nodes", f"{topology.nodes:,}"),
        ("GPUs", f"{topology.gpus:,} × {topology.gpu.name}, {topology.gpus_per_node} a node"),
        *_node_links(topology),
        *_tiers(topology),
    ]
    if "bisection" in counts:
        rows.append(("bisection", f"{scaled(counts['bisection'], 'B/s')} a direction"))
        rows.append(("oversubscription", f"{counts['oversubscription']:.3g} : 1"))
    rows.append(("directed links", f"{int(counts['links']):,}"))
    if len(topology.fanouts) > 1:
        rows.append(("fan-outs", " × ".join(str(fanout) for fanout in topology.fanouts)))
    if "power" in counts:
        rows.append(("power of the nodes", scaled(counts["power"], "W")))
    slow = int((topology.slowdown != 1).sum())
    return [*rows, ("slow GPUs", f"{slow:,}")] if slow else rows


def _node_links(topology: Topology) -> Iterator[Row]:
    labels = {"nvlink-up": "NVLink", "pcie-up": "PCIe", "nic-up": "NICs"}
    for tier in topology.tiers:
        if tier.name in labels:
            part = slice(tier.first, tier.first + tier.links)
            low, high = topology.capacity[part].min(), topology.capacity[part].max()
            rate = scaled(high, "B/s") if low == high else f"{scaled(low, 'B/s')} to {scaled(high, 'B/s')}"
            count = f"{tier.links:,} × " if tier.name == "nic-up" else ""
            each = "a GPU and direction" if tier.name != "nic-up" else "a direction"
            yield labels[tier.name], f"{count}{rate} {each}"


def _tiers(topology: Topology) -> Iterator[Row]:
    counts = topology.counts
    named = [key.removesuffix("_switches") for key in counts if key.endswith("_switches")]
    for name in named:
        yield f"{name} switches", f"{int(counts[f'{name}_switches']):,}"
    if "switches" in counts:
        yield "switches", f"{int(counts['switches']):,}"
    for below, name in zip(["NIC", *named], named, strict=False):
        yield f"cables {below} – {name}", f"{int(counts[f'{name}_cables']):,}"
    if "cables" in counts:
        yield "cables", f"{int(counts['cables']):,}"
