"""The best cluster for a run: splits and numbers of replicas are candidates of one search, refined by `optimize`.

A replica uses the GPUs of its split, so a number of replicas determines the number of nodes. Each such size has a lower bound of
its step in any order, which gives one of days and dollars, including failures and spares. The sizes with the least bounds are
searched with all orders, and the full search of `optimize` finds the plan on the nodes of the best. Only sizes whose bounds are
below that plan are searched further, until none is left.

Days and dollars are proportional to the step. So a search that finds no plan below 100 dollars among sizes whose bounds were 80
shows that their steps take at least 100 / 80 of these bounds, whatever is asked next: a question with other limits begins with
the raised bounds and the plans that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
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
    Sizes,
    Stop,
    free,
    search,
    sizes,
)
from clustersim.optimization.space import ZERO, CandidateSpace
from clustersim.planning.batches import BATCH
from clustersim.planning.reliability import DAY, Goodput, Reliability, goodput
from clustersim.planning.request import BEST, MINIMIZED, ROUNDED, PlanRequest
from clustersim.sweeps.evaluate import Row, SweepCluster, SweepInputs
from clustersim.sweeps.legal import check_values
from clustersim.sweeps.space import NODES, SCHEDULE, VPP, Point, SweepSpace

NEAR = 0.01
"""Relative cost difference below which two plans count as equally cheap."""
MOST_GPUS = 200_000
PLAIN: Point = {SCHEDULE: "1f1b", VPP: 1}
"""Order of the splits whose sizes are bounded."""
PROBED, ANSWERED = Limits(simulations=16, gap=NEAR), Limits(simulations=12)
"""Limits of the search over many numbers of nodes, and of the search on the chosen nodes if others may be as good."""
FIRST = 256
"""Number of sizes that are searched together first."""
EACH = 8
"""Number of sizes on each number of nodes that are searched before others, those with the shortest steps per token."""
MORE = 4
"""Growth of the next group of sizes."""
ROUNDS = 8
"""Number of groups of sizes after which a search with a plan ends; half of it where plans are known at its beginning."""
NETWORKED = ("owned", "energy")
"""Objectives to which the network of a cluster adds, which is larger per node on some numbers of nodes."""


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
        """{`nodes` or quantity of MINIMIZED: amount, nan without a known price}, with the GPUs of all nodes but spares."""
        row = {"gpus": self.row["gpus"]}
        return {name: np.array(row.get(name) or getattr(self, name), float) for name in ("nodes", *MINIMIZED.values())}


class _Sized(NamedTuple):
    """Candidates on all numbers of nodes, and what is known of them."""

    requested: SweepSpace
    """Space of all candidates, on the largest number of nodes."""
    screened: int
    """Number of splits with each number of replicas, in one order."""
    sizes: Sizes
    """Bounds of the splits with each number of replicas, in any order, raised by each search."""
    best: dict[str, tuple[Point, int, Row]]
    """{point in words: point, number of nodes and row} of the best step of each search."""


@dataclass(slots=True)
class _PlanSearch:
    """State of the search for a plan on clusters of one kind."""

    request: PlanRequest
    """Tokens and limits of the plan."""
    kind: Point
    """Overrides that make the kind of cluster."""
    space: _Sized
    """Candidates on all numbers of nodes."""
    show: SearchProgress
    stop: Stop
    plans: list[TrainingPlan]
    """Known plans, also beyond a limit."""
    tried: int = 0
    """Number of simulated splits."""
    bound: float = 0.0
    """Lower bound of the minimized quantity of all candidates."""

    def best(self) -> TrainingPlan | None:
        """Return the best plan so far that meets all limits, or None."""
        chosen = min(self.plans, key=lambda plan: self.request.rank(plan.amounts), default=None)
        if chosen is None or self.request.misses(chosen.amounts):
            return None
        gap = max(0.0, 1 - self.bound / float(self.request.costs(chosen.amounts)))
        early = self.stop.due or gap > NEAR * ROUNDED
        return replace(chosen, tried=self.tried, screened=self.space.screened, gap=gap if early else None)

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
    spaces: dict[tuple[object, ...], _Sized | None] = field(default_factory=dict)
    """Candidates on all numbers of nodes, by kind of cluster and batches."""
    searches: dict[tuple[object, ...], SearchResult | None] = field(default_factory=dict)
    """Searches by kind of cluster, nodes and limits."""
    levels: dict[str, float] = field(default_factory=dict)
    """Expected over simulated seconds of a step, by kind of cluster."""
    bills: dict[tuple[str, int], Rates] = field(default_factory=dict)
    """Cost per second by kind of cluster and number of nodes."""
    shares: dict[tuple[object, ...], Goodput] = field(default_factory=dict)
    """Shares of progress, by nodes, GPUs, replicas and kind of checkpoints."""
    plans: dict[str, TrainingPlan | None] = field(default_factory=dict)
    """Plans by request and kinds of cluster."""
    show: PlanProgress = field(default=lambda *_: None)
    """Callback that receives the progress before each simulation."""
    stop: Stop = NEVER
    """Time limit and Ctrl-C, which end searches early with the best plan so far."""

    def first(self, request: PlanRequest, kinds: Sequence[Sequence[Point]]) -> TrainingPlan | None:
        """Return the plan of the first list in `kinds` with one, or None. Later lists are tried if all together have one."""
        if plan := self.plan(request, *kinds[0]):
            return plan
        later = kinds[1:] if len(kinds) > 1 and self.plan(request, *chain(*kinds)) else ()
        return next(filter(None, (self.plan(request, *some) for some in later)), None)

    def several(self, request: PlanRequest, kinds: Sequence[Sequence[Point]]) -> Iterator[TrainingPlan]:
        """Yield the plan of `first`, and with `request.front` those of all objectives and of sizes between them.

        The sizes are powers of two times the smallest: on each the soonest plan, which is also the cheapest on its nodes.
        """
        first_plan = self.first(request, kinds)
        yield from filter(None, [first_plan])
        if first_plan and request.front:
            best = [*filter(None, (self.first(replace(request, objective=goal), kinds) for goal in MINIMIZED))]
            yield from best
            least, most = (choose([first_plan, *best], key=lambda plan: plan.nodes).nodes for choose in (min, max))
            each = (least << power for power in range(1, math.ceil(math.log2(most / least))))
            yield from filter(None, (self.first(replace(request, nodes=n, objective="soonest"), kinds) for n in each))

    def plan(self, request: PlanRequest, *kinds: Point) -> TrainingPlan | None:
        """Return the best plan on `kinds` (one cluster, each batch) within `NEAR`; None if none meets the limits or on Ctrl-C."""
        if self.stop.interrupted:
            return None
        if (key := repr((replace(request, candidates=(), front=False), kinds))) in self.plans:
            return self.plans[key]
        kind, batches = kinds[0], tuple(dict.fromkeys(int(str(kind[BATCH])) for kind in kinds))
        node = self.clusters(kind)
        if request.goal == "rent" and node.rates.rent is None:
            request = replace(request, objective="gpus")
        limits = f" within {request.limits_text}" if request.limits_text else ", without a limit"
        sought = f"the {BEST[request.goal]} plan on {node.simulator.cluster.gpu.name}{limits}"

        def show(_: int, left: int, gap: float | None) -> None:
            """Show the plan sought, and the splits simulated and left."""
            self.show(sought, len(self.shared.rows), left)

        space = self.space(kind, batches[:: max(len(batches) - 1, 1)], show)
        if space is None:
            return None

        def known() -> list[TrainingPlan]:
            """Return the plans of the steps known so far."""
            return [self.as_plan(request, *step) for step in space.best.values()]

        state = _PlanSearch(request, kind, space, show, self.stop, known())
        with self.stop.ended_by_interrupt(state.best):
            self._refine(state)
            if state.best() is None and not self.stop.due:
                for name in request.limited:  # the full search on its nodes may bring a plan within the limit
                    self.plan(request.relaxed([name]), *kinds)
                state.plans = known()
                if state.best():
                    self._refine(state)
        plan = state.best()
        if not self.stop.due:  # otherwise a later search may find a better one
            self.plans[key] = plan
        return plan

    def _refine(self, state: _PlanSearch) -> None:
        """Add the plans that may be the best, and raise the bounds of all others.

        The nodes of the best plan get the full search of `optimize`, once no other plan may cost half of it. Then the sizes that
        may be better are searched with all orders, those with the shortest steps on each number of nodes first.
        """
        request, sizes, refined, rounds, count = state.request, state.space.sizes, set[tuple[int, int]](), 0, FIRST
        cluster, level = self.clusters(state.kind), self._level(state)
        closed, most_rounds = np.zeros(len(sizes.seconds), bool), ROUNDS // 2 if state.plans else ROUNDS
        while True:
            amounts = self._amounts(request, state.kind, cluster, sizes.load, sizes.seconds * level)
            bounds = np.where(np.isinf(sizes.seconds), math.inf, request.costs(amounts))
            state.bound = float(bounds.min(initial=math.inf))
            if state.ended:
                return
            best = state.best()
            most = float(request.costs(best.amounts)) * (1 - NEAR) if best else math.inf
            open_ = ~closed & (bounds <= most) & (bounds < math.inf)
            group = np.lexsort((bounds, sizes.ranks // EACH, ~open_))[: min(count, open_.sum())]
            last = not len(group) or (best and rounds >= most_rounds)
            if best and (last or state.bound > most / 2) and (best.nodes, best.row["global_batch"]) not in refined:
                self._on(state, best, refined)
                continue
            if last:
                return
            rounds += 1
            wanted = self._wanted(request, state.kind, level, most)
            result = self._among(state, group, wanted, PROBED._replace(stop=self.stop, needed=best is None))
            state.tried += result.simulated
            for step in result.best:
                self._add(state, step.point, int(str(step.point[NODES])), step.row)
            proven = min(result.least, most, *(step.value[0] for step in result.best))
            some = {name: amount[group] for name, amount in amounts.items()}
            sizes.seconds[group] *= np.maximum(request.growth(some, proven), 1.0)
            if not result.best or (result.gap or 0.0) <= NEAR or state.best() is None:
                closed[group] = True
                count *= MORE

    def _add(self, state: _PlanSearch, point: Point, nodes: int, row: Row) -> None:
        """Add the plan of a simulated step on `nodes` nodes to a search's, and the step to those that later searches know."""
        state.plans.append(self.as_plan(state.request, point, nodes, row))
        state.space.best[repr(point)] = point, nodes, row

    def _among(self, state: _PlanSearch, indices: Ints, wanted: Objective, limits: Limits) -> SearchResult:
        """Return the search for the best candidate, in any order, among the sizes with these indices in `Sizes`."""
        only: dict[int, set[int]] = {}
        for split, replicas, _ in state.space.sizes.places[:, indices].T.tolist():
            only.setdefault(split, set()).add(replicas)
        space = CandidateSpace(self.case, state.space.requested, resized=True, sizes=only)
        return search(self.case, space, wanted, 1, state.show, limits, self.shared)

    def _on(self, state: _PlanSearch, best: TrainingPlan, refined: set[tuple[int, int]]) -> None:
        """Add the plan on the nodes of a plan, as `optimize` finds it. refined: searched pairs of nodes and batch, extended."""
        limits = (TO_THE_END if state.request.of_nodes else ANSWERED)._replace(stop=self.stop)
        gpus, sizes = self.clusters(state.kind).simulator.cluster.gpus, state.space.sizes
        point, row, nodes, batch = best.point, best.row, best.nodes, best.row["global_batch"]
        while (on := (nodes, batch)) not in refined and not state.ended:  # the best split may leave nodes idle
            refined.add(on)
            if result := self.best({**state.kind, BATCH: batch}, nodes, limits, state.show):
                state.tried += result.simulated
                for candidate in result.best:  # a search that ends early may miss the split that it began with
                    if candidate.row["expected_step_time_s"] <= row["expected_step_time_s"]:
                        point, row = candidate.point, candidate.row
                on_nodes = (sizes.places[2] == nodes) & (sizes.load.tokens == batch * row["seq"])
                per_token = min(result.least, *(candidate.value[0] for candidate in result.best), math.inf)
                sizes.seconds[on_nodes] = np.maximum(sizes.seconds, per_token * sizes.load.tokens)[on_nodes]
            self._add(state, point, nodes, row)
            nodes = -(-row["ranks"] // gpus)

    def _level(self, state: _PlanSearch) -> float:
        """Return expected / simulated seconds of a step that takes little GPU time per token on the kind; 1 if none fits."""
        if (key := _name(state.kind)) not in self.levels:
            shortest = np.argsort(state.space.sizes.ranks, kind="stable")
            wanted = Objective("GPU time", lambda _, load, step: load.gpus * step / load.tokens)
            first, count = 0, FIRST // 8
            while first < len(shortest) and key not in self.levels:
                result = self._among(state, shortest[first:count], wanted, Limits(self.stop, simulations=1))
                for candidate in result.best:
                    self.levels[key] = candidate.row["expected_step_time_s"] / candidate.row["step_time_s"]
                first, count = count, count * MORE
            if not self.stop.due:
                self.levels.setdefault(key, 1.0)
        return self.levels.get(key, 1.0)

    def _wanted(self, request: PlanRequest, kind: Point, times: float, most: float) -> Objective:
        """Return the objective of `request`, for step times multiplied by `times`; its value is infinite above `most`."""

        def minimized(cluster: SweepCluster, load: Load, seconds: Floats) -> Floats:
            """Return the cost (the objective of `request`) of each step time in `seconds`; infinity where it exceeds `most`."""
            costs = request.costs(self._amounts(request, kind, cluster, load, seconds * times))
            return np.where(costs <= most, costs, math.inf).reshape(np.shape(seconds))

        return Objective("plan", minimized)

    def _amounts(
        self, request: PlanRequest, kind: Point, cluster: SweepCluster, load: Load, seconds: Floats
    ) -> dict[str, Floats]:
        """Return {`days`, `usd`, `usd_owned`, `kwh`, `nodes`, `gpus`: (plans,)} for steps of `seconds`; nan: unknown price."""
        topology = cluster.simulator.cluster
        size = topology.gpus / topology.nodes
        gpus, replicas = np.atleast_1d(load.gpus), np.atleast_1d(load.replicas)
        nodes = np.ceil(gpus / size)
        each = np.stack([gpus, nodes, replicas], axis=1).astype(int).tolist()
        shares = [self.share(request, *numbers) for numbers in each]
        share, spares = np.array([(goodput.share, goodput.spares) for goodput in shares], float).reshape(-1, 2).T
        days = _days(request, load.tokens, seconds, share)
        if request.goal in NETWORKED:
            counts, places = np.unique(nodes, return_inverse=True)
            each_size = np.array([self.rates(kind, int(count))[:3] for count in counts], float) / counts[:, None]
            usd, owned, power = each_size[places].T
        else:
            usd, owned, power = np.array(cluster.rates[:3], float) / topology.nodes
        busy = days * DAY * (nodes + spares)
        money = {"usd": usd * busy, "usd_owned": owned * busy, "kwh": power * busy / 3.6e6}
        return {"days": days, **money, "nodes": nodes, "gpus": nodes * size}

    def rates(self, kind: Point, nodes: int) -> Rates:
        """Return USD and J per second of `nodes` nodes with their network; infinite if no such cluster can be built."""
        key = _name(kind), nodes
        if key not in self.bills:
            self.bills[key] = Rates(math.inf, math.inf, math.inf, 0.0, 0.0, None)
            with suppress(InputError):
                self.bills[key] = self.clusters(kind, nodes).rates
        return self.bills[key]

    def space(self, kind: Point, batches: Sequence[int], show: SearchProgress = lambda *_: None) -> _Sized | None:
        """Return the candidates of these `batches` on all numbers of nodes of a kind; None if none is legal."""
        key = _name(kind), tuple(batches)
        if key not in self.spaces:
            self.spaces[key] = None
            with suppress(InputError):
                requested = self._requested({**kind, NODES: self._most(kind)}, {BATCH: batches})
                splits = next(filter(lambda candidates: candidates.families, self._splits(requested)), None)
                if splits:
                    self.spaces[key] = _Sized(requested, splits.points, sizes(splits, self.shared, show), {})
        return self.spaces[key]

    def _requested(self, point: Point, axes: Mapping[str, Sequence[object]] | None = None) -> SweepSpace:
        """Return the space of `axes`, the point's other keys, and all legal values of open keys. Raises InputError if illegal."""
        fixed = {key: value for key, value in point.items() if key not in (axes or {})}
        space = SweepSpace(axes or {}, fixed, frozenset(), tuple(free(point)))
        check_values(self.case, space)
        return wider(self.case, space)

    def _splits(self, requested: SweepSpace) -> Iterator[CandidateSpace]:
        """Yield the splits of a space in one plain order, and if the user rules that out, in their legal orders."""
        for plain in (PLAIN, {}) if PLAIN.keys() <= {*requested.auto} else ({},):
            auto = tuple(key for key in requested.auto if key not in (ZERO, *plain))
            plain_space = replace(requested, fixed={**requested.fixed, **plain}, auto=auto)
            yield CandidateSpace(self.case, plain_space, resized=True)

    def _most(self, kind: Point) -> int:
        """Return the largest number 2^n or 3 · 2^n of nodes of a kind of cluster. Raises InputError if no cluster is possible."""
        most = self.most_gpus(kind) // self.clusters(kind).simulator.cluster.gpus
        numbers = [size for power in range(20) for size in (1 << power, 3 << power) if size <= most]
        for size in sorted(numbers, reverse=True):
            with suppress(InputError):
                self.clusters(kind, size)
                return size
        return 1

    def best(
        self, kind: Point, nodes: int, limits: Limits, show: SearchProgress = lambda *_: None
    ) -> SearchResult | None:
        """Return the best split on a number of nodes, as `optimize` finds it; None if none is possible."""
        fixed = {**kind, NODES: nodes}
        if (key := (repr(sorted(fixed.items(), key=str)), limits)) not in self.searches:
            self.searches[key] = None
            with suppress(InputError):
                space, wanted = self._requested(fixed), objective("soonest")
                self.searches[key] = search(self.case, space, wanted, 1, show, limits, self.shared)
        return self.searches[key]

    def other(self, request: PlanRequest, plan: TrainingPlan, changes: Mapping[str, object]) -> TrainingPlan | None:
        """Return the plan on a cluster with `changes` of keys, with equal nodes and split; None if it does not run."""
        point = {**plan.point, **changes}
        row = self.shared.row(self.case, point)
        return self.as_plan(request, point, plan.nodes, row) if row["status"] == "ok" else None

    def clusters(self, kind: Point, nodes: int = 1) -> SweepCluster:
        """Return the cluster of a kind with `nodes` nodes. Raises InputError if it cannot be built."""
        return self.case.cluster({**{key: value for key, value in kind.items() if key != BATCH}, NODES: nodes})

    def most_gpus(self, kind: Point) -> int:
        """Return the number of GPUs of the largest cluster of a kind: those of one node if it has no NICs."""
        node = self.clusters(kind).simulator.cluster
        return MOST_GPUS if node.node.wire else node.gpus

    def share(self, request: PlanRequest, gpus: int, nodes: int, dp: int) -> Goodput:
        """Return the goodput of `dp` replicas on `gpus` GPUs of `nodes` nodes with the request's checkpoints, computed once."""
        key = nodes, gpus, dp, request.asynchronous
        if key not in self.shares:
            held = float(parameters(self.case.base.model))
            self.shares[key] = goodput(self.how, nodes, gpus, held, dp, request.asynchronous)
        return self.shares[key]

    def as_plan(self, request: PlanRequest, point: Point, nodes: int, row: Row) -> TrainingPlan:
        """Return the plan of a run with a simulated step; spare nodes cost as much as the others."""
        share = self.share(request, row["ranks"], nodes, row["dp"])
        days = float(_days(request, row["global_batch"] * row["seq"], row["expected_step_time_s"], share.share))
        bill = self.case.cluster(point).rates.costs(days * DAY * (nodes + share.spares) / nodes)
        return TrainingPlan(point, row, nodes, share, days, **bill)


def _name(kind: Point) -> str:
    """Return a name for a kind of cluster that does not depend on its batch."""
    return repr(sorted((item for item in kind.items() if item[0] != BATCH), key=str))


def _days(request: PlanRequest, tokens: Floats | float, seconds: Floats | float, share: Floats | float) -> Floats:
    """Return the days of a run with steps of `tokens` tokens and `seconds` seconds; infinite if no time is progress (share 0)."""
    with np.errstate(divide="ignore"):
        days: Floats = np.ceil(request.tokens / tokens) * seconds / np.asarray(share) / DAY
    return days
