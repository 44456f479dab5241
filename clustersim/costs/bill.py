"""The bill of a cluster, and its cost, power and emissions per second, step, or number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clustersim.costs.figures import Figures, UnitPrice
from clustersim.topology.model import Topology
from clustersim.units import either, plural


class Item(NamedTuple):
    """A line of a bill."""

    what: str
    """Part, such as `switches`."""
    number: float
    """Number of parts."""
    price: float | None
    """USD per part; None if unknown."""
    power: float
    """Maximum power in W per part."""
    each: str = ""
    """Description of one part, such as `64 × 400 Gb/s`."""
    date: str = ""
    """Date of the price."""

    @property
    def usd(self) -> float | None:
        """Total USD; None if unknown."""
        return None if self.price is None else self.number * self.price


def bill(cluster: Topology, figures: Figures) -> list[Item]:
    """Return the nodes and their network: switches by port, two modules per cable, and cables."""
    price, power = _node_price(cluster, figures), node_power(cluster, figures)
    *some, most = cluster.numbering.widths
    each = f"{either(some)} or {most} GPUs" if some else plural(most, "GPU", "GPUs")
    known = (figures.node.get(gpu.name) for gpu, _ in cluster.gpu_counts())
    dates = ", ".join(dict.fromkeys(node.date for node in known if node))
    nodes = Item("nodes", cluster.nodes, price, power, each, dates)
    # routers of a dragonfly and a torus
    switches = cluster.counts.get("switches") or cluster.counts.get("routers", 0.0)
    if not switches or cluster.nodes == 1:
        return [nodes]
    rate = cluster.node.wire * 8 / 1e9
    fit = [price_row for price_row in figures.switch if price_row.rate >= cluster.node.wire * (1 - 1e-9)]
    switch = fit[0] if fit else figures.switch[-1]
    nics, cables = cluster.counts.get("nics", 0.0), cluster.counts["cables"]
    ends = 2 * cables - nics  # cable ends at switches: each NIC's cable has one end at the NIC
    ports = cluster.counts.get("switch_ports", ends) / switches
    speed = f"{rate:.4g} Gb/s"
    nic, at_switch, cable = figures.optics.nic, figures.optics.switch, figures.cable

    def sold(what: str, number: float, by_rate: UnitPrice, size: float, each: str) -> Item:
        """Return an item of `number` parts at a price and power per unit of `size`; no price if `fit` is false."""
        price = by_rate.price * size if fit else None  # no price for a part faster than all listed ones
        return Item(what, number, price, by_rate.power * size, each, by_rate.date)

    about = "" if ports.is_integer() else "about "
    return [
        nodes,
        sold("switches", switches, switch, ports * rate, f"{about}{ports:.0f} × {speed}"),
        sold("modules at NICs", nics, nic, rate, speed),
        sold("modules at switches", ends, at_switch, rate, speed),
        Item("cables", cables, cable.price, 0.0, "fibre", cable.date),
    ]


def _node_price(cluster: Topology, figures: Figures) -> float | None:
    """Return the USD per node, the mean over several types; None if one has no price."""
    each = [(figures.node.get(gpu.name), gpus, count) for gpu, gpus, count in cluster.node_types()]
    known = [(node.price * (gpus / node.gpus if node.gpus else 1.0), count) for node, gpus, count in each if node]
    return _mean(known) if len(known) == len(each) else None


def _mean(each: Sequence[tuple[float, int]]) -> float:
    """Return the mean of figures weighted by the number of nodes in each pair."""
    return each[0][0] if len(each) == 1 else sum(figure * count for figure, count in each) / sum(n for _, n in each)


def node_power(cluster: Topology, figures: Figures) -> float:
    """Return the maximum power of a node in W: from its file, or a typical factor of its GPUs', less what power limits save."""
    types, said = cluster.node_types(), cluster.counts.get("power")
    gpus = _mean([(gpus * gpu.power, count) for gpu, gpus, count in types])
    saved = _mean([(gpus * (gpu.power - (gpu.power_limit or gpu.power)), count) for gpu, gpus, count in types])
    return (said / cluster.nodes if said else gpus * figures.power.node_over_gpus.value) - saved


HOUR, YEAR = 3600.0, 8766 * 3600.0
"""Seconds per hour and year."""


class Rates(NamedTuple):
    """Rates of a training cluster per second."""

    rent: float | None
    """USD per second, rented by the GPU-hour; None without a known price."""
    owned: float | None
    """USD per second of machines over their life, with maintenance and electricity; None without a known price."""
    power: float
    """Power of the building in W."""
    carbon: float
    """Emissions in grams CO2e per joule."""
    electricity: float
    """USD per joule."""
    capex: float | None
    """Total price of all machines in USD."""

    def costs(self, seconds: float) -> dict[str, Any]:
        """Return the costs of `seconds` seconds: {`usd` of rent, `usd_owned`, `kwh`, `co2_kg`}; None for unknown prices."""
        joules = self.power * seconds
        return {
            "usd": None if self.rent is None else self.rent * seconds,
            "usd_owned": None if self.owned is None else self.owned * seconds,
            "kwh": joules / 3.6e6,
            "co2_kg": joules * self.carbon / 1e3,
        }


def rates(cluster: Topology, figures: Figures) -> Rates:
    """Return the rates of a cluster: cost, power and emissions of all its GPUs, used or not.

    Power is the load of training times the sum of the bill's maxima times PUE. Owned: price × (1 - residual) ÷ life, plus
    maintenance and people, divided by utilisation, plus electricity.
    """
    items = bill(cluster, figures)
    power = figures.power
    load = items[0].number * items[0].power * power.load.value + sum(item.number * item.power for item in items[1:])
    drawn = load * power.pue.value
    capex = None if any(item.usd is None for item in items) else sum(item.usd or 0.0 for item in items)
    prices = [(figures.rent.get(gpu.name), count) for gpu, count in cluster.gpu_counts()]
    owned = figures.owned
    yearly = (1 - owned.residual.value) / owned.life.value + owned.maintenance.value
    people, electricity = owned.people.value * cluster.gpus, power.electricity.value / 3.6e6
    machines = None if capex is None else (capex * yearly + people) / YEAR / owned.utilisation.value
    owned_rate = None if machines is None else machines + drawn * electricity
    known = [price.price * count / HOUR for price, count in prices if price]
    rent = sum(known) if len(known) == len(prices) else None
    return Rates(rent, owned_rate, drawn, power.carbon.value / 3.6e6, electricity, capex)


def step_costs(rates: Rates, step: float, tokens: float) -> dict[str, Any]:
    """Return {`usd_per_step`, `usd_per_1t_tokens`, …: cost} for a step of `step` seconds and `tokens` tokens."""
    costs = {"step": rates.costs(step), "1t_tokens": rates.costs(step / tokens * 1e12)}
    power = {f"usd_power_per_{what}": costs_of["kwh"] * 3.6e6 * rates.electricity for what, costs_of in costs.items()}
    return {f"{key}_per_{what}": value for what, costs_of in costs.items() for key, value in costs_of.items()} | power
