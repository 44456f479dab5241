"""The request of a plan: tokens, deadline, budget, clusters, and the quantity to minimize."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError, option
from clustersim.optimization.objective import check
from clustersim.sweeps.space import NODES, Point
from clustersim.units import AMOUNTS, plural

TOPOLOGY = "rail_optimized"
"""Default topology, whose number of nodes is ignored."""
LIMITS = {"days": "days", "budget": "usd", "nodes": "nodes"}
"""{limit: quantity of a plan that it limits}"""
MINIMIZED = {"rent": "usd", "owned": "usd_owned", "gpus": "gpus", "energy": "kwh", "soonest": "days"}
"""{objective: quantity of a plan that it minimizes}"""
BEST = dict(zip(MINIMIZED, ("cheapest", "cheapest owned", "smallest", "most frugal", "fastest"), strict=True))
"""{objective: name of its best plan}"""
CONSTANT = ("nodes", "gpus")
"""Quantities that do not depend on the length of a step."""
ROUNDED = 1 + 1e-9
"""Factor by which a limit is exceeded, so that rounding does not bring a plan back within it."""
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
    objective: str | None = None
    """One of `MINIMIZED`; None: rent with a deadline, or the number of GPUs where that is unknown; otherwise soonest."""
    front: bool = False
    """Whether to list the plans that no other beats in every quantity."""

    @property
    def limits_text(self) -> str:
        """Limits in words."""
        limits = [f"{self.days:g} days"] if self.days else []
        limits += [f"{self.budget:,.0f} USD"] if self.budget else []
        limits += [plural(self.nodes, "node", "nodes")] if self.nodes else []
        return " and ".join(limits)

    @property
    def goal(self) -> str:
        """The objective, or its default."""
        return self.objective or ("soonest" if self.days is None else "rent")

    def costs(self, amounts: Mapping[str, Floats]) -> Floats:
        """Return the minimized quantity of several plans (plans,); infinite beyond a limit or without a known price.

        amounts: quantities of the plans by the names of `LIMITS` and `MINIMIZED`; nan for an unknown price.
        """
        within = [np.less_equal(amounts[LIMITS[name]], getattr(self, name)) for name in self.limited]
        least = np.nan_to_num(amounts[MINIMIZED[self.goal]], nan=math.inf, posinf=math.inf)
        return np.where(np.logical_and.reduce(within), least, math.inf)

    def growth(self, amounts: Mapping[str, Floats], least: float) -> Floats:
        """Return the factors by which steps of several plans are longer, if each plan costs `least` or exceeds a limit (plans,).

        Days, money and energy are proportional to the step. amounts: as in `costs`, for the shorter steps.
        """
        ends = {LIMITS[name]: getattr(self, name) for name in self.limited}
        goal = MINIMIZED[self.goal]
        ends[goal] = min(least / ROUNDED, ends.get(goal, math.inf))
        factors = [
            np.where(amounts[name] <= end, math.inf, 1.0) if name in CONSTANT else end / amounts[name] * ROUNDED
            for name, end in ends.items()
        ]
        return np.asarray(np.minimum.reduce(factors))

    def rank(self, amounts: Mapping[str, Floats]) -> tuple[float, ...]:
        """Return the sort key of a plan with these quantities, the best first: the minimized one, GPUs, days."""
        return float(self.costs(amounts)), float(amounts["gpus"]), float(amounts["days"])

    @property
    def limited(self) -> list[str]:
        """Names of the given limits: days, budget, nodes."""
        return [name for name in LIMITS if getattr(self, name) is not None]

    @property
    def of_nodes(self) -> bool:
        """Whether only the number of nodes limits the plan, so that it is the fastest on them, as from `optimize`."""
        return self.limited == ["nodes"] and self.goal == "soonest"

    def relaxed(self, names: Sequence[str]) -> PlanRequest:
        """Return the request without some limits, minimizing the quantity of a single removed limit, else dollars."""
        goal = {"days": "soonest", "nodes": "gpus"}.get(names[0], "rent") if len(names) == 1 else "rent"
        days, budget, nodes = (None if name in names else getattr(self, name) for name in LIMITS)
        return replace(self, days=days, budget=budget, nodes=nodes, objective=goal)

    def misses(self, amounts: Mapping[str, Floats]) -> list[str]:
        """Return the limits that a plan with these quantities exceeds: days, budget, nodes."""
        return [name for name in self.limited if not amounts[LIMITS[name]] <= getattr(self, name)]


def plan_request(
    tokens: float,
    days: float | None,
    budget: float | None,
    nodes: int | None,
    fixed: Point,
    axes: Mapping[str, Sequence[object]],
    blocking: bool,
    objective: str | None = None,
    front: bool = False,
) -> PlanRequest:
    """Return a request for every combination of `axes`, {cluster key: values}. fixed: keys that are equal for all.

    The others are as in PlanRequest; `blocking`: checkpoints stop the step. Raises InputError without any limit, for an
    impossible limit or objective, and for a number of nodes among the keys.
    """
    if objective is not None:
        check(objective)
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
    return PlanRequest(tokens, days, budget, kinds, not blocking, nodes, objective, front)


def amount(flag: str, text: str, such: str = "15T, 300B or 2.5M") -> float:
    """Return a positive number in a text such as `15T`, `300B` or `2.5M`. Raises InputError that names `flag`."""
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * _SCALE[match[2]] if match else 0.0
    if value > MOST:
        raise InputError(f"{flag} {text!r}: is more than {MOST:g}; write a number such as {such}")
    if value <= 0:
        raise InputError(f"{flag} {text!r}: write a number above 0 such as {such}")
    return value
