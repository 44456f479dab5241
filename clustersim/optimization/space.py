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
CP, PP, EP, EXPERT_TP = KEYS["cp"], KEYS["pp"], KEYS["ep"], "parallelism.expert_tp"
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
_Filled = tuple[PlaceInSpace, Point]
"""(index of the value of each further key, point with these keys)"""


class Split(NamedTuple):
    """A point with open orders, traffic, recomputation and overlap of tensor-parallel communication."""

    place: int
    point: Point


class Order(NamedTuple):
    """One choice of the keys that a split leaves open; `experts`: overlap of expert exchanges, others as in CandidateRows."""

    path: PlaceInSpace
    values: Point
    """Values of the keys of `ORDERS`, one mapping for all orders that differ in traffic."""
    traffic: Point
    """Values of `TRAFFIC_KEYS`, one mapping for all orders with these."""
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
    """A split of a tile: its degrees, microbatches per replica (`batch`), and GPUs with a rank, on which its orders depend."""

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

    @cached_property
    def count(self) -> int:
        """Number of candidates."""
        return sum(sized.orders[self.experts].candidates for sized in self.splits if self.experts in sized.orders)

    @cached_property
    def rows(self) -> list[tuple[SizedSplit, Order]]:
        """Candidates with the least bounds among those that differ only in traffic."""
        several = ((sized, sized.orders[self.experts].rows) for sized in self.splits if self.experts in sized.orders)
        return [(sized, order) for sized, orders in several for order in orders]

    def point(self, sized: SizedSplit, order: Order) -> tuple[PlaceInSpace, Point]:
        """Return (index, point) of a candidate."""
        index = (sized.split.place, *self.path, *order.path)
        return index, arranged({**sized.split.point, **self.changes, **order.values, **order.traffic, **sized.changes})

    def load(self, rows: Sequence[tuple[SizedSplit, Order]]) -> Load:
        """Return the load of candidates, as columns."""
        replicas = np.array([sized.dp for sized, _ in rows], float)
        batch = np.array([sized.batch for sized, _ in rows], float) * replicas
        gpus = np.array([sized.gpus for sized, _ in rows], float)
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
    """Return the pipeline shape of a schedule, named `1f1b` if the pipeline is not folded and has one copy of each stage."""
    order = pipeline(schedule, pp, vpp)
    return SplitShape(pp, vpp, schedule if order.folded or order.copies > 1 else "1f1b", order.copies)


