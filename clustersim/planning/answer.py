"""The answer to a question: the cheapest plan of each kind of cluster, a check of its goodput, and what a change is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from clustersim.config.overrides import parted
from clustersim.errors import InputError, option
from clustersim.planning.planner import BATCH, NODES, Planner, TrainingPlan
from clustersim.planning.reliability import DAY
from clustersim.planning.renewal import play
from clustersim.planning.request import PlanRequest
from clustersim.sweeps.space import Point
from clustersim.units import scaled

BATCHES = (1, 1.5, 2, 3, 4, 6, 8)
"""Times the batch of the workload, tried in turn until a plan is in time; one that is asked for is the only one."""
WEEK = 7.0
SEEDS = 40
"""Runs that are played with failures drawn at random."""


class Simulated(NamedTuple):
    """Days of a run whose failures are played one by one."""

    mean: float
    deviation: float
    failures: float
    """Mean of the runs."""


class Change(NamedTuple):
    """What else could be, and the plan that it leads to."""

    what: str
    plan: TrainingPlan | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Plans of all kinds of clusters that were asked for, the cheapest first; those without a plan say why not."""

    asked: PlanRequest
    plans: tuple[tuple[Point, TrainingPlan], ...]
    without: tuple[tuple[Point, str], ...]
    """Kinds of cluster that cannot, with one sentence each."""
    played: Simulated
    """The first plan, its failures played event by event."""
    changes: tuple[Change, ...]
    """Of the first plan."""


def answer(planner: Planner, asked: PlanRequest) -> Answer:
    """Return the cheapest plans, one a kind of cluster. Raises InputError when no kind can do it, with what would do."""
    plans: list[tuple[Point, TrainingPlan]] = []
    without: list[tuple[Point, str]] = []
    for kind in asked.candidates:
        found = _first(planner, asked, kind)
        if isinstance(found, str):
            without.append((kind, found))
        else:
            plans.append((kind, found))
    if not plans:
        raise InputError(f"no plan: {'; '.join(why for _, why in without)}")
    plans.sort(key=lambda one: _order(asked, one[1]))
    best = plans[0][1]
    changes = tuple(_changes(planner, asked, *plans[0]))
    return Answer(asked, tuple(plans), tuple(without), simulated(planner, best), changes)


def _order(asked: PlanRequest, plan: TrainingPlan) -> tuple[float, float]:
    usd = math.inf if plan.usd is None else plan.usd
    return (plan.days, usd) if asked.days is None else (usd, float(plan.nodes))


def _first(planner: Planner, asked: PlanRequest, kind: Point) -> TrainingPlan | str:
    """Return the plan of the smallest batch with one, or why there is none."""
    batches = _batches(planner, kind)
    fastest = math.inf
    for batch in batches:
        with_batch = {**kind, BATCH: batch}
        if (found := planner.plan(asked, with_batch)) is not None:
            return found
        fastest = min(fastest, planner.fastest(asked, with_batch))
    return _without(planner, asked, kind, batches[-1], fastest)


def _batches(planner: Planner, kind: Point) -> list[int]:
    """Return the batches that are tried in turn: the one that is asked for, else that of the workload and larger ones."""
    own = int(planner.case.job(kind).training.global_batch)
    if BATCH in kind:
        return [own]
    own = filling(own, planner.case.cluster({**kind, NODES: 1}).simulator.cluster.gpus)
    return [int(own * factor) for factor in BATCHES]


def filling(batch: int, gpus: int) -> int:
    """Return the batch near `batch`, at least as large, whose replicas can use all GPUs of nodes of `gpus`.

    Tensor and pipeline degrees are mostly powers of two, so dp has to bring what else divides a node: racks of 72 = 8 · 9 are
    full with batches of 9 · 2^k. 2,048 becomes 2,304.
    """
    odd = gpus // (gpus & -gpus)
    low = 1 << (odd.bit_length() - 1)
    return batch if batch % odd == 0 or batch % low else batch // low * odd


def _without(planner: Planner, asked: PlanRequest, kind: Point, batch: int, fastest: float) -> str:
    gpu = planner.case.cluster({**kind, NODES: 1}).simulator.cluster.gpu.name
    limit = f"{gpu} with batches of up to {batch} sequences"
    days, sequences = option("--days", "days"), option("--global-batch", "global_batch")
    with_batch = {**kind, BATCH: batch}
    if math.isinf(fastest):  # nothing of the sizes that could be in time
        fastest = planner.fastest(replace(asked, days=None), with_batch)
    if math.isinf(fastest):
        return f"{limit} has no split that fits into memory; give other GPUs or a smaller model"
    if asked.days is not None and fastest > asked.days:
        return f"{limit} needs {fastest:.3g} days at least; give more {days} or a larger {sequences}"
    if asked.budget is not None:
        price, budget = option("--price", "price"), option("--budget", "budget")
        least = planner.cheapest(asked, with_batch)
        if least is None:
            return f"{limit}: nobody says what {gpu} costs; add {price}, in USD a GPU-hour, or leave out {budget}"
        return f"{limit} costs {least:,.0f} USD at least; give a larger {budget}, more {days} or a lower {price}"
    return f"{limit} has no split that is in time once it is simulated; give more {days}"


def simulated(planner: Planner, plan: TrainingPlan) -> Simulated:
    """Return the days of a plan's run with its failures played one by one."""
    share = plan.goodput
    work = plan.days * DAY * share.share
    repair = planner.how.repair.value * DAY
    timing = (share.mtti, share.checkpoint.blocking, share.restart, share.interval)
    runs = [play(work, *timing, repair, share.standing_by, seed) for seed in range(SEEDS)]
    days = np.array([run.seconds for run in runs]) / DAY
    return Simulated(float(days.mean()), float(days.std()), float(np.mean([run.failures for run in runs])))


def _changes(planner: Planner, asked: PlanRequest, kind: Point, best: TrainingPlan) -> list[Change]:
    """Return what a week, a slower network and a slower fabric are worth."""
    found = []
    with_batch = {**kind, BATCH: best.point[BATCH]}
    if asked.days is not None:
        for days, what in ((asked.days + WEEK, "a week more"), (asked.days - WEEK, "a week less")):
            if days > 0:
                found.append(Change(f"{what} ({days:g} days)", planner.plan(replace(asked, days=days), with_batch)))
    if best.nodes > 1:
        cluster, open_ = planner.case.cluster(best.point).simulator.cluster, replace(asked, days=None, budget=None)
        rate = cluster.node.wire / 2
        said = parted(kind)[0]
        if "cluster.nic" not in said:
            slower = {"cluster.nic": f"{rate * 8 / 1e9:g}Gb/s"}
            found.append(Change(f"NICs of {scaled(rate * 8, 'b/s')}", planner.other(open_, best, slower)))
        if "fabric.oversubscription" not in said:
            found.append(
                Change("leaves oversubscribed 4 : 1", planner.other(open_, best, {"fabric.oversubscription": 4}))
            )
    return found
