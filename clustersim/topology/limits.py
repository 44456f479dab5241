"""Rates of a file that something else cuts: cables faster than their NICs, NICs faster than their cables or their slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from clustersim.config.topology import wider_slots
from clustersim.topology.specs import BuiltFabric, NodeSpecs

_SAME = 1.0 + 1e-9
NICS = "cluster.node.nics.rate"


def limits(cluster: NodeSpecs, network: BuiltFabric) -> Iterator[str]:
    """Yield a sentence for each rate that does not count in full, with the keys of what is cut and of what cuts it."""
    fastest = max(cluster.parts, key=lambda pool: pool.nic_line)  # slower types of node are no mistake
    nics, line, wire = fastest.node.nics, fastest.nic_line, _wire(network)
    if nics is None:
        return
    if line < nics.rate:
        host, at = fastest.node.host, ".".join(map(str, (*fastest.at, "host")))
        cut = f"{at}.effective" if host.effective else f"{at}.pcie"
        wider = next((f" without a wider slot ({at}.pcie: {slot.pcie})" for slot in wider_slots(host)), "")
        yield (
            f"{NICS}: NICs of {_rate(nics.rate)} get {_rate(line)} through their PCIe slots ({cut}); a faster NIC "
            f"changes nothing{wider}"
        )
    if wire > max(line, nics.rate) * _SAME:
        yield (
            f"{network.key}: cables of {_rate(wire)} end at NICs of {_rate(line)} ({NICS}), and no node sends faster than its "
            f"NICs; raise {NICS} to use them"
        )
    slowest = float(np.max(network.rate) if cluster.pools else np.min(network.rate))
    if line > slowest * _SAME:
        yield f"{NICS}: NICs of {_rate(line)} get {_rate(slowest)} from their cables ({network.key}); raise that to use them"


def limited(cluster: NodeSpecs, network: BuiltFabric) -> Mapping[str, float]:
    """Return the counts of a network with a bisection that is no more than half of its NICs can send.

    `oversubscription` is what these can send over what the network lets through, 1 at least.
    """
    counts = network.counts
    line = cluster.by_endpoint(lambda pool: pool.nic_line)
    if not counts.get("bisection") or not _wire(network) > np.min(line) * _SAME:
        return counts
    each = np.broadcast_to(np.minimum(line, network.rate), cluster.endpoints)
    ends, cut = float(each.sum()) / 2, counts["bisection"]
    return {**counts, "bisection": min(ends, cut), "oversubscription": max(1.0, ends / cut)}


def _wire(network: BuiltFabric) -> float:
    """Return the bytes/s of the fastest route into a NIC: its cables together, or in a torus or grid the fastest of them."""
    rate = float(np.max(network.rate))
    if np.isfinite(rate):
        return rate
    return max(
        (float(np.max(part.capacity / part.cables)) for part in network.ranges if len(part.capacity)), default=0.0
    )


def _rate(value: float) -> str:
    return f"{value * 8 / 1e9:.4g} Gb/s"
