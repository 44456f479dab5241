"""The answer of `plan`: the best plan of each kind of cluster, a check of its goodput, and the value of changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from clustersim.config.overrides import parted
from clustersim.config.yaml import Document
from clustersim.errors import InputError, option
from clustersim.optimization.neighbours import WhatIf, what_ifs
from clustersim.optimization.objective import priced
from clustersim.planning.batches import BATCH, batches
from clustersim.planning.planner import Planner, TrainingPlan
from clustersim.planning.refusal import why_none
from clustersim.planning.reliability import DAY
from clustersim.planning.renewal import play
from clustersim.planning.request import MINIMIZED, PlanRequest
from clustersim.sweeps.space import Point
from clustersim.sweeps.table import undominated
from clustersim.topology.build import overridden
from clustersim.units import dollars

WEEK = 7.0
MONEY = 0.1
"""Share of a plan's dollars that is added and removed, to see the value of a dollar."""
SEEDS = 40
"""Number of simulated runs with random failures."""


class Simulated(NamedTuple):
    """Days of a run whose failures are simulated one by one."""

    mean: float
    deviation: float
    failures: float
    """Mean number of failures of the runs."""


class Change(NamedTuple):
    """A changed limit or cluster, and the best plan with it."""

    what: str
    plan: TrainingPlan | None
    request: PlanRequest
    """The limits that the plan is compared with."""
    free: bool = False
    """Whether it changes only the split and the computation of a step."""

    @property
    def misses(self) -> list[str]:
        """Limits that the plan exceeds: days, budget, nodes."""
        return self.request.misses(self.plan.amounts) if self.plan else []


@dataclass(frozen=True, slots=True)
class Answer:
    """Plans of all requested kinds of clusters, the best first, and reasons for kinds without a plan."""

    request: PlanRequest
    plans: tuple[tuple[Point, TrainingPlan], ...]
    without: tuple[tuple[Point, str], ...]
    """Kinds of cluster without a plan, each with one sentence why."""
    played: Simulated
    """Simulation of the first plan, its failures event by event."""
    batches: tuple[int, ...]
    """Sequences per step from which the first plan's batch was chosen, unless no smaller batch has a plan."""
    changes: tuple[Change, ...] = ()
    """Changes of limits and cluster with their plans, if `changes` was called."""
    front: tuple[tuple[Point, TrainingPlan], ...] = ()
    """Plans that no other beats in every minimized quantity, if requested, the smallest first."""

    @property
    def goal(self) -> str:
        """The minimized quantity: GPUs instead of the default rent if no price is known."""
        priced = any(plan.usd is not None for _, plan in self.plans)
        return "gpus" if self.request.goal == "rent" and not priced else self.request.goal

    @property
    def winners(self) -> list[list[str]]:
        """Objectives by which each plan of the front is the best, without those of unknown prices."""
        requests = {goal: replace(self.request, objective=goal) for goal in MINIMIZED}
        ranks = {goal: [request.rank(plan.amounts) for _, plan in self.front] for goal, request in requests.items()}
        known = {goal: rank for goal, rank in ranks.items() if rank and min(rank)[0] < np.inf}
        return [[goal for goal, rank in known.items() if rank[place] == min(rank)] for place in range(len(self.front))]


def answer(planner: Planner, request: PlanRequest) -> Answer:
    """Return the best plans, one per kind of cluster. Raises InputError with a remedy if no kind has a plan."""
    plans: list[tuple[Point, TrainingPlan]] = []
    every: list[tuple[Point, TrainingPlan]] = []
    without: list[tuple[Point, str]] = []
    for kind in request.candidates:
        tried, known = _batches(planner, request, kind), len(every)
        _check_tokens(planner, request, tried[0][0])
        try:
            priced(request.objective or "", planner.clusters(kind))
        except InputError as error:
            without.append((kind, str(error)))
            continue
        with planner.stop.ended_by_interrupt(lambda: every):
            every.extend((kind, plan) for plan in planner.several(request, tried))  # keeps those before an interrupt
            if len(every) == known and not planner.stop.interrupted:
                without.append((kind, why_none(planner, request, tried)))
        if fresh := [plan for _, plan in every[known:]]:
            plans.append((kind, min(fresh, key=lambda plan: request.rank(plan.amounts))))
        elif planner.stop.interrupted:
            without.append((kind, f"{planner.clusters(kind).simulator.cluster.gpu.name}: interrupted before a plan"))
    if not plans and planner.stop.interrupted:
        raise KeyboardInterrupt
    if not plans:
        raise InputError(f"no plan within {request.limits_text}: {'; '.join(why for _, why in without)}")
    plans.sort(key=lambda pair: request.rank(pair[1].amounts))
    sizes = tuple(int(str(point[BATCH])) for point in _batches(planner, request, plans[0][0])[0])
    best = simulated(planner, plans[0][1])
    return Answer(request, tuple(plans), tuple(without), best, sizes, front=_front(every) if request.front else ())


