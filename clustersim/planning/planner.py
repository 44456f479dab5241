"""The smallest cluster that trains in time: splits and numbers of replicas are candidates of one search, refined by `optimize`.

A replica uses the GPUs of its split, so a number of replicas determines the number of nodes. The lower bound of each candidate's
step gives one of days and dollars, including failures and spares, so that candidates which cannot win are excluded without a
simulation. On the nodes of the best candidate, the full search of `optimize` finds the plan; if that is much faster, fewer nodes
may suffice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from clustersim.arrays import Floats
from clustersim.costs.bill import Rates
from clustersim.errors import InputError
from clustersim.model.parameters import parameters
from clustersim.optimization.answer import wider
from clustersim.optimization.objective import Load, Objective, objective
from clustersim.optimization.search import (
    NEVER,
    TO_THE_END,
    Limits,
    SearchProgress,
    SearchResult,
    SharedWork,
    Stop,
    free,
    search,
)
from clustersim.optimization.space import CandidateSpace
from clustersim.parallel.options import KEYS
from clustersim.planning.batches import BATCH
from clustersim.planning.reliability import DAY, Goodput, Reliability, goodput
from clustersim.planning.request import BEST, MINIMIZED, PlanRequest
from clustersim.sweeps.evaluate import Row, SweepCluster, SweepInputs
from clustersim.sweeps.legal import check_values
from clustersim.sweeps.space import NODES, Point, SweepSpace

NEAR = 0.01
"""Relative cost difference below which two plans count as equally cheap."""
MOST_GPUS = 200_000
COARSE = tuple(KEYS[name] for name in ("tp", "pp", "ep", "micro_batch", "vpp", "recompute"))
"""Keys whose legal values are candidates on all numbers of nodes, besides cp. The chosen nodes get all keys of `optimize`."""
PROBED, ANSWERED = Limits(simulations=16, gap=NEAR), Limits(simulations=12)
"""Limits of the search over all numbers of nodes, and of the search on the chosen nodes if others may be as good."""
ANSWERS = 3
"""Largest number of node counts on which the split is refined."""
NETWORKED = ("owned", "energy")
"""Objectives to which the network of a cluster adds, which is larger per node on some numbers of nodes."""
REFINED = 0.8
"""Assumed step time after refinement over that before: a plan that misses a limit by more is not refined."""


PlanProgress = Callable[[str, int, int], None]
"""Callback that receives the kind of plan, such as `the cheapest plan on h100 within 30 days`, and the numbers of simulated
splits and of splits that may still be better."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A cluster, a split, and the time and cost of the run."""

    point: Point
    """Keys of topology and workload."""
    row: Row
    """Row of its simulated step, as in a sweep."""
    nodes: int
    """Number of nodes that the job needs."""
    goodput: Goodput
    """Goodput, with failures, checkpoints and the slowest replica."""
    days: float
    """Days of the whole run."""
    usd: float | None
    """USD of rent for all nodes, including spares; None without a known price."""
    usd_owned: float | None
    """USD for owned machines; None without a known price."""
    kwh: float
    """Energy of the building in kWh."""
    co2_kg: float
    """Emissions in kg CO2e."""
    tried: int = field(default=0, compare=False)
    """Number of points simulated in the search."""
    screened: int = field(default=0, compare=False)
    """Number of points considered in the search."""
    gap: float | None = field(default=None, compare=False)
    """Largest share by which other plans may be better, if the search was ended early; else None."""

    @property
    def amounts(self) -> dict[str, Floats]:
        """Quantities that a request limits or minimizes, by name; GPUs of all nodes but spares; nan without a known price."""
        own = {"gpus": self.row["gpus"]}
        return {name: np.array(own.get(name) or getattr(self, name), float) for name in ("nodes", *MINIMIZED.values())}


