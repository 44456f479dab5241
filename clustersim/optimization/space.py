"""Candidates of a search: one table of all that a workload, a cluster and a framework can run.

Legal degrees make splits (`sweeps/legal.py`). Orders (zero, schedule, chunks) and overlapping traffic are listed once for all
splits with equal pipelines, so that hundreds of thousands of candidates are a few thousand rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.overrides import scalar
from clustersim.errors import InputError
from clustersim.frameworks.table import offers
from clustersim.garbage import uncollected
from clustersim.optimization.best import PlaceInSpace, Refused
from clustersim.optimization.estimate import CandidateRows, EstimatedTile, Hidden
from clustersim.optimization.objective import Load
from clustersim.optimization.shapes import SplitShape
from clustersim.parallel.job import MAX_PASSES, Job, divisors, least_dp
from clustersim.parallel.options import KEYS
from clustersim.schedules.check import misfit, pipeline
from clustersim.sweeps.evaluate import SweepCluster, SweepInputs
from clustersim.sweeps.legal import (
    EP_OVERLAP,
    FRAMEWORK,
    GRAD_REDUCE,
    OVERLAPS,
    P2P,
    PARAM_GATHER,
    TP_OVERLAP,
    LegalValues,
    PointValues,
    arranged,
    in_order,
    without,
)
from clustersim.sweeps.space import NODES, SCHEDULE, VPP, Point, SweepSpace

RECOMPUTE, ZERO, DP = KEYS["recompute"], KEYS["zero"], KEYS["dp"]
TP, CP, PP, EP, EXPERT_TP = KEYS["tp"], KEYS["cp"], KEYS["pp"], KEYS["ep"], "parallelism.expert_tp"
MICRO_BATCH, BATCH = KEYS["micro_batch"], KEYS["global_batch"]
ORDERS = (ZERO, SCHEDULE, VPP, EP_OVERLAP)
TRAFFIC_KEYS = (GRAD_REDUCE, PARAM_GATHER, P2P)
"""Keys of overlap that do not affect memory."""
VARIANTS = (RECOMPUTE, TP_OVERLAP)
"""Keys whose legal values are all tried for each split."""
SHARED: Mapping[str, type] = {
    **dict.fromkeys((PP, EP, EXPERT_TP, MICRO_BATCH, BATCH, DP, ZERO, VPP), int),
    **dict.fromkeys((SCHEDULE, TP_OVERLAP, EP_OVERLAP), str),
    **dict.fromkeys(TRAFFIC_KEYS, bool),
}
"""{key that can be changed in a job without rebuilding it: type of its values}"""
UNSHARED = "no number of replicas shares the batch"
_Below = tuple[PlaceInSpace, Point]
"""A point with further keys, and the index of their values."""


class Split(NamedTuple):
    """A point with open orders, traffic, recomputation and overlap of tensor-parallel communication."""

    place: int
    point: Point


class Order(NamedTuple):
    """One choice of the keys that a split leaves open."""

    path: PlaceInSpace
    point: Point
    zero: int
    schedule: str
    vpp: int
    experts: str
    reduce: bool
    gather: bool
    away: bool
    others: tuple[Order, ...] = ()
    """The same order with less overlap: its bounds are no smaller."""


class Orders(NamedTuple):
    """Orders of equal pipelines with one overlap of expert exchanges."""

    rows: list[Order]
    candidates: int
    """Number of orders, including those with less overlap."""


class SizedSplit(NamedTuple):
    """A split of a tile, with the values that its orders depend on."""

    split: Split
    pp: int
    dp: int
    batch: int
    gpus: int
    orders: Mapping[str, Orders]
    """Orders by overlap of expert exchanges."""
    changes: Point
    """Number of nodes that its replicas fill, as an override, if the number of replicas is open."""


@dataclass(eq=False)
class TileRows:
    """Candidates of one tile: splits that differ in their pipeline, and their orders. Searches share its bounds."""

    job: Job
    cluster: SweepCluster
    path: PlaceInSpace
    changes: Point
    splits: list[SizedSplit]
    experts: str
    layers: EstimatedTile | None = None
    seconds: dict[Hidden, Floats] = field(default_factory=dict)
    """Lower bounds of steps, by the groups whose collectives are left out (each: rows)."""
    memory: Floats | None = None
    """Lower bounds of peak bytes (rows,)."""

    @cached_property
    def count(self) -> int:
        """Number of candidates."""
        return sum(one.orders[self.experts].candidates for one in self.splits if self.experts in one.orders)

    @cached_property
    def rows(self) -> list[tuple[SizedSplit, Order]]:
        """Candidates with the least bounds among those that differ only in traffic."""
        several = ((one, one.orders[self.experts].rows) for one in self.splits if self.experts in one.orders)
        return [(one, order) for one, orders in several for order in orders]

    def point(self, one: SizedSplit, order: Order) -> tuple[PlaceInSpace, Point]:
        """Return (index, point) of a candidate."""
        place = (one.split.place, *self.path, *order.path)
        return place, arranged({**one.split.point, **self.changes, **order.point, **one.changes})

    def load(self, rows: Sequence[tuple[SizedSplit, Order]]) -> Load:
        """Return the load of candidates, as columns."""
        replicas = np.array([one.dp for one, _ in rows], float)
        batch = np.array([one.batch for one, _ in rows], float) * replicas
        gpus = np.array([one.gpus for one, _ in rows], float)
        return Load(self.job.training.seq * self.job.training.micro_batch * batch, gpus, replicas)


def columns(each: Sequence[tuple[SizedSplit, Order]]) -> CandidateRows:
    """Return candidates as columns."""
    shapes = [shape_of(order.schedule, split.pp, order.vpp) for split, order in each]
    numbers = np.array([(s.batch, s.dp, o.zero, o.reduce, o.gather, o.away) for s, o in each], int).reshape(-1, 6).T
    return CandidateRows(shapes, [order.schedule for _, order in each], *numbers[:3], *numbers[3:].astype(bool))


@dataclass(slots=True, eq=False)
class CandidateFamily:
    """Tiles that differ in micro-batch and variant, the one with the least computation first."""

    tiles: dict[int, list[TileRows]]
    """{micro-batch: its variants}, the variant with the least computation first."""
    fastest: float | None = None
    """Seconds per sequence with the largest useful micro-batch, without communication that some overlap may hide; None before
    it is computed."""


@lru_cache(maxsize=4096)
def shape_of(schedule: str, pp: int, vpp: int) -> SplitShape:
    """Return the pipeline shape of a schedule."""
    found = pipeline(schedule, pp, vpp)
    return SplitShape(pp, vpp, schedule if found.folded or found.copies > 1 else "1f1b", found.copies)


class CandidateSpace:
    """Candidates of a space, or of a list of points."""

    def __init__(
        self,
        case: SweepInputs,
        asked: SweepSpace | Sequence[Point],
        resized: bool = False,
        sizes: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        """resized: any number of replicas is a candidate, on the nodes that it fills, up to those of the cluster.

        sizes: {index of a split: its numbers of replicas} that are candidates; None for all.
        """
        self.case, self.asked, self.resized, self.only = case, asked, resized, sizes
        self.chosen: tuple[str, ...] = ()
        """Keys of overlap that nobody gives: each split has the values that suit it best."""
        auto: tuple[str, ...] = ()
        if isinstance(asked, SweepSpace):
            self.chosen = beside(case, asked)
            auto = (*asked.auto, *self.chosen)
        self.values = LegalValues(case, (*auto, DP) if resized else auto)
        self.orders = tuple(key for key in ORDERS if key in auto)
        self.traffic = tuple(key for key in TRAFFIC_KEYS if key in auto)
        self.variants = tuple(key for key in VARIANTS if key in auto)
        self.inner = (*self.variants, *self.orders, *self.traffic)
        self.outer = in_order([key for key in auto if key not in self.inner])
        self._orders: dict[tuple[object, ...], dict[str, Orders]] = {}
        self._traffic: dict[tuple[object, ...], list[_Below]] = {}
        self._sizes: dict[tuple[int, object], list[SizedSplit]] = {}
        self._known: dict[tuple[object, ...], list[_Below]] = {}
        self._experts: dict[tuple[object, ...], list[_Below]] = {}
        self.out = Refused()
        self._illegal: list[Point] = []
        self._jobs: dict[tuple[object, ...], Job] = {}
        self._refusals: dict[tuple[object, ...], InputError] = {}
        self._made: dict[tuple[object, ...], TileRows] = {}
        self._found: dict[tuple[object, ...], CandidateFamily] = {}
        with uncollected():
            self.splits = list(self._listed())
            self.families = self._families()
            for split in self._unused():
                self.splits.append(split)
                self.out.add("illegal", self._refused(split.point))

    @property
    def tiles(self) -> list[TileRows]:
        """Tiles of all families."""
        return [tile for family in self.families for row in family.tiles.values() for tile in row]

    @property
    def points(self) -> int:
        """Number of candidates."""
        return sum(tile.count for tile in self.tiles) + sum(self.out.counts.values())

    def whole(self, split: Split) -> Point:
        """Return a split with the first legal value of each open key."""
        keys = [key for key in self.inner if key not in split.point]
        return arranged(next(self.below(split.point, keys), ((), split.point))[1])

    def _listed(self) -> Iterator[Split]:
        """Yield the splits, and the combinations of given values without a split."""
        if not isinstance(self.asked, SweepSpace):
            yield from (Split(place, point) for place, point in enumerate(self.asked))
            return
        points: Iterator[Point] = iter(self.asked.space())
        for key in self.outer:
            points = self.values.filled(points, key)
        yield from (Split(place, point) for place, point in enumerate(points, 1))

    def _unused(self) -> list[Split]:
        """Return the combinations of given values without a candidate, completed by the workload's values, for the reason."""
        if not isinstance(self.asked, SweepSpace):
            return []
        found = [own.split.point for tile in self.tiles for own in tile.splits]
        more = without(self.asked, found + self._illegal)
        return [Split(len(self.splits) + place, point) for place, point in enumerate(more, 1)]

    def below(self, point: Point, keys: Sequence[str], path: PlaceInSpace = ()) -> Iterator[tuple[PlaceInSpace, Point]]:
        """Yield a point with all legal values of keys; a point without a possible cluster is unchanged."""
        values: Sequence[object] | None = None
        if keys:
            with suppress(InputError):
                values = self._legal(point, keys[0])
        if values is None:
            yield path, point
            return
        for place, value in enumerate(values):
            yield from self.below({**point, keys[0]: value}, keys[1:], (*path, place))

    def _legal(self, point: Point, key: str) -> Sequence[object]:
        """Return the legal values of a key; if the user did not set it, only those that differ in effect."""
        found = self.values.of(point, key)
        if key not in self.chosen or len(found) < 2:
            return found
        seen = PointValues(self.case, self.values.base, point, frozenset())
        pp, dp = seen.whole(KEYS["pp"]), seen(DP)
        several = dp > 1 if isinstance(dp, int) and self.resized else seen.cluster.gpus >= 2 * seen.lanes
        replicas = several or seen.whole(KEYS["cp"]) > 1
        differ = pp > 1 if key == P2P else pp > 1 or replicas if key in TRAFFIC_KEYS else True
        return found if differ else found[:1]

    def _refused(self, point: Point) -> str:
        """Return why a point has no candidate."""
        try:
            return _said(self.case.cluster(point), self.case.job(point))
        except InputError as error:
            return str(error)

    def _families(self) -> list[CandidateFamily]:
        """Return all candidates, grouped by what their layers depend on."""
        closed = (*self.orders, *self.traffic)
        for split in self.splits if self.only is None else (one for one in self.splits if one.place in self.only):
            own = {key: value for key, value in split.point.items() if type(value) is SHARED.get(key)}
            base = tuple((key, str(value)) for key, value in split.point.items() if key not in own)
            for path, point in self.below(split.point, self.variants):
                try:
                    self._add(split, path, point, own, base)
                except InputError as error:
                    self._illegal.append(point)
                    self.out.add(
                        "illegal", str(error), 1 if self.resized else sum(1 for _ in self.below(point, closed))
                    )
        return list(self._found.values())

    def _add(
        self, split: Split, path: PlaceInSpace, point: Point, own: Point, base: tuple[tuple[str, str], ...]
    ) -> None:
        """Add a split with one variant to the tile of its layers. Raises InputError if it is illegal.

        own, base: keys of the split that a job can change without rebuilding, and all others as text.
        """
        variant = {key: point[key] for key in self.variants if key in point}
        own = {**own, **{key: value for key, value in variant.items() if key in SHARED}}
        base = (*base, *((key, str(value)) for key, value in variant.items() if key not in SHARED))
        if base not in self._jobs:  # one that is legal stands for all that have its layers
            ranks = base, tuple(own.get(key) for key in (PP, EP, EXPERT_TP))
            if self.resized and ranks in self._refusals:  # whatever its micro-batch
                raise self._refusals[ranks]
            try:
                self._jobs[base] = self.case.job(self.whole(Split(split.place, point)))
            except InputError as error:
                self._refusals[ranks] = error
                raise
        job, cluster = self._jobs[base], self.case.cluster(point)
        sizes = self._sized(split, point, job, own, cluster)
        size = int(str(own.get(MICRO_BATCH, job.training.micro_batch)))
        zero = own.get(ZERO, job.parallelism.zero) == 3
        layers = tuple((key, own.get(key)) for key in (EP, EXPERT_TP, TP_OVERLAP, EP_OVERLAP))
        for experts in dict.fromkeys(chain.from_iterable(sized.orders for sized in sizes)):
            key = base, layers, zero, size, experts
            if key not in self._made:
                changes = {name: point[name] for name in self.variants}
                placed = job.changed({**own, DP: sizes[0].dp, EP_OVERLAP: experts})
                self._made[key] = TileRows(placed, cluster, path, changes, [], experts)
                others = tuple(one for one in base if one[0] not in self.variants)
                fixed = tuple(one for one in layers if one[0] not in self.variants)
                family = self._found.setdefault((others, fixed, zero), CandidateFamily({}))
                family.tiles.setdefault(size, []).append(self._made[key])
            self._made[key].splits += sizes

    def _sized(self, split: Split, point: Point, job: Job, own: Point, cluster: SweepCluster) -> list[SizedSplit]:
        """Return a split with its replicas, or with each possible number. Raises InputError if there is none."""
        place = (split.place, own.get(RECOMPUTE, job.training.recompute) if EP_OVERLAP in self.orders else "")
        if place in self._sizes:
            return self._sizes[place]
        changed, topology = job.changed(own), cluster.simulator.cluster
        p, training = changed.parallelism, changed.training
        share, least = training.global_batch // training.micro_batch, least_dp(p, p.ep)
        fitting = [d for d in divisors(share) if d * p.lanes <= topology.gpus and d % least == 0]
        if isinstance(p.dp, int):
            fitting = [p.dp] if share % p.dp == 0 and p.lanes * p.dp <= topology.gpus else []
        elif self.resized:
            of_node = topology.gpus // topology.nodes
            inside = sum(d * p.lanes <= of_node for d in fitting)
            whole = [d for d in fitting[inside:] if d * p.lanes % of_node == 0]
            fitting = fitting[max(inside - 1, 0) : inside] + whole
        if self.only is not None:
            fitting = [d for d in fitting if d in self.only[split.place]]
        if training.global_batch % training.micro_batch:
            fitting = []
        found: list[SizedSplit] = []
        for dp in fitting if self.resized else fitting[-1:]:
            gpus = p.lanes * dp
            filled: Point = {NODES: -(-gpus // (topology.gpus // topology.nodes))} if self.resized else {}
            at = {**point, DP: dp} if self.resized else point
            orders = self._orders_of(at, changed, dp, share // dp, gpus if self.resized else topology.gpus)
            found += [SizedSplit(split, p.pp, dp, share // dp, gpus, orders, filled)] if orders else []
        if not found:
            raise InputError(UNSHARED if self.resized else _said(cluster, self.case.job(self.whole(split))))
        self._sizes[place] = found
        return found

    def _orders_of(self, point: Point, job: Job, dp: int, batch: int, gpus: int) -> Mapping[str, Orders]:
        own = job.parallelism
        spare = gpus >= 2 * own.lanes or own.cp > 1
        given = tuple((key, str(point[key])) for key in (*ORDERS, *TRAFFIC_KEYS, FRAMEWORK) if key in point)
        same = own.pp, own.tp > 1, own.cp > 1, batch, dp > 1, spare, given
        experts = (own.ep > 1, own.etp > 1, job.training.recompute) if EP_OVERLAP in self.orders else ()
        if (key := (*same, experts)) not in self._orders:
            found: dict[str, list[Order]] = {}
            for order in self._open(point, job, same, experts):
                found.setdefault(order.experts, []).append(order)
            self._orders[key] = {
                kind: Orders(rows, sum(1 + len(one.others) for one in rows)) for kind, rows in found.items()
            }
        return self._orders[key]

    def _schedules(self, point: Point, same: tuple[object, ...], experts: tuple[object, ...]) -> Iterator[_Below]:
        """Yield the legal values of zero, schedule and chunks, each with those of the overlap of expert exchanges."""
        keys = [key for key in self.orders if key != EP_OVERLAP]
        if same not in self._known:
            self._known[same] = list(self.below({k: v for k, v in point.items() if k != RECOMPUTE}, keys))
        for path, whole in self._known[same]:
            own = {key: whole[key] for key in keys if key in whole}
            if not experts:
                yield path, own
                continue
            key = *same[:3], *experts, *own.items()
            if key not in self._experts:
                self._experts[key] = list(self.below({**point, **own}, (EP_OVERLAP,)))
            for more, found in self._experts[key]:
                yield (*path, *more), {**own, EP_OVERLAP: found[EP_OVERLAP]}

    def _open(self, point: Point, job: Job, same: tuple[object, ...], experts: tuple[object, ...]) -> Iterator[Order]:
        """Yield the legal values of all open keys of a split. same, experts: cache keys of what these depend on."""
        split = job.parallelism
        for path, own in self._schedules(point, same, experts):
            zero, chunks = int(str(own.get(ZERO, split.zero))), int(str(own.get(VPP, split.vpp)))
            schedule, kind = str(own.get(SCHEDULE, split.schedule)), str(own.get(EP_OVERLAP, split.overlap.ep))
            batch = int(str(same[3]))
            if misfit(schedule, split.pp, batch, chunks) or batch * split.pp * chunks > MAX_PASSES:
                continue
            whole = {**point, **own}
            key = (same[0], *same[5:], zero, chunks)
            if key not in self._traffic:
                self._traffic[key] = list(self.below(whole, self.traffic))
            orders = []
            for more, found in self._traffic[key]:
                traffic = {key: found[key] for key in self.traffic if key in found}
                reduce, gather, away = (
                    bool(traffic.get(key, getattr(split.overlap, key.rpartition(".")[2]))) for key in TRAFFIC_KEYS
                )
                orders.append(Order((*path, *more), own | traffic, zero, schedule, chunks, kind, reduce, gather, away))
            for gather in dict.fromkeys(order.gather for order in orders):
                some = [order for order in orders if order.gather == gather]
                most = max(some, key=lambda one: one.reduce + one.away)
                yield most._replace(others=tuple(one for one in some if one is not most))


def _said(cluster: SweepCluster, job: Job) -> str:
    """Return why a job cannot be placed on a cluster."""
    try:
        cluster.simulator.placed(job)
    except InputError as error:
        return str(error)
    return UNSHARED


def beside(case: SweepInputs, asked: SweepSpace) -> tuple[str, ...]:
    """Return the overlap keys that the user does not set and the workload's framework offers."""
    given = {*asked.axes, *asked.fixed, *asked.auto}
    framework = scalar(FRAMEWORK, asked.fixed.get(FRAMEWORK, case.base.training.framework))
    keys = [key for key in OVERLAPS if key not in given and (not framework or key in offers(framework))]
    experts = case.base.model.experts or "model.experts" in given
    return tuple(key for key in keys if experts or key != EP_OVERLAP)
