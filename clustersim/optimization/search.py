"""Search for the best candidates of a space: estimates in columns, simulation of promising ones, lower bounds to close the gap.

A tile of candidates has equal layers (`space.py`), whose bounds are computed together (`estimate.py`). The tile of a family with
the least computation comes first; its bounds give bounds of the others. Candidates that may win get a second bound, which
follows the order of their schedule (`timeline.py`). So there is a result as soon as a few tiles are known, and the search ends
when no remaining candidate can be among the best. Equally good points are one answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.errors import InputError, OutOfMemoryError
from clustersim.garbage import uncollected
from clustersim.optimization.best import Answers, Best, PlaceInSpace, Refused
from clustersim.optimization.estimate import EstimatedTile, Estimator, Hidden
from clustersim.optimization.layer_times import EXPERTS, TENSOR
from clustersim.optimization.objective import Load, Objective, ObjectiveValue, objective
from clustersim.optimization.space import (
    TRAFFIC_KEYS,
    ZERO,
    CandidateFamily,
    CandidateSpace,
    Order,
    SizedSplit,
    TileRows,
    columns,
)
from clustersim.parallel.options import KEYS
from clustersim.simulation import Simulator
from clustersim.sweeps.evaluate import Row, SweepInputs, evaluate
from clustersim.sweeps.legal import EP_OVERLAP
from clustersim.sweeps.space import NODES, Point, SweepSpace

TOO_LARGE = "does not fit"
SearchProgress = Callable[[int, int, float | None], None]
"""Callback: number of simulated points, number that could be better, largest possible gain (None: no result yet)."""
FREE = tuple(KEYS[name] for name in ("tp", "pp", "ep", "micro_batch", "recompute", "schedule", "vpp", "zero"))
"""Keys whose legal values are all tried unless the user sets them; `answer.wider` and `space.open_overlaps` add others."""
LARGEST = 16
"""Multiple of a micro-batch above which larger ones are no faster."""
SPREAD = 0.98
"""Share of a token's time with the largest useful micro-batch that one in between may reach, when GEMM tiles fit better."""
DIVE = 24
"""Number of tiles that are bounded together, before the candidate with the best expected value is simulated."""
TOGETHER = 8
"""Number of rows of a tile whose bounds follow the order of their schedules together."""
LONG = 2048
"""Number of forward passes of a full pipeline above which a look at memory pays before the order of the schedule is bounded."""
BY_BOUND = 6
"""Number of candidates simulated by bound, before one is simulated by expected value."""


def free(fixed_keys: Collection[str]) -> list[str]:
    """Return the keys whose legal values are all tried. fixed_keys: keys that have values."""
    return [key for key in FREE if key not in fixed_keys]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search."""

    best: list[Best]
    points: int
    simulated: int
    bounded: int
    """Points excluded without simulation: their bound is no better than the best, or than another of their split."""
    twins: int
    """Points without simulation, because their step equals that of a simulated one."""
    refused: Refused
    """All other points."""
    goal: str
    open_points: int = 0
    """Points of an interrupted search that may be better than the best known ones."""
    gap: float | None = None
    """Largest share by which the open points may be better than the best point; None if the search finished."""
    least: float = math.inf
    """Lower bound of the minimized value of the open points."""


@dataclass(slots=True, eq=False)
class Stop:
    """Time limit and Ctrl-C of one or several searches: once a search has a result, either ends it early with its best one."""

    interruptible: bool = False
    """Whether Ctrl-C ends a search that has a result; otherwise it ends the program."""
    within: float | None = None
    """Time limit in seconds after the creation of this object; None for no limit."""
    start: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    """Whether Ctrl-C has ended a search."""

    @property
    def due(self) -> bool:
        """Whether Ctrl-C or the time limit has been reached, so that a search with a result must end."""
        return self.interrupted or (self.within is not None and time.monotonic() - self.start > self.within)

    @contextmanager
    def ended_by_interrupt(self, has_result: Callable[[], object]) -> Iterator[None]:
        """Leave the block without an error at the first Ctrl-C if `has_result()` is true; otherwise raise KeyboardInterrupt."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.interruptible or self.interrupted or not has_result():
                raise
            self.interrupted = True


NEVER = Stop()
"""Default of searches: no time limit, and Ctrl-C ends the program."""