@dataclass(slots=True)
class _PlanSearch:
    """State of the search for a plan on clusters of one kind."""

    asked: PlanRequest
    """Tokens and limits of the plan."""
    kind: Point
    """Overrides that make the kind of cluster."""
    space: CandidateSpace
    """Splits on all numbers of nodes."""
    show: SearchProgress
    stop: Stop
    plans: dict[int, TrainingPlan] = field(default_factory=dict)
    """Plans by number of nodes, also beyond a limit."""
    tried: int = 0
    """Number of simulated splits."""
    bound: float = math.inf
    """Lower bound of the cost of all candidates that are not simulated."""

    def best(self) -> TrainingPlan | None:
        """Return the best plan so far that meets all limits, or None."""
        costs = {size: float(self.asked.costs(one.amounts)) for size, one in self.plans.items()}
        nodes = min(costs, key=costs.__getitem__, default=0)
        if costs.get(nodes, math.inf) == math.inf:
            return None
        chosen = self.plans[nodes]
        gap = max(chosen.gap or 0.0, 1 - self.bound / costs[nodes]) if self.stop.due else None
        return replace(chosen, tried=self.tried, screened=self.space.points, gap=gap)

    @property
    def ended(self) -> bool:
        """Whether the search must end early."""
        return self.stop.interrupted or (self.stop.due and self.best() is not None)


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans of one workload. Results for one question are reused for the next."""

    case: SweepInputs
    how: Reliability
    shared: SharedWork = field(default_factory=SharedWork)
    """Simulated steps, and lower bounds of layers by kind of node."""
    spaces: dict[tuple[object, ...], CandidateSpace | None] = field(default_factory=dict)
    """Candidates on all numbers of nodes, by kind of cluster and batches."""
    found: dict[tuple[object, ...], SearchResult | None] = field(default_factory=dict)
    """Searches by kind of cluster, nodes and limits."""
    levels: dict[str, float] = field(default_factory=dict)
    """Expected over simulated seconds of a step, by kind of cluster."""
    refined: dict[str, float] = field(default_factory=dict)
    """Smallest step time after refinement over that before, by kind of cluster and batch."""
    bills: dict[tuple[str, int], Rates] = field(default_factory=dict)
    """Cost per second by kind of cluster and number of nodes."""
    shares: dict[tuple[object, ...], Goodput] = field(default_factory=dict)
    """Shares of progress, by nodes, GPUs, replicas and kind of checkpoints."""
    show: PlanProgress = field(default=lambda *_: None)
    """Callback that receives the progress before each simulation."""
    stop: Stop = NEVER
    """Time limit and Ctrl-C, which end searches early with the best plan so far."""

    def first(self, asked: PlanRequest, kinds: Sequence[Sequence[Point]]) -> TrainingPlan | None:
        """Return the plan of the first of several lists of clusters that has one, as `plan` finds it.

        Later lists are searched one by one only if a search of all lists together has a plan.
        """
        if found := self.plan(asked, *kinds[0]):
            return found
        later = kinds[1:] if len(kinds) > 1 and self.plan(asked, *chain(*kinds)) else ()
        return next(filter(None, (self.plan(asked, *some) for some in later)), None)

    def several(self, asked: PlanRequest, kinds: Sequence[Sequence[Point]]) -> Iterator[TrainingPlan]:
        """Yield the plan of `first`, and with `asked.front` those of all objectives and of sizes between them.

        The sizes are powers of two times the smallest: on each the soonest plan, which is also the cheapest on its nodes.
        """
        found = self.first(asked, kinds)
        yield from filter(None, [found])
        if found and asked.front:
            best = [*filter(None, (self.first(replace(asked, objective=goal), kinds) for goal in MINIMIZED))]
            yield from best
            least, most = (choose([found, *best], key=lambda one: one.nodes).nodes for choose in (min, max))
            sizes = (least << power for power in range(1, math.ceil(math.log2(most / least))))
            yield from filter(None, (self.first(replace(asked, nodes=n, objective="soonest"), kinds) for n in sizes))

    def plan(self, asked: PlanRequest, *kinds: Point) -> TrainingPlan | None:
        """Return the best plan on clusters of one kind, within `NEAR`; None if no plan meets all limits.

        kinds: the kind of cluster, once per batch.
        """
        if self.stop.interrupted:
            return None
        kind, batches = kinds[0], tuple(dict.fromkeys(int(str(kind[BATCH])) for kind in kinds))
        space = self.space(kind, batches[:: max(len(batches) - 1, 1)])
        if space is None:
            return None
        node = self.clusters(kind)
        if asked.goal == "rent" and node.rates.rent is None:
            asked = replace(asked, objective="gpus")
        limits = f" within {asked.said}" if asked.said else ", without a limit"
        sought = f"the {BEST[asked.goal]} plan on {node.simulator.cluster.gpu.name}{limits}"

        def show(_: int, left: int, gap: float | None) -> None:
            self.show(sought, len(self.shared.rows), left)

        state = _PlanSearch(asked, kind, space, show, self.stop)
        with self.stop.ended_by_interrupt(state.best):
            for one in (asked, *map(asked.relaxed, ([name] for name in asked.given))):
                self._refine(one, state)  # refinement may bring a plan beyond a limit within it
                if state.best():
                    break
        return state.best()

    def _refine(self, asked: PlanRequest, state: _PlanSearch) -> None:
        """Add the plans on the most promising numbers of nodes. asked: the request, or one with fewer limits."""
        kind, plans = state.kind, state.plans
        key, times, most = repr(sorted(kind.items(), key=str)), 1.0, len(plans) + ANSWERS
        limits = (TO_THE_END if asked.of_nodes else ANSWERED)._replace(stop=self.stop)
        while len(plans) < most and not state.ended:
            coarse = self._coarse(asked, state, times)
            state.tried += coarse.simulated
            if not coarse.best and times > (least := self.refined.get(key, REFINED)):
                times = least
                continue
            if coarse.best and asked is state.asked:
                state.bound = coarse.best[0].value[0] * (1 - (coarse.gap or 0.0))
            if not coarse.best or (nodes := int(str(coarse.best[0].point[NODES]))) in plans:
                break
            row, best = coarse.best[0].row, coarse.best[0]
            plans[nodes] = self.of(asked, best.point, nodes, row)
            size, filled = self.clusters(kind).simulator.cluster.gpus, 0
            while nodes != filled and not state.ended:  # the best split may leave nodes idle: search on those in use
                found, filled = self.best({**kind, BATCH: row["global_batch"]}, nodes, limits, state.show), nodes
                if found:  # a search that ends early may miss the split that it began with
                    state.tried += found.simulated
                    best = min([*found.best[:1], best], key=lambda one: one.row["expected_step_time_s"])
                gap = found.gap if found else None
                plans[nodes] = replace(self.of(asked, best.point, nodes, best.row), gap=gap)
                nodes = -(-best.row["ranks"] // size)
            times = min(times, best.row["step_time_s"] / row["step_time_s"])
            self.refined[key] = min(times, self.refined.get(key, 1.0))

    def _coarse(self, asked: PlanRequest, state: _PlanSearch, times: float) -> SearchResult:
        """Return the best candidate on any number of nodes, with all step times multiplied by `times`."""
        space, show = state.space, state.show
        if (key := _name(state.kind)) not in self.levels:
            one = search(self.case, space, objective("soonest"), 1, show, Limits(simulations=1), self.shared).best
            self.levels[key] = one[0].row["expected_step_time_s"] / one[0].row["step_time_s"] if one else 1.0
        wanted = self._wanted(asked, state.kind, times * self.levels[key])
        return search(self.case, space, wanted, 1, show, PROBED._replace(stop=self.stop), self.shared)

    def _wanted(self, asked: PlanRequest, kind: Point, times: float) -> Objective:
        """Return the objective of a plan, with all step times multiplied by `times`."""

        def minimized(cluster: SweepCluster, load: Load, seconds: Floats) -> Floats:
            whole = cluster.simulator.cluster
            size = whole.gpus / whole.nodes
            gpus, replicas = np.atleast_1d(load.gpus), np.atleast_1d(load.replicas)
            nodes = np.ceil(gpus / size)
            counts, places = np.unique(nodes, return_inverse=True)
            each = np.stack([gpus, nodes, replicas], axis=1).astype(int).tolist()
            shares = [self.share(asked, *one) for one in each]
            share, spares = np.array([(one.share, one.spares) for one in shares], float).T
            days = _days(asked, load.tokens, seconds * times, share)
            if asked.goal in NETWORKED:
                each_size = np.array([self.rates(kind, int(count))[:3] for count in counts], float) / counts[:, None]
                usd, owned, power = each_size[places].T
            else:
                usd, owned, power = np.array(cluster.rates[:3], float) / whole.nodes
            busy = days * DAY * (nodes + spares)
            money = {"usd": usd * busy, "usd_owned": owned * busy, "kwh": power * busy / 3.6e6}
            return asked.costs({"days": days, **money, "nodes": nodes, "gpus": nodes * size}).reshape(np.shape(seconds))

        return Objective("plan", minimized)

    def rates(self, kind: Point, nodes: int) -> Rates:
        """Return the cost per second of a number of nodes with their network; infinite if no such cluster can be built."""
        key = _name(kind), nodes
        if key not in self.bills:
            self.bills[key] = Rates(math.inf, math.inf, math.inf, 0.0, 0.0, None)
            with suppress(InputError):
                self.bills[key] = self.clusters(kind, nodes).rates
        return self.bills[key]

    def space(self, kind: Point, batches: Sequence[int]) -> CandidateSpace | None:
        """Return the candidates on all numbers of nodes of a kind of cluster; None if no cluster can be built."""
        key = _name(kind), tuple(batches)
        if key not in self.spaces:
            self.spaces[key] = None
            with suppress(InputError):
                axes = {} if len(batches) == 1 else {BATCH: batches}
                fixed = {**kind, NODES: self._most(kind), BATCH: batches[0]}
                fixed = {key: value for key, value in fixed.items() if key not in axes}
                asked = SweepSpace(axes, fixed, frozenset(), tuple(one for one in free(kind) if one in COARSE))
                check_values(self.case, asked)
                self.spaces[key] = CandidateSpace(self.case, wider(self.case, asked), resized=True)
        return self.spaces[key]

    def _most(self, kind: Point) -> int:
        """Return the largest number 2^n or 3 · 2^n of nodes of a kind of cluster. Raises InputError if no cluster is possible."""
        most = self.most_gpus(kind) // self.clusters(kind).simulator.cluster.gpus
        sizes = [size for power in range(20) for size in (1 << power, 3 << power) if size <= most]
        for size in sorted(sizes, reverse=True):
            with suppress(InputError):
                self.clusters(kind, size)
                return size
        return 1

    def best(
        self, kind: Point, nodes: int, limits: Limits, show: SearchProgress = lambda *_: None
    ) -> SearchResult | None:
        """Return the best split on a number of nodes, as `optimize` finds it; None if none is possible."""
        fixed = {**kind, NODES: nodes}
        if (key := (repr(sorted(fixed.items(), key=str)), limits)) not in self.found:
            self.found[key] = None
            space = SweepSpace({}, fixed, frozenset(), tuple(free(kind)))
            with suppress(InputError):
                check_values(self.case, space)
                space = wider(self.case, space)
                self.found[key] = search(self.case, space, objective("soonest"), 1, show, limits, self.shared)
        return self.found[key]

    def other(self, asked: PlanRequest, plan: TrainingPlan, changes: Mapping[str, object]) -> TrainingPlan | None:
        """Return the plan on a cluster with other keys, with equal nodes and split; None if it does not run."""
        point = {**plan.point, **changes}
        row = self.shared.row(self.case, point)
        return self.of(asked, point, plan.nodes, row) if row["status"] == "ok" else None

    def clusters(self, kind: Point, nodes: int = 1) -> SweepCluster:
        """Return a cluster of a kind. Raises InputError if it cannot be built."""
        return self.case.cluster({**{key: value for key, value in kind.items() if key != BATCH}, NODES: nodes})

    def most_gpus(self, kind: Point) -> int:
        """Return the number of GPUs of the largest cluster of a kind: those of one node if it has no NICs."""
        node = self.clusters(kind).simulator.cluster
        return MOST_GPUS if node.node.wire else node.gpus

    def share(self, asked: PlanRequest, gpus: int, nodes: int, dp: int) -> Goodput:
        """Return the goodput of `dp` replicas on these nodes and GPUs."""
        key = nodes, gpus, dp, asked.asynchronous
        if key not in self.shares:
            held = float(parameters(self.case.base.model))
            self.shares[key] = goodput(self.how, nodes, gpus, held, dp, asked.asynchronous)
        return self.shares[key]

    def of(self, asked: PlanRequest, point: Point, nodes: int, row: Row) -> TrainingPlan:
        """Return the plan of a run with a simulated step; spare nodes cost as much as the others."""
        share = self.share(asked, row["ranks"], nodes, row["dp"])
        days = float(_days(asked, row["global_batch"] * row["seq"], row["expected_step_time_s"], share.share))
        found = self.case.cluster(point).rates.of(days * DAY * (nodes + share.spares) / nodes)
        return TrainingPlan(point, row, nodes, share, days, **found)


def _name(kind: Point) -> str:
    """Return a name for a kind of cluster that does not depend on its batch."""
    return repr(sorted((item for item in kind.items() if item[0] != BATCH), key=str))


def _days(asked: PlanRequest, tokens: Floats | float, seconds: Floats | float, share: Floats | float) -> Floats:
    """Return the days of a run with steps of `tokens` tokens and `seconds` seconds; infinite if no time is progress (share 0)."""
    with np.errstate(divide="ignore"):
        days: Floats = np.ceil(asked.tokens / tokens) * seconds / np.asarray(share) / DAY
    return days