def _front(plans: Sequence[tuple[Point, TrainingPlan]]) -> tuple[tuple[Point, TrainingPlan], ...]:
    """Return the plans that no other beats in every minimized quantity, the smallest first."""
    distinct = {repr(plan.point): (kind, plan) for kind, plan in plans}.values()
    several = sorted(distinct, key=lambda pair: pair[1].row["gpus"])
    amounts = [
        [float(np.nan_to_num(plan.amounts[name], nan=np.inf)) for name in MINIMIZED.values()] for _, plan in several
    ]
    return tuple(several[place] for place in undominated(amounts))


def _batches(planner: Planner, request: PlanRequest, kind: Point) -> list[list[Point]]:
    """Return lists of points of one kind of cluster, one per batch, in the order in which they are tried."""
    return batches(planner.case, kind, request.tokens, planner.clusters(kind).simulator.cluster.gpus)


def _check_tokens(planner: Planner, request: PlanRequest, smallest: Point) -> None:
    """Raise InputError for fewer tokens than a step at the point `smallest` has: usually a suffix is missing."""
    training, tokens = planner.case.job(smallest).training, f"{request.tokens:.10g}"
    if request.tokens < training.global_batch * training.seq:
        flag = option(f"--tokens {tokens}", f"tokens={tokens}")
        meant = option(f"{tokens}T or {tokens}B", f"{tokens}e12 or {tokens}e9") if request.tokens < 1e3 else "more"
        raise InputError(
            f"{flag}: is less than one step of {training.global_batch} sequences of {training.seq} tokens; write {meant}"
        )


def simulated(planner: Planner, plan: TrainingPlan) -> Simulated:
    """Return the days of a plan's run, with its failures simulated one by one."""
    share = plan.goodput
    work = plan.days * DAY * share.progress
    repair = planner.how.repair.value * DAY
    timing = (share.mtti, share.checkpoint.blocking, share.restart, share.interval)
    runs = [play(work, *timing, repair, share.standing_by, seed) for seed in range(SEEDS)]
    days = np.array([run.seconds for run in runs]) / DAY
    return Simulated(float(days.mean()), float(days.std()), float(np.mean([run.failures for run in runs])))


def changes(planner: Planner, answer: Answer) -> Iterator[Change]:
    """Yield the changes worth knowing: a week and dollars, each planned like the answer; then what-ifs of its step, best first.

    At Ctrl-C or the time limit, the change in progress and all later ones are left out.
    """
    with planner.stop.ended_by_interrupt(lambda: True):
        begun = _limits(planner, answer)
        while not planner.stop.due and (change := next(begun, None)) and not planner.stop.due:
            yield change
    yield from _what_ifs(planner, answer)


def _limits(planner: Planner, answer: Answer) -> Iterator[Change]:
    """Yield a week more and less, and more and less money, as changes; their plan is None where no plan keeps the limit."""
    request, (kind, best) = answer.request, answer.plans[0]
    tried = _batches(planner, request, kind)
    if request.days is not None:
        for days, what in ((request.days + WEEK, "a week more"), (request.days - WEEK, "a week less")):
            if days > 0:
                other = replace(request, days=days)
                yield Change(f"{what} ({days:g} days)", planner.first(other, tried), other)
    if best.usd is not None:
        for share, what in ((1 + MONEY, "more"), (1 - MONEY, "less")):
            usd = best.usd * share
            plan = planner.first(replace(request, days=None, budget=usd, objective=None), tried)
            yield Change(f"{MONEY:.0%} {what} money ({dollars(usd)} USD)", plan, replace(request, budget=usd))


def _what_ifs(planner: Planner, answer: Answer) -> list[Change]:
    """Return the what-ifs of the best plan's step that are simulated before Ctrl-C or the time limit, best first."""
    request, best, plans = answer.request, answer.plans[0][1], list[tuple[TrainingPlan, WhatIf]]()
    if planner.stop.due or not isinstance(planner.case.topology, Document):  # what is built already takes no changes
        return []
    with planner.stop.ended_by_interrupt(lambda: True):
        job = planner.case.cluster(best.point).simulator.placed(planner.case.job(best.point))
        for what_if in what_ifs(overridden(planner.case.topology, parted(best.point)[0]), job):
            if what_if.changes and (plan := planner.other(request, best, what_if.changes)):
                plans.append((plan, what_if))
            if planner.stop.due:
                break
    open_ = replace(request, days=None, budget=None, nodes=None, objective=request.goal)
    plans.sort(key=lambda pair: open_.rank(pair[0].amounts))
    return [Change(what_if.name, plan, request, what_if.free) for plan, what_if in plans]