class Limits(NamedTuple):
    """Limits at which a search ends before its proof is complete."""

    stop: Stop = NEVER
    """Time limit and Ctrl-C."""
    simulations: float = math.inf
    """Number of simulations after which it ends."""
    gap: float = 0.0
    """Relative gap between the best and the bound of open candidates below which it ends."""
    needed: bool = True
    """Whether it passes its limits until it has a result."""


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Bounds and simulated steps shared by several searches on equal nodes."""

    estimators: dict[str, Estimator] = field(default_factory=dict)
    """Bounds of layers by kind of node."""
    rows: dict[str, Row] = field(default_factory=dict)
    """Simulated steps by point."""

    def row(self, case: SweepInputs, point: Point) -> Row:
        """Return the row of a point, simulated the first time."""
        if (key := repr(point)) not in self.rows:
            self.rows[key] = evaluate(case, point, keep=False)
        return self.rows[key]


TO_THE_END = Limits()


def search(
    case: SweepInputs,
    points: CandidateSpace | SweepSpace | Sequence[Point],
    wanted: Objective,
    top: int = 5,
    show: SearchProgress = lambda *_: None,
    limits: Limits = TO_THE_END,
    shared: SharedWork | None = None,
) -> SearchResult:
    """Return the `top` points that minimize an objective, in order; ties go to the first one in the space.

    points: a space, with one answer per split and its best overlap, or a list of points. shared: results of searches on other
    numbers of equal nodes. Raises InputError if the objective is unknown.
    """
    space = points if isinstance(points, CandidateSpace) else CandidateSpace(case, points)
    out = Refused(space.out.counts.copy(), dict(space.out.examples))
    state = _CandidateSearch(
        space, wanted, Answers(top, space.chosen), out, shared or SharedWork(), resized=shared is not None
    )
    ended = False
    with limits.stop.ended_by_interrupt(lambda: state.answers.ranked):
        with uncollected():
            state.begin()
        ended = state.explore(show, limits)
    best = state.answers.best()
    return state.result(best, ended)


def by_memory(space: CandidateSpace) -> Iterator[tuple[float, Point]]:
    """Yield (lower bound of peak bytes, point) of the legal candidates of a space, the smallest bound first."""
    candidates: list[tuple[float, int, _Tile, int]] = []
    state = _CandidateSearch(space, objective("soonest"), Answers(1), Refused(), SharedWork())
    for number, rows in enumerate(space.tiles):
        tile = _Tile(rows, space.families[0], each=rows.rows)
        with suppress(InputError):
            layers = state.estimator(tile).tile(rows.job)
            least = state.estimator(tile).memory(layers, columns(tile.each))
            candidates += [(memory, number, tile, row) for row, memory in enumerate(least.tolist())]
    for memory, _, tile, row in sorted(candidates, key=lambda entry: entry[:2]):
        yield memory, tile.rows.point(*tile.each[row])[1]


class Sizes(NamedTuple):
    """Splits with each number of replicas that may fit into memory, as columns, and bounds of their steps."""

    places: Ints
    """Index of the split in its space, number of replicas, and number of nodes that they fill (3, sizes)."""
    load: Load
    seconds: Floats
    """Lower bound of a step with any order (schedule, chunks, traffic and zero), recomputation and overlap."""

    @property
    def ranks(self) -> Ints:
        """Index of each size among those on its number of nodes, by its bound per token (sizes,)."""
        order = np.lexsort((self.seconds / self.load.tokens, nodes := self.places[2]))
        ranks = np.empty(len(order), int)
        ranks[order] = np.arange(len(order)) - np.searchsorted(nodes[order], nodes[order])
        return ranks


def sizes(space: CandidateSpace, shared: SharedWork, show: SearchProgress) -> Sizes:
    """Return the sizes of a `resized` space with one chunk per rank. show: receives the number of candidates without a bound."""
    state = _CandidateSearch(space, objective("soonest"), Answers(1), Refused(), shared, resized=True)
    hidden = EXPERTS if EP_OVERLAP in space.inner else ()
    parts, left = [np.zeros((7, 0))], sum(tile.count for tile in space.tiles)
    for family in space.families:
        left -= sum(rows.count for variants in family.tiles.values() for rows in variants)
        show(0, left, None)
        for _, variants in sorted(family.tiles.items()):
            known, tiles = len(parts), [_Tile(rows, family) for rows in variants]
            state.layers(tiles)
            for tile in tiles:
                with suppress(InputError):
                    rows, seconds, fits = state.any_order(tile, hidden)
                    chosen = [(sized.split.place, sized.dp, sized.changes[NODES]) for sized, _ in rows]
                    columns = np.array(chosen, int).reshape(-1, 3).T
                    parts.append(np.array([*columns, *tile.rows.load(rows), seconds])[:, fits])
                tile.rows.layers = None  # some hundred megabytes for all tiles of a mixture of experts
            if not any(part.size for part in parts[known:]):  # larger microbatches need no less memory
                break
    table = np.concatenate(parts, axis=1)
    table = table[:, np.argsort(table[6], kind="stable")]  # of equal places, the shortest step comes first
    places, first = np.unique(table[:3].astype(int), axis=1, return_index=True)
    return Sizes(places, Load(*table[3:6, first]), table[6, first])


class _Item(NamedTuple):
    """Heap entry: a tile without bounds, or the next row of one with bounds."""

    value: ObjectiveValue
    """Lower bound of the minimized value."""
    place: PlaceInSpace
    number: int
    tile: _Tile
    row: int = -1
    """Index in the order of the tile's rows; -1: no bounds yet."""
    refined: bool = False
    """Whether the bound of the row follows the order of its schedule."""