class CandidateSpace:
    """Candidates of a space, or of a list of points."""

    def __init__(
        self,
        case: SweepInputs,
        requested: SweepSpace | Sequence[Point],
        resized: bool = False,
        sizes: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        """resized: any number of replicas is a candidate, on the nodes that it fills, up to those of the cluster.

        sizes: {index of a split: its numbers of replicas} that are candidates; None for all.
        """
        self.case, self.requested, self.resized, self.only = case, requested, resized, sizes
        self.chosen: tuple[str, ...] = ()
        """Keys of overlap that the user does not set: each split has the values that suit it best."""
        auto: tuple[str, ...] = ()
        if isinstance(requested, SweepSpace):
            self.chosen = open_overlaps(case, requested)
            auto = (*requested.auto, *self.chosen)
        self.values = LegalValues(case, (*auto, DP) if resized else auto)
        self.orders = tuple(key for key in ORDERS if key in auto)
        self.traffic = tuple(key for key in TRAFFIC_KEYS if key in auto)
        self.variants = tuple(key for key in VARIANTS if key in auto)
        self.inner = (*self.variants, *self.orders, *self.traffic)
        self.outer = in_order([key for key in auto if key not in self.inner])
        self._orders: dict[tuple[object, ...], dict[str, Orders]] = {}
        self._traffic: dict[tuple[object, ...], list[_Filled]] = {}
        self._sizes: dict[tuple[int, object], list[SizedSplit]] = {}
        self._known: dict[tuple[object, ...], list[_Filled]] = {}
        self._experts: dict[tuple[object, ...], list[_Filled]] = {}
        self.out = Refused()
        self._illegal: list[Point] = []
        self._jobs: dict[tuple[object, ...], Job] = {}
        self._refusals: dict[tuple[object, ...], InputError] = {}
        self._made: dict[tuple[object, ...], TileRows] = {}
        self._found: dict[tuple[object, ...], CandidateFamily] = {}
        with uncollected():
            self.splits = [split for split in self._listed() if self.only is None or split.place in self.only]
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

    def completed(self, split: Split) -> Point:
        """Return a split with the first legal value of each open key."""
        keys = [key for key in self.inner if key not in split.point]
        return arranged(next(self.fill(split.point, keys), ((), split.point))[1])

    def _listed(self) -> Iterator[Split]:
        """Yield the splits, and the combinations of given values without a split."""
        if not isinstance(self.requested, SweepSpace):
            yield from (Split(place, point) for place, point in enumerate(self.requested))
            return
        points: Iterator[Point] = iter(self.requested.space())
        for key in self.outer:
            points = self.values.filled(points, key)
        yield from (Split(place, point) for place, point in enumerate(points, 1))

    def _unused(self) -> list[Split]:
        """Return the combinations of given values without a candidate, completed by the workload's values, for the reason."""
        if not isinstance(self.requested, SweepSpace) or self.only is not None:
            return []
        points = [sized.split.point for tile in self.tiles for sized in tile.splits]
        more = without(self.requested, points + self._illegal)
        return [Split(len(self.splits) + place, point) for place, point in enumerate(more, 1)]

    def fill(self, point: Point, keys: Sequence[str], path: PlaceInSpace = ()) -> Iterator[_Filled]:
        """Yield (indices of the values, point) for all legal values of `keys`; a point without a possible cluster as it is."""
        values: Sequence[object] | None = None
        if keys:
            with suppress(InputError):
                values = self._legal(point, keys[0])
        if values is None:
            yield path, point
            return
        for place, value in enumerate(values):
            yield from self.fill({**point, keys[0]: value}, keys[1:], (*path, place))

    def _legal(self, point: Point, key: str) -> Sequence[object]:
        """Return the legal values of `key` at `point`; a key that only the search added gets one value if it has no effect there.

        Raises InputError if the point has no possible cluster.
        """
        legal = self.values.at(point, key)
        if key not in self.chosen or len(legal) < 2:
            return legal
        values = PointValues(self.case, self.values.base, point, frozenset())
        pp, dp = values.integer(KEYS["pp"]), values(DP)
        several = dp > 1 if isinstance(dp, int) and self.resized else values.cluster.gpus >= 2 * values.lanes
        replicas = several or values.integer(KEYS["cp"]) > 1
        differ = pp > 1 if key == P2P else pp > 1 or replicas if key in TRAFFIC_KEYS else True
        return legal if differ else legal[:1]

    def _refused(self, point: Point) -> str:
        """Return why a point has no candidate."""
        try:
            return _reason(self.case.cluster(point), self.case.job(point))
        except InputError as error:
            return str(error)

    def _families(self) -> list[CandidateFamily]:
        """Return all candidates, grouped by the keys that their layers depend on."""
        closed = (*self.orders, *self.traffic)
        for split in self.splits:
            changes = {key: value for key, value in split.point.items() if type(value) is SHARED.get(key)}
            base = tuple((key, str(value)) for key, value in split.point.items() if key not in changes)
            for path, point in self.fill(split.point, self.variants):
                try:
                    self._add(split, path, point, changes, base)
                except InputError as error:
                    self._illegal.append(point)
                    self.out.add("illegal", str(error), 1 if self.resized else sum(1 for _ in self.fill(point, closed)))
        return list(self._found.values())

    def _add(
        self, split: Split, path: PlaceInSpace, point: Point, changeable: Point, base: tuple[tuple[str, str], ...]
    ) -> None:
        """Add a split with one variant to the tile of its layers. Raises InputError if it is illegal.

        changeable, base: keys of the split that a job can change without rebuilding, and all others as text.
        """
        variant = {key: point[key] for key in self.variants if key in point}
        changeable = {**changeable, **{key: value for key, value in variant.items() if key in SHARED}}
        base = (*base, *((key, str(value)) for key, value in variant.items() if key not in SHARED))
        if base not in self._jobs:  # one that is legal stands for all that have its layers
            ranks = base, tuple(changeable.get(key) for key in (PP, EP, EXPERT_TP))
            if self.resized and ranks in self._refusals:  # whatever its micro-batch
                raise self._refusals[ranks]
            try:
                self._jobs[base] = self.case.job(self.completed(Split(split.place, point)))
            except InputError as error:
                self._refusals[ranks] = error
                raise
        job, cluster = self._jobs[base], self.case.cluster(point)
        sizes = self._sized(split, point, job, changeable, cluster)
        size = int(str(changeable.get(MICRO_BATCH, job.training.micro_batch)))
        zero = changeable.get(ZERO, job.parallelism.zero) == 3
        layers = tuple((key, changeable.get(key)) for key in (EP, EXPERT_TP, TP_OVERLAP, EP_OVERLAP))
        for experts in dict.fromkeys(chain.from_iterable(sized.orders for sized in sizes)):
            key = base, layers, zero, size, experts
            if key not in self._made:
                changes = {name: point[name] for name in self.variants}
                placed = job.changed({**changeable, DP: sizes[0].dp, EP_OVERLAP: experts})
                self._made[key] = TileRows(placed, cluster, path, changes, [], experts)
                others = tuple(item for item in base if item[0] not in self.variants)
                fixed = tuple(item for item in layers if item[0] not in self.variants)
                family = self._found.setdefault((others, fixed, zero), CandidateFamily({}))
                family.tiles.setdefault(size, []).append(self._made[key])
            self._made[key].splits += sizes

    def _sized(self, split: Split, point: Point, job: Job, changes: Point, cluster: SweepCluster) -> list[SizedSplit]:
        """Return a split with its largest number of replicas, or if `resized` with each. Raises InputError if none is legal."""
        place = (split.place, changes.get(RECOMPUTE, job.training.recompute) if EP_OVERLAP in self.orders else "")
        if place in self._sizes:
            return self._sizes[place]
        changed, topology = job.changed(changes), cluster.simulator.cluster
        p, training = changed.parallelism, changed.training
        share, least = training.global_batch // training.micro_batch, least_dp(p, p.ep)
        fitting = [d for d in divisors(share) if d * p.lanes <= topology.gpus and d % least == 0]
        if isinstance(p.dp, int):
            fitting = [p.dp] if share % p.dp == 0 and p.lanes * p.dp <= topology.gpus else []
        elif self.resized:
            of_node = topology.gpus // topology.nodes
            inside = sum(d * p.lanes <= of_node for d in fitting)
            full_nodes = [d for d in fitting[inside:] if d * p.lanes % of_node == 0]
            fitting = fitting[max(inside - 1, 0) : inside] + full_nodes
        if self.only is not None:
            fitting = [d for d in fitting if d in self.only[split.place]]
        if training.global_batch % training.micro_batch:
            fitting = []
        sized: list[SizedSplit] = []
        for dp in fitting if self.resized else fitting[-1:]:
            gpus = p.lanes * dp
            filled: Point = {NODES: -(-gpus // (topology.gpus // topology.nodes))} if self.resized else {}
            at = {**point, DP: dp} if self.resized else point
            orders = self._orders_of(at, changed, dp, share // dp, gpus if self.resized else topology.gpus)
            sized += [SizedSplit(split, p.pp, dp, share // dp, gpus, orders, filled)] if orders else []
        if not sized:
            raise InputError(UNSHARED if self.resized else _reason(cluster, self.case.job(self.completed(split))))
        self._sizes[place] = sized
        return sized

    def _orders_of(self, point: Point, job: Job, dp: int, batch: int, gpus: int) -> Mapping[str, Orders]:
        """Return {overlap of expert exchanges: its legal orders} of a split; {} if none is legal. point: keys of the split. dp:
        number of replicas, instead of the job's. batch: microbatches per replica. gpus: number of GPUs that it may use."""
        degrees = job.parallelism
        spare = gpus >= 2 * degrees.lanes or degrees.cp > 1
        fixed = tuple((key, str(point[key])) for key in (*ORDERS, *TRAFFIC_KEYS, FRAMEWORK) if key in point)
        same = degrees.pp, degrees.tp > 1, degrees.cp > 1, batch, dp > 1, spare, fixed
        experts = (degrees.ep > 1, degrees.etp > 1, job.training.recompute) if EP_OVERLAP in self.orders else ()
        if (key := (*same, experts)) not in self._orders:
            by_overlap: dict[str, list[Order]] = {}
            for order in self._open(point, job, same, experts):
                by_overlap.setdefault(order.experts, []).append(order)
            self._orders[key] = {
                kind: Orders(rows, sum(1 + len(order.others) for order in rows)) for kind, rows in by_overlap.items()
            }
        return self._orders[key]

    def _schedules(self, point: Point, same: tuple[object, ...], experts: tuple[object, ...]) -> Iterator[_Filled]:
        """Yield the legal values of zero, schedule and chunks, each with those of the overlap of expert exchanges.

        same, experts: cache keys. Without `experts`, values of the overlap are left out.
        """
        keys = [key for key in self.orders if key != EP_OVERLAP]
        if same not in self._known:
            self._known[same] = list(self.fill({k: v for k, v in point.items() if k != RECOMPUTE}, keys))
        for path, filled in self._known[same]:
            values = {key: filled[key] for key in keys if key in filled}
            if not experts:
                yield path, values
                continue
            key = *same[:3], *experts, *values.items()
            if key not in self._experts:
                self._experts[key] = list(self.fill({**point, **values}, (EP_OVERLAP,)))
            for more, extended in self._experts[key]:
                yield (*path, *more), {**values, EP_OVERLAP: extended[EP_OVERLAP]}

    def _open(self, point: Point, job: Job, same: tuple[object, ...], experts: tuple[object, ...]) -> Iterator[Order]:
        """Yield the legal values of all open keys of a split. same, experts: cache keys of what these depend on."""
        split = job.parallelism
        for path, values in self._schedules(point, same, experts):
            zero, vpp = int(str(values.get(ZERO, split.zero))), int(str(values.get(VPP, split.vpp)))
            schedule, kind = str(values.get(SCHEDULE, split.schedule)), str(values.get(EP_OVERLAP, split.overlap.ep))
            batch = int(str(same[3]))
            if misfit(schedule, split.pp, batch, vpp) or batch * split.pp * vpp > MAX_PASSES:
                continue
            filled = {**point, **values}
            key = (same[0], *same[5:], zero, vpp)
            if key not in self._traffic:
                several = self.fill(filled, self.traffic)
                self._traffic[key] = [
                    (more, {key: at[key] for key in self.traffic if key in at}) for more, at in several
                ]
            orders = []
            for more, traffic in self._traffic[key]:
                reduce, gather, away = (
                    bool(traffic.get(key, getattr(split.overlap, key.rpartition(".")[2]))) for key in TRAFFIC_KEYS
                )
                orders.append(Order((*path, *more), values, traffic, zero, schedule, vpp, kind, reduce, gather, away))
            for gather in dict.fromkeys(order.gather for order in orders):
                some = [order for order in orders if order.gather == gather]
                most = max(some, key=lambda order: order.reduce + order.away)
                yield most._replace(others=tuple(order for order in some if order is not most))


def _reason(cluster: SweepCluster, job: Job) -> str:
    """Return why a job cannot be placed on a cluster."""
    try:
        cluster.simulator.placed(job)
    except InputError as error:
        return str(error)
    return UNSHARED


def open_overlaps(case: SweepInputs, requested: SweepSpace) -> tuple[str, ...]:
    """Return the overlap keys that the user does not set and the workload's framework offers."""
    fixed_keys = {*requested.axes, *requested.fixed, *requested.auto}
    framework = scalar(FRAMEWORK, requested.fixed.get(FRAMEWORK, case.base.training.framework))
    keys = [key for key in OVERLAPS if key not in fixed_keys and (not framework or key in offers(framework))]
    experts = case.base.model.experts or "model.experts" in fixed_keys
    return tuple(key for key in keys if experts or key != EP_OVERLAP)
