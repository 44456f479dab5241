"""What a cluster costs, draws and emits in a second, and what a step or a number of tokens does."""

from __future__ import annotations

from typing import Any, NamedTuple

from clustersim.costs.bill import bill
from clustersim.costs.figures import Figures
from clustersim.topology.model import Topology

HOUR, YEAR = 3600.0, 8766 * 3600.0
"""Seconds."""


class Rates(NamedTuple):
    """A cluster that trains, a second."""

    rent: float | None
    """USD, rented by the GPU-hour; None where no price is known."""
    owned: float | None
    """USD of the machines over their life, with maintenance and electricity; None where no price is known."""
    power: float
    """W, of the building."""
    carbon: float
    """Grams of CO2e a joule."""
    capex: float | None
    """USD of all machines at once; no rate."""

    def of(self, seconds: float) -> dict[str, Any]:
        """Return what a time costs: USD rented and owned, kWh, kg of CO2e."""
        joules = self.power * seconds
        return {
            "usd": None if self.rent is None else self.rent * seconds,
            "usd_owned": None if self.owned is None else self.owned * seconds,
            "kwh": joules / 3.6e6,
            "co2_kg": joules * self.carbon / 1e3,
        }


def rates(cluster: Topology, figures: Figures) -> Rates:
    """Return what a cluster costs, draws and emits a second: all of its GPUs, used or not.

    Power is the load of training times the sum of the bill's maxima times PUE. Owned: price × (1 - residual) ÷ life, and
    maintenance, over utilisation, and electricity.
    """
    items = bill(cluster, figures)
    power = figures.power
    load = items[0].number * items[0].power * power.load.value + sum(one.number * one.power for one in items[1:])
    drawn = load * power.pue.value
    capex = None if any(one.usd is None for one in items) else sum(one.usd or 0.0 for one in items)
    prices = [(figures.rent.get(gpu.name), count) for gpu, count in cluster.counted()]
    own = None if capex is None else _owned(capex, figures) + drawn / 3.6e6 * power.electricity.value
    known = [price.price * count / HOUR for price, count in prices if price]
    rent = sum(known) if len(known) == len(prices) else None
    return Rates(rent, own, drawn, power.carbon.value / 3.6e6, capex)


def _owned(capex: float, figures: Figures) -> float:
    own = figures.owned
    yearly = (1 - own.residual.value) / own.life.value + own.maintenance.value
    return capex * yearly / YEAR / own.utilisation.value


def of_step(found: Rates, step: float, tokens: float) -> dict[str, Any]:
    """Return the costs of a step of `step` seconds and `tokens` tokens, and of 1e12 tokens at this speed."""
    one, many = found.of(step), found.of(step / tokens * 1e12)
    return {
        **{f"{key}_per_step": value for key, value in one.items()},
        **{f"{key}_per_1t_tokens": v for key, v in many.items()},
    }