@dataclass(slots=True, eq=False)
class _Tile:
    """State of a tile."""

    rows: TileRows
    family: CandidateFamily
    least: ObjectiveValue = (0.0, 0.0)
    """Lower bound of all rows, and of the tiles derived from them."""
    values: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    """Lower bounds of the minimized value for rows that may fit, ascending (rows, 2)."""
    each: list[tuple[SizedSplit, Order]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    kind: tuple[object, ...] = ()
    """Properties on which the ratio of step to bound depends, equal for all rows of the tile."""

    def point(self, row: int) -> tuple[PlaceInSpace, Point]:
        """Return (place, point) of a row. row: index in the order of bounds."""
        return self.rows.point(*self.each[self.order[row]])

    def value(self, row: int) -> ObjectiveValue:
        """Return the bound of a row. row: index in the order of bounds."""
        first, second = self.values[row].tolist()
        return first, second

    def kinds(self) -> list[_Tile]:
        """Return the tile's rows, divided by kind."""
        rows_by_kind: dict[tuple[object, ...], list[int]] = {}
        for row, index in enumerate(self.order):
            order = self.each[index][1]
            kind = order.schedule, order.vpp > 1, order.experts, self.rows.job.parallelism.overlap.tp
            rows_by_kind.setdefault(kind, []).append(row)
        return [
            replace(self, values=self.values[rows], order=[self.order[row] for row in rows], kind=kind)
            for kind, rows in rows_by_kind.items()
        ]


@dataclass(slots=True)
class _CandidateSearch:
    """State of a search."""

    space: CandidateSpace
    wanted: Objective
    answers: Answers
    out: Refused
    shared: SharedWork
    heap: list[_Item] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    """Numbers of items in the heap that are done."""
    number: int = 0
    known: dict[str, Best] = field(default_factory=dict)
    fits: dict[str, bool] = field(default_factory=dict)
    """Whether points fit into memory, by `_memory`."""
    simulated: int = 0
    new_simulations: int = 0
    """Number of simulations that this search added to the shared ones."""
    twins: int = 0
    resized: bool = False
    """Whether clusters of other sizes share the bounds of layers."""
    ratios: dict[tuple[object, ...], tuple[float, int]] = field(default_factory=dict)
    """{(whether of refined bounds, kind of candidate): (sum of ratios to the bound, number of ratios)}"""

    def begin(self) -> None:
        """Bound the tile of each family with the least computation."""
        first = [_Tile(family.tiles[min(family.tiles)][0], family) for family in self.space.families]
        for place in range(0, len(first), DIVE):
            self.open(first[place : place + DIVE])

    def open(self, tiles: Sequence[_Tile]) -> None:
        """Bound tiles, and push their rows and the tiles derived from them onto the heap."""
        self.layers(tiles)
        for tile in tiles:
            try:
                self._bound(tile)
            except InputError as error:
                self.out.add("illegal", str(error), tile.rows.count)

    def layers(self, tiles: Sequence[_Tile]) -> None:
        """Create the layers of tiles that have none yet, and forecast their kernels together; illegal tiles keep None."""
        fresh = [tile for tile in tiles if tile.rows.layers is None]
        for tile in fresh:
            tile.rows.layers = self._layers(tile)
        for bounds in {id(e): e for e in map(self.estimator, fresh)}.values():
            bounds.learn([tile.rows.layers for tile in fresh if tile.rows.layers and self.estimator(tile) is bounds])

    def any_order(self, tile: _Tile, hidden: Hidden) -> tuple[list[tuple[SizedSplit, Order]], Floats, Mask]:
        """Return the sizes of a tile with one order each, and per size: least seconds of a step in any order, whether it may fit.

        hidden: groups whose collectives the lower bound leaves out. Raises InputError if all sizes are illegal.
        """
        rows = tile.rows
        each = [(sized, sized.orders[rows.experts].rows[0]) for sized in rows.splits if rows.experts in sized.orders]
        layers = rows.layers or self.estimator(tile).tile(rows.job)  # raises the error of an illegal tile
        seconds, memory = self.estimator(tile).any_order(layers, columns(each), hidden)
        return each, seconds, _fits(tile, memory)

    def estimator(self, tile: _Tile) -> Estimator:
        """Return the estimator for the nodes of a tile."""
        cluster = tile.rows.cluster.simulator
        key = _kind(cluster) + ("" if self.resized else f" × {cluster.cluster.nodes}")
        if key not in self.shared.estimators:
            self.shared.estimators[key] = Estimator(cluster.preparation)
        return self.shared.estimators[key]

    def _layers(self, tile: _Tile) -> EstimatedTile | None:
        """Return the layers of a tile; None if its job is illegal."""
        try:
            return self.estimator(tile).tile(tile.rows.job)
        except InputError:
            return None

    def _bound(self, tile: _Tile) -> None:
        """Bound and push the rows in `tile.each`, or all rows and `_follow` the tile. Raises InputError if all are illegal."""
        estimator, whole = self.estimator(tile), not tile.each
        layers = tile.rows.layers or estimator.tile(tile.rows.job)  # raises the error of an illegal tile
        tile.each = tile.each or tile.rows.rows
        rows = columns(tile.each)
        seconds = self._seconds(tile, layers) if whole else estimator.seconds(layers, rows)
        values = np.maximum(self._values(tile, tile.each, seconds), tile.least)
        fits = _fits(tile, estimator.memory(layers, rows))
        if not fits.all():
            self.out.add(TOO_LARGE, count=sum(1 + len(tile.each[row][1].others) for row in np.flatnonzero(~fits)))
        order = np.lexsort((np.arange(len(fits)), values[:, 1], values[:, 0]))
        order = order[fits[order]]
        tile.order, tile.values = order.tolist(), values[order]
        for part in tile.kinds():
            self._push_row(part, 0)
        if whole:
            self._follow(tile, layers)

    def _seconds(self, tile: _Tile, layers: EstimatedTile, hidden: Hidden = ()) -> Floats:
        """Return lower bounds in s of a tile's rows, computed once. hidden: groups whose collectives are left out."""
        known = tile.rows.seconds
        if hidden not in known:
            known[hidden] = self.estimator(tile).seconds(layers, columns(tile.rows.rows), hidden)
        return known[hidden]

    def _values(self, tile: _Tile, each: Sequence[tuple[SizedSplit, Order]], seconds: Floats) -> Floats:
        """Return (minimized value, seconds per token) of candidates of a tile (candidates, 2)."""
        load = tile.rows.load(each)
        return np.stack([self.wanted.minimized(tile.rows.cluster, load, seconds), seconds / load.tokens], axis=1)

    def _push_row(self, tile: _Tile, row: int) -> _Item | None:
        """Push the item of a row without a refined bound, and return it; None beyond the last row."""
        return self._push(tile.value(row), tile.point(row)[0], tile, row) if row < len(tile.order) else None

    def _push(
        self, value: ObjectiveValue, place: PlaceInSpace, tile: _Tile, row: int = -1, refined: bool = False
    ) -> _Item:
        """Push a new item of a tile onto the heap, and return it. Arguments are the fields of `_Item`."""
        self.number += 1
        heappush(self.heap, item := _Item(value, place, self.number, tile, row, refined))
        return item

    def _pop(self) -> _Item | None:
        """Remove and return the open item with the least bound that may be among the best; None if none is left."""
        while self.heap:
            item = heappop(self.heap)
            if item.number in self.taken:
                self.taken.remove(item.number)
            elif self._may_win(item):
                return item
        return None

    def _may_win(self, item: _Item) -> bool:
        """Return whether the lower bound is finite and not above the worst of the best answers so far."""
        return item.value <= self.answers.worst and item.value[0] < math.inf

    def _refine(self, item: _Item) -> list[_Item | None]:
        """Bound a row and some after it in schedule order. Return the items that may still win, then the next row's or None."""
        tile, row, worst, rows = item.tile, item.row, self.answers.worst, list[int]()
        while row < len(tile.order) and len(rows) < TOGETHER and tile.value(row) <= worst:
            split, order = tile.each[tile.order[row]]
            long = split.pp * order.vpp * min(split.batch, 2 * split.pp) > LONG
            rows += [row] if not long or self._fits(tile, row) else []
            row += 1
        rest = self._push_row(tile, row)
        if not rows:
            return [rest]
        each = [tile.each[tile.order[row]] for row in rows]
        assert tile.rows.layers is not None
        values = self._values(tile, each, self.estimator(tile).seconds(tile.rows.layers, columns(each), in_order=True))
        values = np.maximum(values, tile.values[rows])
        self._learn(tile, False, float((values[:, 1] / tile.values[rows][:, 1]).mean()))
        refined_items: list[_Item | None] = [
            self._push((first, second), tile.point(row)[0], tile, row, refined=True)
            for row, (first, second) in zip(rows, values.tolist(), strict=True)
            if (first, second) <= worst
        ]
        return [*refined_items, rest]

    def _fits(self, tile: _Tile, row: int) -> bool:
        """Return whether a row fits into memory, as in a simulation; count it if it does not."""
        _, point = tile.point(row)
        if (memory := _memory(point)) not in self.fits:
            try:
                simulator = self.space.case.cluster(point).simulator
                simulator.preparation.must_fit(simulator.placed(self.space.case.job(point)))
                self.fits[memory] = True
            except InputError as error:  # the simulation reports all others
                self.fits[memory] = not isinstance(error, OutOfMemoryError)
        if not self.fits[memory]:
            self.out.add(TOO_LARGE, count=1 + len(tile.each[tile.order[row]][1].others))
        return self.fits[memory]

    def _expected(self, item: _Item) -> tuple[float, int]:
        """Return a sort key: (bound times the mean ratio of simulated value to bound of its kind, number of the item)."""
        ratios = (self._ratio(item.tile, refined) for refined in {item.refined, True})
        return item.value[0] * math.prod(ratios), item.number

    def _ratio(self, tile: _Tile, refined: bool) -> float:
        """Return the mean ratio of a step to its refined bound (`refined`), or of refined to first bound, for the tile's kind.
        It is that of all kinds if the kind has none, and 1 without any."""
        total, count = self.ratios.get((refined, tile.kind)) or self.ratios.get((refined, ()), (1.0, 1))
        return total / count

    def _learn(self, tile: _Tile, refined: bool, ratio: float) -> None:
        """Record the ratio of a step to its refined bound, or of the refined bound to the first one."""
        for kind in (tile.kind, ()):
            total, count = self.ratios.get((refined, kind), (0.0, 0))
            if 0 < ratio < math.inf:
                self.ratios[refined, kind] = total + ratio, count + 1

    def _follow(self, tile: _Tile, layers: EstimatedTile) -> None:
        """Push the tiles whose bounds follow from this one: more recomputation, other overlap, larger microbatches."""
        micro_batch = tile.rows.job.training.micro_batch
        several = tile.family.tiles[micro_batch]
        if tile.rows is not several[0] or not tile.each:
            return
        place = tile.rows.point(*tile.each[0])[0]
        for other in several[1:]:
            least = self._hidden(tile, layers, self._may_hide(tile.rows, other))
            self._push(least, place, _Tile(other, tile.family, least))
        larger = [size for size in sorted(tile.family.tiles) if size > micro_batch]
        while larger and not self._may_fit(tile, larger[0] / micro_batch):
            self.out.add(TOO_LARGE, count=sum(other.count for other in tile.family.tiles[larger.pop(0)]))
        if larger:
            variants = [variant for size in larger for variant in tile.family.tiles[size]]
            hidden = tuple(dict.fromkeys(group for variant in variants for group in self._may_hide(tile.rows, variant)))
            least = self._hidden(tile, layers, hidden, self._faster(tile, hidden))
            self._push(least, place, _Tile(tile.family.tiles[larger[0]][0], tile.family, least))

    @staticmethod
    def _may_hide(first: TileRows, other: TileRows) -> Hidden:
        """Return the groups whose collectives another variant may hide more than the first one."""
        tensor = other.job.parallelism.overlap.tp != first.job.parallelism.overlap.tp
        return (*(TENSOR if tensor else ()), *(EXPERTS if other.experts != first.experts else ()))

    def _hidden(self, tile: _Tile, layers: EstimatedTile, hidden: Hidden, share: float = 1.0) -> ObjectiveValue:
        """Return the least (value, seconds per token) of a tile at a share of its seconds. hidden: as in `_seconds`."""
        seconds = share * self._seconds(tile, layers, hidden)
        values = np.maximum(self._values(tile, tile.each, seconds), tile.least)
        first, second = values.min(axis=0).tolist()
        return first, second

    def _may_fit(self, tile: _Tile, times: float) -> bool:
        """Return whether any row of a tile may fit into memory with `times` the micro-batch."""
        assert tile.rows.layers is not None
        least = self.estimator(tile).memory(tile.rows.layers, columns(tile.each), times)
        return bool(_fits(tile, least).any())

    def _faster(self, tile: _Tile, hidden: Hidden) -> float:
        """Return the smallest share of a token's time that larger microbatches can reach. hidden: groups left out."""
        estimator, job = self.estimator(tile), tile.rows.job
        if tile.family.fastest is None:
            size = min(max(tile.family.tiles), LARGEST * job.training.micro_batch)
            wide = estimator.tile(job.changed({KEYS["micro_batch"]: size}))
            estimator.learn([wide])
            tile.family.fastest = estimator.token(wide, hidden)
        assert tile.rows.layers is not None
        return min(1.0, tile.family.fastest / estimator.token(tile.rows.layers, hidden) * SPREAD)

    def explore(self, show: SearchProgress, limits: Limits) -> bool:
        """Simulate and bound possible best candidates until none is left or a limit is reached. Return whether none is left."""
        bounded = 0
        show(self.simulated, len(self.heap), self.gap)
        self._dive()
        while self.heap:
            late = limits.stop.due or self.new_simulations >= limits.simulations
            answered = self.answers.ranked
            if (late and not limits.needed) or (answered and (late or (self.gap or 0.0) < limits.gap)):
                return False
            show(self.simulated, len(self.heap), self.gap)
            tiles: list[_Item] = []
            while len(tiles) < DIVE and (item := self._pop()):
                if item.row < 0:
                    tiles.append(item)
                    continue
                if tiles:
                    heappush(self.heap, item)
                elif item.refined:
                    self._try(item)
                    bounded += DIVE // BY_BOUND
                else:
                    self._refine(item)
                    bounded += 1
                break
            self.open([item.tile for item in tiles])
            bounded += len(tiles)
            if bounded >= DIVE:
                bounded = 0
                self._dive()
        return True

    def _dive(self) -> None:
        """Simulate the most promising candidate with a bound, even if others have lower bounds."""
        rows = [(self._expected(item), item) for item in self.heap if item.row >= 0 and item.number not in self.taken]
        heapify(rows)
        before, left = self.simulated, DIVE
        while rows and self.simulated == before and left:
            (expected, _), item = heappop(rows)
            if expected > self.answers.worst[0]:
                return
            if not self._may_win(item):
                continue
            self.taken.add(item.number)
            if self.answers.ranked and not item.refined:
                more, left = self._refine(item), left - 1
            else:  # the first answer need not have the best bound
                more = [] if item.refined else [self._push_row(item.tile, item.row + 1)]
                self._try(item)
            for opened in filter(None, more):
                heappush(rows, (self._expected(opened), opened))

    @property
    def gap(self) -> float | None:
        """Largest share by which an open candidate may be better than the best; None without a best one."""
        best = self.answers.best()
        while self.heap and self.heap[0].number in self.taken:
            self.taken.remove(heappop(self.heap).number)
        least = self.heap[0].value[0] if self.heap else math.inf
        return max(0.0, 1 - least / best[0].value[0]) if best else None

    def _try(self, item: _Item) -> None:
        """Add the result of a row to the answers, and bound the same order with less overlap, which needs as much memory.

        A row that does not fit is counted, and the call ends. A row whose bound is worse than another point of its split is
        skipped. The result of an equal step is reused; otherwise the row is simulated, and counted if that fails.
        """
        tile, row = item.tile, item.row
        split, order = tile.each[tile.order[row]]
        place, point = tile.point(row)
        twin = self.known.get(_step(point))
        if not self._fits(tile, row):
            return
        if not self.answers.behind(point, item.value):
            if twin and twin.place < place and (twin.likely or twin.value > self.answers.worst):
                self.twins += 1
                self.answers.add(twin._replace(place=place, point=point))
            elif (found := self._simulated(point))["status"] == "ok":
                self._add(item, place, point, found)
            else:
                self.out.add(found["status"], found["reason"])
        if order.others:
            self._bound(_Tile(tile.rows, tile.family, item.value, each=[(split, other) for other in order.others]))

    def _simulated(self, point: Point) -> Row:
        """Return the row of a point from the shared work, simulated the first time."""
        known = len(self.shared.rows)
        row = self.shared.row(self.space.case, point)
        self.new_simulations += len(self.shared.rows) > known
        return row

    def _add(self, item: _Item, place: PlaceInSpace, point: Point, result: Row) -> None:
        """Count the simulated `point`, at `place` in the space, as an answer if finite, and its ratio to a refined bound."""
        self.simulated += 1
        split, _ = item.tile.each[item.tile.order[item.row]]
        load = Load(float(result["global_batch"] * result["seq"]), float(split.gpus), float(split.dp))
        value = self.wanted.value(item.tile.rows.cluster, load, result["step_time_s"])
        if item.refined:
            self._learn(item.tile, True, value[1] / item.value[1])
        self.known[_step(point)] = best = Best(value, place, point, result)
        if value[0] < math.inf:
            self.answers.add(best)

    def result(self, best: list[Best], ended: bool) -> SearchResult:
        """Return the result of the search. ended: whether no better candidate is left."""
        points = self.space.points
        out = sum(self.out.counts.values())
        worst = self.answers.worst
        still = () if ended else [item for item in self.heap if item.value <= worst and item.number not in self.taken]
        more = sum(self._open_rows(item, worst) for item in still)
        left = points - self.simulated - self.twins - out - more
        least = min((item.value[0] for item in still), default=math.inf)
        gap = None if ended or not best else max(0.0, 1 - least / best[0].value[0])
        return SearchResult(
            best, points, self.simulated, left, self.twins, self.out, self.wanted.name, more, gap, least
        )

    @staticmethod
    def _open_rows(item: _Item, worst: ObjectiveValue) -> int:
        """Return the number of candidates of an item that may win. Each refined row is an item of its own."""
        tile, several = item.tile, item.tile.family.tiles
        if item.row >= 0:
            rows = range(item.row, item.row + 1 if item.refined else len(tile.order))
            return sum(1 + len(tile.each[tile.order[row]][1].others) for row in rows if tile.value(row) <= worst)
        size = tile.rows.job.training.micro_batch
        larger = [
            other for key in several if key >= size for other in several[key]
        ]  # pushed after the first of its size
        return sum(other.count for other in larger) if tile.rows is several[size][0] else tile.rows.count


def _fits(tile: _Tile, memory: Floats) -> Mask:
    """Return which peaks in bytes likely fit into the memory of a tile's GPUs."""
    simulator = tile.rows.cluster.simulator
    return memory <= simulator.preparation.fullest * simulator.cluster.memory


def _kind(simulator: Simulator) -> str:
    """Return a key of the nodes, equal if their layers take equal times."""
    cluster = simulator.cluster
    return repr((cluster.gpu, cluster.node, cluster.gpus_per_node, cluster.name if cluster.pools else ""))


def _memory(point: Point) -> str:
    """Return a key of the memory of a point, without overlap of data-parallel traffic and messages."""
    return repr([(key, value) for key, value in point.items() if key not in TRAFFIC_KEYS])


def _step(point: Point) -> str:
    """Return a key of the step of a point: zero 2 differs from 1 only in memory, of which it takes no more."""
    return repr({**point, ZERO: 1} if point.get(ZERO) == 2 else point)
