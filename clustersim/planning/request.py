"""The request of a plan: tokens, deadline, budget, and clusters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError, option
from clustersim.sweeps.space import NODES, Point
from clustersim.units import AMOUNTS, plural

TOPOLOGY = "rail_optimized"
"""Default topology, whose number of nodes is ignored."""
LIMITS = ("days", "budget", "nodes")
MOST = 1e18
"""Largest number of tokens, days and dollars."""
_SCALE = {"": 1.0, "G": 1e9, **AMOUNTS}
_NUMBER = re.compile(r"([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kMBGT]?)")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request of a plan for one training run."""

    tokens: float
    """Tokens of the whole run."""
    days: float | None
    """Largest number of days; None: no deadline."""
    budget: float | None
    """Largest cost in USD; None: no budget."""
    candidates: tuple[Point, ...]
    """Topology keys, one mapping per kind of cluster; the number of nodes is searched."""
    asynchronous: bool = True
    """Whether checkpoints are written while the next steps run."""
    nodes: int | None = None
    """Largest number of nodes of the job, without spares."""

    least: str | None = None
    """Quantity to minimize: days, usd or nodes; by default usd with a deadline, else days."""

    @property
    def said(self) -> str:
        """Limits in words."""
        limits = [f"{self.days:g} days"] if self.days else []
        limits += [f"{self.budget:,.0f} USD"] if self.budget else []
        limits += [plural(self.nodes, "node", "nodes")] if self.nodes else []
        return " and ".join(limits)

    @property
    def minimized(self) -> str:
        """Quantity that is minimized: days, usd or nodes."""
        return self.least or ("days" if self.days is None else "usd")

    def best(self, priced: bool) -> str:
        """Return the name of the best plan, such as the cheapest. `priced`: whether the price of nodes is known."""
        return {"days": "fastest", "usd": "cheapest" if priced else "smallest", "nodes": "smallest"}[self.minimized]

    def cost(self, days: float, usd: float | None, nodes: int) -> float:
        """Return the minimized quantity, with nodes instead of unknown USD; infinite beyond a limit."""
        return float(self.costs(np.array(days), None if usd is None else np.array(usd), np.array(nodes)))

    def costs(self, days: Floats, usd: Floats | None, nodes: Floats) -> Floats:
        """Return the minimized quantity of several plans (plans,), as `cost` does."""
        limits = ((days, self.days), (nodes, self.nodes), (math.inf if usd is None else usd, self.budget))
        least = {"days": days, "usd": nodes if usd is None else usd, "nodes": nodes}[self.minimized]
        within = np.logical_and.reduce([np.less_equal(value, most) for value, most in limits if most is not None])
        return np.where(within, least, math.inf)

    @property
    def given(self) -> list[str]:
        """Names of the given limits: days, budget, nodes."""
        return [name for name in LIMITS if getattr(self, name) is not None]

    @property
    def of_nodes(self) -> bool:
        """Whether only the number of nodes limits the plan, so that it is the fastest on them, as from `optimize`."""
        return self.given == ["nodes"] and self.least is None

    def relaxed(self, names: Sequence[str]) -> PlanRequest:
        """Return the request without some limits, minimizing the quantity of a single removed limit, else dollars."""
        least = {"days": "days", "nodes": "nodes"}.get(names[0], "usd") if len(names) == 1 else "usd"
        days, budget, nodes = (None if name in names else getattr(self, name) for name in LIMITS)
        return replace(self, days=days, budget=budget, nodes=nodes, least=least)

    def misses(self, days: float, usd: float | None, nodes: int) -> list[str]:
        """Return the limits that a plan exceeds: days, budget, nodes."""
        late = self.days is not None and days > self.days
        dear = self.budget is not None and (usd is None or usd > self.budget)
        large = self.nodes is not None and nodes > self.nodes
        return [name for name, beyond in (("days", late), ("budget", dear), ("nodes", large)) if beyond]


def plan_request(
    tokens: float,
    days: float | None,
    budget: float | None,
    nodes: int | None,
    fixed: Point,
    axes: Mapping[str, Sequence[object]],
    blocking: bool,
) -> PlanRequest:
    """Return a request for every combination of values of cluster keys. fixed: keys that are equal for all.

    Raises InputError without any limit, for an impossible limit, and for a number of nodes among the keys.
    """
    if days is None and budget is None and nodes is None:
        limits = ", ".join(option(f"--{name}", f"{name}=") for name in LIMITS)
        raise InputError(f"nothing bounds the plan; give {limits}, or several")
    for name, value in (("tokens", tokens), ("days", days), ("budget", budget), ("nodes", nodes)):
        if value is not None and not (isinstance(value, int | float) and 0 < value <= MOST):
            large = f", {MOST:g} at most" if isinstance(value, int | float) and value > MOST else ""
            raise InputError(f"{option(f'--{name} {value}', f'{name}={value!r}')}: write a number above 0{large}")
    if NODES in fixed:
        raise InputError(
            f"{NODES}: is what a plan finds; give the most that there are by {option('--nodes', 'nodes=')}"
        )
    kinds = tuple({**fixed, **dict(zip(axes, values, strict=True))} for values in product(*axes.values()))
    return PlanRequest(tokens, days, budget, kinds, not blocking, nodes)


def amount(flag: str, text: str, such: str = "15T, 300B or 2.5M") -> float:
    """Return a positive number in a text such as `15T`, `300B` or `2.5M`. Raises InputError that names `flag`."""
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * _SCALE[match[2]] if match else 0.0
    if value > MOST:
        raise InputError(f"{flag} {text!r}: is more than {MOST:g}; write a number such as {such}")
    if value <= 0:
        raise InputError(f"{flag} {text!r}: write a number above 0 such as {such}")
    return value
