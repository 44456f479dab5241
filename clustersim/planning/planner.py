"""The least cluster that trains in time: sizes and splits by lower bounds, the promising ones simulated, failures counted in.

Splits of all numbers of nodes are bounded from below on one node of their kind of cluster (`splits.py`). They are then simulated
on their real cluster, the cheapest first, until no other can be better (as in `optimization/search.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from clustersim.config.overrides import parted
from clustersim.model.parameters import parameters
from clustersim.planning.reliability import DAY, Goodput, Reliability, goodput
from clustersim.planning.request import PlanRequest
from clustersim.planning.splits import KindOfCluster, SizedSplit
from clustersim.sweeps.evaluate import Row, SweepInputs, evaluate
from clustersim.sweeps.space import Point

NEAR = 0.01
"""No split that was looked at is cheaper than a plan by more than this share of its cost."""


class PlanUnderWay(NamedTuple):
    """What is simulated next, and what it is for."""

    sought: str
    """What is looked for, such as `the cheapest plan on h100 within 30 days`."""
    nodes: int
    """Of the split that is simulated next."""
    done: int
    """Splits that were simulated so far, for other plans too."""
    tried: int
    """Those that are a step of what is looked for now, some of them simulated for another plan before."""
    left: int
    """How many more splits could be better, on all numbers of nodes, this one aside."""


PlanProgress = Callable[[PlanUnderWay], None]


class _Candidate(NamedTuple):
    cost: float
    """What is minimized, at the lower bound of the step."""
    days: float
    """At that bound."""
    place: int
    split: SizedSplit


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A cluster, a split and what the run on it comes to."""

    point: Point
    """Keys of topology and workload."""
    row: Row
    """Its simulated step, as in a sweep."""
    nodes: int
    """That the job needs."""
    goodput: Goodput
    """Failures, checkpoints and the slowest replica."""
    days: float
    """Of the whole run."""
    usd: float | None
    """Rent of all nodes, spares too; None where no price is known."""
    usd_owned: float | None
    """The same of machines of one's own."""
    kwh: float
    """Of the building."""
    co2_kg: float
    """CO2e."""
    tried: int = 0
    """How many points were simulated to find it."""
    screened: int = 0
    """How many were looked at."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans of one workload; what was worked out for one question is known to the next."""

    case: SweepInputs
    how: Reliability
    rows: dict[str, Row] = field(default_factory=dict)
    """What was simulated, by point."""
    spaces: dict[str, list[SizedSplit]] = field(default_factory=dict)
    """Splits by kind of cluster and batch."""
    kinds: dict[str, KindOfCluster] = field(default_factory=dict)
    """Kinds of cluster, whatever the batch."""
    shares: dict[tuple[object, ...], Goodput] = field(default_factory=dict)
    """Shares of progress, by nodes, GPUs, replicas and kind of checkpoints."""
    show: PlanProgress = field(default=lambda _: None)
    """Is told before each simulation."""

    def first(self, asked: PlanRequest, kinds: Sequence[Sequence[Point]]) -> TrainingPlan | None:
        """Return the plan of the first of some lists that has one, as `plan` finds it."""
        return next(filter(None, (self.plan(asked, *some) for some in kinds)), None)

    def plan(self, asked: PlanRequest, *kinds: Point) -> TrainingPlan | None:
        """Return the cheapest plan on clusters of one kind, but for `NEAR`; None where none is within all limits.

        kinds: that kind, with each of several batches. With a deadline the least rent is sought, or the fewest nodes where nobody
        says what they cost; without, the least days.
        """
        clusters, space = self.clusters(kinds[0]), [one for kind in kinds for one in self.space(kind)]
        heap = [self._candidate(asked, clusters, place, one) for place, one in enumerate(space)]
        heap = [one for one in heap if one.cost < math.inf]
        heapify(heap)
        tried, best, plan = 0, math.inf, None
        sought = _sought(asked, clusters)
        while heap and heap[0].cost < best * (1 - NEAR):
            *_, place, split = heappop(heap)
            if split.job is None:
                clusters.bound(split)
                heappush(heap, self._candidate(asked, clusters, place, split))
                continue
            self.show(PlanUnderWay(sought, split.nodes, len(self.rows), tried, len(heap)))
            if not clusters.fits(split) or (row := self._row(split.point))["status"] != "ok":
                continue
            tried += 1
            found = self._of(asked, split.point, split.nodes, row)
            if (cost := asked.cost(found.days, found.usd, found.nodes)) < best:
                best, plan = cost, found
        return plan and replace(plan, tried=tried, screened=len(space))

    def other(self, asked: PlanRequest, plan: TrainingPlan, changes: Mapping[str, object]) -> TrainingPlan | None:
        """Return the plan on a cluster with other keys, of the same nodes and split; None where that does not run."""
        point = {**plan.point, **changes}
        row = self._row(point)
        return self._of(asked, point, plan.nodes, row) if row["status"] == "ok" else None

    def clusters(self, kind: Point) -> KindOfCluster:
        """Return the clusters of a kind, whatever its batch."""
        key = repr(parted(kind)[0])
        if key not in self.kinds:
            self.kinds[key] = KindOfCluster.of(self.case, kind)
        return self.kinds[key]

    def space(self, kind: Point) -> list[SizedSplit]:
        """Return the splits on clusters of a kind, of all numbers of nodes that they fill."""
        if (key := repr(kind)) not in self.spaces:
            self.spaces[key] = self.clusters(kind).sized(kind)
        return self.spaces[key]

    def _row(self, point: Point) -> Row:
        key = repr(sorted(point.items(), key=str))
        if key not in self.rows:
            self.rows[key] = evaluate(self.case, point)
        return self.rows[key]

    def _candidate(self, asked: PlanRequest, clusters: KindOfCluster, place: int, one: SizedSplit) -> _Candidate:
        """Return a split with what is minimized at the lower bound of its step, infinite where even that is beyond a limit."""
        share = self._share(asked, one.gpus, one.nodes, one.dp)
        days, rent = _days(asked, one.split.tokens, one.step, share), clusters.node.rates.rent
        usd = days * DAY * (one.nodes + share.spares) * rent if rent else None
        return _Candidate(asked.cost(days, usd, one.nodes), days, place, one)

    def _share(self, asked: PlanRequest, gpus: int, nodes: int, dp: int) -> Goodput:
        key = nodes, gpus, dp, asked.asynchronous
        if key not in self.shares:
            held = float(parameters(self.case.base.model))
            self.shares[key] = goodput(self.how, nodes, gpus, held, dp, asked.asynchronous)
        return self.shares[key]

    def _of(self, asked: PlanRequest, point: Point, nodes: int, row: Row) -> TrainingPlan:
        """Return what a run with a simulated step comes to; spare nodes are paid for as the others are."""
        share = self._share(asked, row["ranks"], nodes, row["dp"])
        days = _days(asked, row["global_batch"] * row["seq"], row["step_time_s"], share)
        found = self.case.cluster(point).rates.of(days * DAY * (nodes + share.spares) / nodes)
        return TrainingPlan(point, row, nodes, share, days, **found)


def _sought(asked: PlanRequest, clusters: KindOfCluster) -> str:
    """Return what is looked for, in words."""
    kind, priced = clusters.node, clusters.node.rates.rent is not None
    return f"the {asked.best(priced)} plan on {kind.simulator.cluster.gpu.name}{asked.within}"


def _days(asked: PlanRequest, tokens: int, step: float, share: Goodput) -> float:
    """Return the days of a run; tokens: of a step."""
    return math.ceil(asked.tokens / tokens) * step / share.share / DAY if share.share > 0 else math.inf
