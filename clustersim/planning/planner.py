"""The least cluster that trains in time: sizes and splits by lower bounds, the promising ones simulated, failures counted in.

For each kind of cluster, all legal splits of all numbers of nodes that they fill are bounded from below on one node of that
kind. They are then simulated on their real cluster, the cheapest first, until no other can be better (`optimization/search.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from typing import NamedTuple

from clustersim.config.overrides import parted
from clustersim.errors import InputError
from clustersim.model.parameters import parameters
from clustersim.optimization.bound import LowerBounds
from clustersim.optimization.search import may_fit
from clustersim.parallel.flops import model_flop
from clustersim.parallel.job import Job, divisors
from clustersim.planning.reliability import DAY, Goodput, Reliability, goodput
from clustersim.planning.request import PlanRequest
from clustersim.sweeps.evaluate import Row, SweepInputs, evaluate
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import Point, SweepSpace
from clustersim.topology.model import Topology

TP, PP, DP, VPP = (f"parallelism.{name}" for name in ("tp", "pp", "dp", "vpp"))
SCHEDULE, BATCH, MICRO_BATCH, RECOMPUTE, NODES = (
    "parallelism.schedule",
    "training.global_batch",
    "training.micro_batch",
    "training.recompute",
    "cluster.nodes",
)
MICRO_BATCHES = (1, 2, 4)
"""Sequences of a microbatch that are tried."""
RECOMPUTED = ("none", "selective", "full")
MOST_GPUS = 200_000
"""Of a plan."""
FEWEST, MOST = 1.2, 6.0
"""Nodes that are looked at, over those that would do at the peak rate of their GPUs."""
NEAR = 0.01
"""No split that was looked at is cheaper than a plan by more than this share of its cost."""
LATER, SOONER = 1.35, 0.7
"""Deadlines, over the one that is asked for, of which the answer is at hand too."""


class SizedSplit(NamedTuple):
    """A split on the number of nodes that it fills, and what bounds its step from below."""

    step: float
    """Seconds."""
    point: Point
    job: Job
    nodes: int


class _Candidate(NamedTuple):
    cost: float
    """What is minimized, at the lower bound of the step."""
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
    """Failures and checkpoints."""
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
    spaces: dict[tuple[str, float], dict[float | None, list[SizedSplit]]] = field(default_factory=dict)
    """Splits by kind of cluster and tokens, then by the deadline that their sizes were looked for."""
    shares: dict[tuple[object, ...], Goodput] = field(default_factory=dict)
    """Shares of progress, by nodes, GPUs, replicas and kind of checkpoints."""
    bounds: dict[str, LowerBounds] = field(default_factory=dict)
    """Lower bounds by kind of cluster, whatever the batch."""

    def plan(self, asked: PlanRequest, kind: Point) -> TrainingPlan | None:
        """Return the cheapest plan on clusters of one kind, but for `NEAR`; None where none is in time and within the budget.

        With a deadline the least rent is sought, or the fewest nodes where nobody says what they cost; without, the least days.
        """
        space = self.space(asked, kind)
        heap = [_Candidate(self._least(asked, one), place, one) for place, one in enumerate(space)]
        heap = [one for one in heap if one.cost < math.inf]
        heapify(heap)
        tried, best, plan = 0, math.inf, None
        while heap and heap[0].cost < best * (1 - NEAR):
            split = heappop(heap).split
            row = self._row(split.point)
            tried += 1
            if row["status"] != "ok":
                continue
            found = self._of(asked, split.point, split.job, split.nodes, row)
            if (cost := _cost(asked, found.days, found.usd, found.nodes)) < best:
                best, plan = cost, found
        return plan and replace(plan, tried=tried, screened=len(space))

    def fastest(self, asked: PlanRequest, kind: Point) -> float:
        """Return days that no cluster of a kind is faster than, of those that are looked at."""
        space = self.space(asked, kind)
        shares = (self._share(asked, one.job, one.nodes) for one in space)
        return min(
            (_days(asked, one.job, one.step, own) for one, own in zip(space, shares, strict=True)), default=math.inf
        )

    def cheapest(self, asked: PlanRequest, kind: Point) -> float | None:
        """Return USD that no plan of a kind in time rents for less than, infinite where none is in time; None without a price."""
        found = [self._bound(asked, one) for one in self.space(asked, kind)]
        usd = [usd for days, usd in found if asked.days is None or days <= asked.days]
        return min((one for one in usd if one is not None), default=None if usd else math.inf)

    def other(self, asked: PlanRequest, plan: TrainingPlan, changes: Mapping[str, object]) -> TrainingPlan | None:
        """Return the plan on a cluster with other keys, of the same nodes and split; None where that does not run."""
        point = {**plan.point, **changes}
        row = self._row(point)
        if row["status"] != "ok":
            return None
        job = self.case.cluster(point).simulator.placed(self.case.job(point))
        return self._of(asked, point, job, plan.nodes, row)

    def space(self, asked: PlanRequest, kind: Point) -> list[SizedSplit]:
        """Return the splits that may be in time on clusters of a kind, of all numbers of nodes that they fill."""
        known = self.spaces.setdefault((repr(kind), asked.tokens), {})
        days = next((days for days, found in known.items() if found and _at_hand(days, asked.days)), asked.days)
        if days not in known:
            known[days] = self._space(asked, kind)
        return known[days]

    def _space(self, asked: PlanRequest, kind: Point) -> list[SizedSplit]:
        one = self.case.cluster({**kind, NODES: 1})
        bounds = self.bounds.setdefault(repr(parted(kind)[0]), LowerBounds(one.simulator.preparation))
        fits = [
            (own, sized)
            for own, sizes in ((bounds.of(job), sizes) for job, sizes in self._sized(asked, kind) if sizes)
            for sized in sizes
            if may_fit(own, sized.job, one)
        ]
        bounds.learn((own, sized.job) for own, sized in fits)
        return [sized._replace(step=own.step(sized.job)) for own, sized in fits]

    def _sized(self, asked: PlanRequest, kind: Point) -> Iterator[tuple[Job, list[SizedSplit]]]:
        """Yield the legal splits, each on all numbers of nodes between the fewest and the most that it fills, dp written out."""
        node = self.case.cluster({**kind, NODES: 1}).simulator.cluster
        for point in self._splits(kind):
            with suppress(InputError):
                job = self.case.job(point)
                yield job, list(self._sizes(asked, point, job, node))

    def _sizes(self, asked: PlanRequest, point: Point, job: Job, node: Topology) -> Iterator[SizedSplit]:
        low, high = self._nodes(asked, job, node.gpus, node.gpu.matrix_peak(job.training.precision))
        lanes = job.parallelism.lanes
        share, uneven = divmod(job.training.global_batch, job.training.micro_batch)
        for dp in divisors(share) if not uneven else ():
            nodes, idle = divmod(lanes * dp, node.gpus)
            if idle or not low <= nodes <= high:
                continue
            with suppress(InputError):
                placed = job.place(lanes * dp, node.gpus)
                if placed.mesh.size == lanes * dp:
                    yield SizedSplit(0.0, {**point, NODES: nodes}, placed, nodes)

    def _splits(self, kind: Point) -> Iterator[Point]:
        whole = {**kind, NODES: 1}
        layers = self.case.base.model.layers + self.case.base.model.encoder_layers
        layers += self.case.base.parallelism.account_for_embedding
        layers += self.case.base.parallelism.account_for_loss
        for start in legal(self.case, SweepSpace({}, whole, frozenset(), (TP,))):
            for pp in divisors(layers):
                for vpp in divisors(layers // pp) if pp > 1 else [1]:
                    schedule = {SCHEDULE: "interleaved" if vpp > 1 else "1f1b", VPP: vpp}
                    for size in MICRO_BATCHES:
                        for recompute in RECOMPUTED:
                            yield {**start, PP: pp, DP: "auto", **schedule, MICRO_BATCH: size, RECOMPUTE: recompute}

    def _nodes(self, asked: PlanRequest, job: Job, gpus: int, peak: float) -> tuple[float, float]:
        """Return the fewest and the most nodes that are looked at: those that would do at the peak, and several times these."""
        most = MOST_GPUS / gpus
        if asked.days is None:
            return 1, most
        flop = model_flop(job) / (job.training.global_batch * job.training.seq) * asked.tokens
        at_peak = flop / (peak * gpus * asked.days * DAY)
        return FEWEST * at_peak / LATER, min(most, max(1.0, MOST * at_peak / SOONER))

    def _row(self, point: Point) -> Row:
        key = repr(sorted(point.items(), key=str))
        if key not in self.rows:
            self.rows[key] = evaluate(self.case, point)
        return self.rows[key]

    def _least(self, asked: PlanRequest, one: SizedSplit) -> float:
        """Return what is minimized at the lower bound of a step, infinite where even that is too late or too dear."""
        return _cost(asked, *self._bound(asked, one), one.nodes)

    def _bound(self, asked: PlanRequest, one: SizedSplit) -> tuple[float, float | None]:
        """Return days and USD at the lower bound of a step; no USD where nobody says what a GPU costs."""
        share = self._share(asked, one.job, one.nodes)
        days = _days(asked, one.job, one.step, share)
        cluster = self.case.cluster({**one.point, NODES: 1}).simulator.cluster
        price = self.case.costs.rent.get(cluster.gpu.name)
        hours = days * 24 * (one.nodes + share.spares) * cluster.gpus
        return days, hours * price.price if price else None

    def _share(self, asked: PlanRequest, job: Job, nodes: int) -> Goodput:
        key = nodes, job.mesh.size, job.dp, asked.asynchronous
        if key not in self.shares:
            held = float(parameters(job.model))
            self.shares[key] = goodput(self.how, nodes, job.mesh.size, held, job.dp, asked.asynchronous)
        return self.shares[key]

    def _of(self, asked: PlanRequest, point: Point, job: Job, nodes: int, row: Row) -> TrainingPlan:
        """Return what a run with a simulated step comes to; spare nodes are paid for as the others are."""
        share = self._share(asked, job, nodes)
        days = _days(asked, job, row["step_time_s"], share)
        found = self.case.cluster(point).rates.of(days * DAY * (nodes + share.spares) / nodes)
        return TrainingPlan(point, row, nodes, share, days, **found)


def _at_hand(days: float | None, asked: float | None) -> bool:
    """Return whether the sizes that were looked at for a deadline do for the one that is asked for too.

    For later ones they do, so that more time is never dearer: what was in time still is.
    """
    return days is None or (asked is not None and asked >= SOONER * days)


def _days(asked: PlanRequest, job: Job, step: float, share: Goodput) -> float:
    steps = math.ceil(asked.tokens / (job.training.global_batch * job.training.seq))
    return steps * step / share.whole / DAY if share.whole > 0 else math.inf


def _cost(asked: PlanRequest, days: float, usd: float | None, nodes: int) -> float:
    """Return what is minimized, infinite where a plan is too late or too dear."""
    if asked.budget is not None and (usd is None or usd > asked.budget):
        return math.inf
    if asked.days is None:
        return days
    if days > asked.days:
        return math.inf
    return float(nodes) if usd is None else usd
