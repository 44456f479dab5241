"""The bill of a cluster: how many nodes, switches, modules and cables, what they cost and what they draw."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.costs.figures import Figures
from clustersim.topology.model import Topology


class Item(NamedTuple):
    """One line of a bill."""

    what: str
    """Such as `switches`."""
    number: float
    """How many."""
    price: float | None
    """USD of one; None where nobody says."""
    power: float
    """W of one at its maximum."""

    @property
    def usd(self) -> float | None:
        """USD of all."""
        return None if self.price is None else self.number * self.price


def bill(cluster: Topology, figures: Figures) -> list[Item]:
    """Return the nodes, and what joins them: switches by their ports, two modules a cable, and the cables."""
    nodes = Item("nodes", cluster.nodes, _node_price(cluster, figures), node_power(cluster, figures))
    # a dragonfly and a torus call theirs routers
    switches = cluster.counts.get("switches") or cluster.counts.get("routers", 0.0)
    if not switches or cluster.nodes == 1:
        return [nodes]
    rate = cluster.node.wire * 8 / 1e9
    switch = next((one for one in figures.switch if one.rate >= cluster.node.wire * (1 - 1e-9)), figures.switch[-1])
    ends, cables = _ends(cluster), cluster.counts["cables"]
    ports = cluster.counts.get("switch_ports", ends.switch) / switches * rate
    nic, at_switch = figures.optics.nic, figures.optics.switch
    return [
        nodes,
        Item("switches", switches, switch.price * ports, switch.power * ports),
        Item("modules at NICs", ends.nic, nic.price * rate, nic.power * rate),
        Item("modules at switches", ends.switch, at_switch.price * rate, at_switch.power * rate),
        Item("cables", cables, figures.cable.price, 0.0),
    ]


def _node_price(cluster: Topology, figures: Figures) -> float | None:
    """Return the USD of a node, of several types the mean; None where one has no price."""
    each = [(figures.node.get(gpu.name), count) for gpu, count in cluster.counted()]
    known = [(node.price, count) for node, count in each if node]
    if len(known) < len(each):
        return None
    return known[0][0] if len(known) == 1 else sum(price * count for price, count in known) / cluster.gpus


class _Ends(NamedTuple):
    nic: float
    switch: float


def _ends(cluster: Topology) -> _Ends:
    """Return the ends of all cables: one of each NIC's is at a NIC."""
    nics = cluster.counts.get("nics", 0.0)
    return _Ends(nics, 2 * cluster.counts["cables"] - nics)


def node_power(cluster: Topology, figures: Figures) -> float:
    """Return the W of one node at its maximum: what its file says, or its GPUs' with what is usual around them."""
    said = cluster.counts.get("power")
    if said:
        return said / cluster.nodes
    each = cluster.counted()
    mean = each[0][0].power if len(each) == 1 else sum(gpu.power * count for gpu, count in each) / cluster.gpus
    return cluster.gpus_per_node * mean * figures.power.node_over_gpus.value
