"""Why a kind of cluster has no plan, and which limits would allow one: each named limit was verified by a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from clustersim.errors import option
from clustersim.parallel.job import divisors, listed
from clustersim.planning.batches import BATCH
from clustersim.planning.planner import Planner, TrainingPlan
from clustersim.planning.request import PlanRequest
from clustersim.sweeps.space import Point
from clustersim.units import AMOUNTS, dollars, plural, three_digits

LARGER = (2, 4, 8)
"""Multiples of the requested batch that are tried."""


class _Other(NamedTuple):
    """Plan of a changed request, and `names` of its changes: limits that are left out, or BATCH."""

    names: Sequence[str]
    plan: TrainingPlan

    def words(self) -> str:
        """Return the changed request and its plan in words."""
        changed, plan = " ".join(_FORMS[name](self.plan) for name in self.names), self.plan
        usd = "" if plan.usd is None else f", {dollars(plan.usd)} USD"
        days = f"{plan.days:,.1f}" if plan.days >= 10 else f"{plan.days:.3g}"
        batch = "" if BATCH in self.names else f", batches of {plan.row['global_batch']}"
        return f"{changed} ({plural(plan.nodes, 'node', 'nodes')}{batch}, {days} days{usd})"


def why_none(planner: Planner, request: PlanRequest, tried: Sequence[Sequence[Point]]) -> str:
    """Return why a kind of cluster has no plan, in one sentence: changed requests that have one, an unknown price, or memory.
    tried: lists of points that were searched without success, one point per batch size."""
    kinds = [*chain(*tried)]
    clusters, most = planner.clusters(kinds[0]), int(str(kinds[-1][BATCH]))
    gpu = clusters.simulator.cluster.gpu.name
    what = f"{gpu}, with batches of {'' if len(kinds) == 1 else 'up to '}{most} sequences,"
    if request.budget is not None and clusters.rates.rent is None:
        price, budget = option("--price", "price"), option("--budget", "budget")
        return f"the price of {gpu} is unknown; add {price}, in USD per GPU-hour, or leave out {budget}"
    if others := list(_others(planner, request, tried)):
        return f"{what} has one with {' or '.join(choice.words() for choice in others)}"
    if other := planner.plan(request, {**kinds[-1], BATCH: 1 << round(math.log2(most))}):
        remedy = _Other([BATCH], other).words()
        return f"{what} which {listed(divisors(most))} replicas can share evenly, has none; it has one with {remedy}"
    nodes = plural(request.nodes or planner.most_gpus(kinds[0]) // clusters.simulator.cluster.gpus, "node", "nodes")
    return f"{what} does not likely fit into memory on up to {nodes}; give GPUs with more memory or a smaller model"


def _others(planner: Planner, request: PlanRequest, tried: Sequence[Sequence[Point]]) -> Iterator[_Other]:
    """Yield requests with a plan: without one of the limits, or else without all; and with one of the LARGER batches."""
    kind, kinds = tried[0][0], [*chain(*tried)]
    single = [[name] for name in request.limited]
    for several in (single, [request.limited]):
        plans = [_Other(names, plan) for names in several if (plan := planner.plan(request.relaxed(names), *kinds))]
        yield from plans
        if plans:
            break
    if len(kinds) == 1 and request.days is not None:
        larger = [[{**kind, BATCH: int(str(kind[BATCH])) * times}] for times in LARGER]
        if plan := planner.first(request, larger):
            yield _Other([BATCH], plan)


def _days_option(plan: TrainingPlan) -> str:
    """Return the option with the plan's days, rounded up to three digits."""
    days = f"{three_digits(plan.days, math.ceil):.10g}"
    return option(f"--days {days}", f"days={days}")


def _budget_option(plan: TrainingPlan) -> str:
    """Return the option with the plan's USD, rounded up to three digits."""
    usd = three_digits(plan.usd or 0.0, math.ceil)
    size, letter = next(((size, letter) for letter, size in AMOUNTS.items() if usd >= size), (1.0, ""))
    return option(f"--budget {usd / size:.10g}{letter}", f"budget={usd:.10g}")


_FORMS: Mapping[str, Callable[[TrainingPlan], str]] = {
    "days": _days_option,
    "budget": _budget_option,
    "nodes": lambda plan: option(f"--nodes {plan.nodes}", f"nodes={plan.nodes}"),
    BATCH: lambda plan: option(
        f"--global-batch {plan.row['global_batch']}", f"global_batch={plan.row['global_batch']}"
    ),
}
