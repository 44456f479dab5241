"""Exact branch and bound over the points of a space: the best in order, and proof that none that was left out is better.

Every point has a lower bound of what is minimized (`bound.py`): first that of all passes, shared evenly by the ranks, which is
soon known. Where that leaves a doubt, tighter ones follow: the passes of each rank, the whole step, and passes beside each other
in their order. Points are simulated from the lowest bound upwards, and the search ends when the next bound is worse than the
worst of the best that are asked for: so is every point behind it. Points that are as good as each other are one answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from clustersim.config.overrides import parted
from clustersim.errors import InputError, option
from clustersim.garbage import uncollected
from clustersim.optimization.bound import LowerBounds, SplitBounds, splits
from clustersim.parallel.job import Job
from clustersim.parallel.options import KEYS
from clustersim.report.verdicts import CLOSE, verdict
from clustersim.schedules.check import pipeline
from clustersim.sweeps.evaluate import Row, SweepCluster, SweepInputs, evaluate
from clustersim.sweeps.space import SCHEDULE, Point

ObjectiveValue = tuple[float, ...]
"""What is minimized: the first number, then the next."""
SearchProgress = Callable[[int, int], None]
"""Is told how many points were simulated, and how many more could be better than what is known."""


SAME = 1e-9
"""Relative difference up to which two points are as good as each other."""
ZERO = KEYS["zero"]
MICRO_BATCH = KEYS["micro_batch"]
SHARED = {SCHEDULE: str, ZERO: int, MICRO_BATCH: int, KEYS["recompute"]: str}
"""Keys in which points with the same `SplitBounds` may differ, and the type of their values."""
FREE = tuple(KEYS[name] for name in ("tp", "pp", "ep", "micro_batch", "recompute", "schedule", "vpp", "zero"))
"""Keys of which all legal values are tried where nobody gives any."""


def free(given: Collection[str]) -> list[str]:
    """Return the keys of which all legal values are tried; given: keys that have values."""
    return [key for key in FREE if key not in given]


class Objective(NamedTuple):
    """What is minimized, as a function of a step's seconds that never falls."""

    name: str
    value: Callable[[SweepCluster, Job, float], ObjectiveValue]


class Best(NamedTuple):
    """One of the best points."""

    value: ObjectiveValue
    place: int
    """In the space, where simpler splits come first."""
    point: Point
    row: Row
    same: tuple[Point, ...] = ()
    """Points that are as good: not as simple, or with memory that is too close to tell."""

    @property
    def sure(self) -> bool:
        """Whether its memory is enough beyond doubt."""
        return bool(self.row["memory_verdict"] == "fits")

    def merged(self, other: Best) -> Best:
        """Return one answer for two points that are as good as each other: of those that fit for sure the first in the space."""
        first, second = sorted((self, other), key=lambda one: (not one.sure, one.place))
        return first._replace(same=(*first.same, second.point, *second.same))


class Answers:
    """The best points so far, each another answer; with the best that fits for sure, however many are better."""

    def __init__(self, top: int) -> None:
        self.top, self.found = top, list[Best]()

    def add(self, new: Best) -> None:
        """Take a point in; one that is as good as another joins it."""
        alike = next((one for one in self.found if _same(one.value, new.value)), None)
        if alike:
            self.found.remove(alike)
        self.found.append(alike.merged(new) if alike else new)
        self.found.sort(key=lambda one: (one.value, one.place))

    @property
    def worst(self) -> ObjectiveValue:
        """What a point must not be above to be among them."""
        sure = next((place for place, one in enumerate(self.found) if one.sure), len(self.found))
        last = max(self.top - 1, sure)
        return self.found[last].value if last < len(self.found) else (math.inf,)

    def best(self) -> list[Best]:
        """Return them, best first; behind them the best that fits for sure, where none of them does."""
        first, rest = self.found[: self.top], self.found[self.top :]
        return first if any(one.sure for one in first) else [*first, *[one for one in rest if one.sure][:1]]


def _same(one: ObjectiveValue, other: ObjectiveValue) -> bool:
    return all(math.isclose(a, b, rel_tol=SAME) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Refused:
    """Points that were out before or when they would have been simulated, by kind: illegal, does not fit, failed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Why the first of a kind is, where that was asked."""

    def add(self, kind: str, why: str = "", count: int = 1) -> None:
        """Count points of a kind, and keep why the first is out."""
        self.counts[kind] += count
        if why:
            self.examples.setdefault(kind, why)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search came to."""

    best: list[Best]
    """Best first."""
    points: int
    """Of the space."""
    simulated: int
    """How many were simulated."""
    bounded: int
    """How many no simulation needs, as their lower bound is no better than the best."""
    twins: int
    """How many no simulation needs, as they take the same step as one that was simulated."""
    refused: Refused
    """All others."""
    goal: str
    """The name of the objective."""

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many points were out, by kind."""
        return self.refused.counts


def objective(name: str, target: float | None = None) -> Objective:
    """Return what `--objective` names: step, cost, energy or gpus. target: tokens/s that gpus must reach. Raises InputError."""
    asked, speed = option("--objective gpus", "goal='gpus'"), option("--target", "target=")
    if name == "gpus":
        if target is None or not 0 < target < math.inf:
            raise InputError(f"{asked}: needs a speed to reach; add {speed}, in tokens/s above 0")
        return Objective(name, lambda _, job, step: _fewest(job, step, target))
    if name not in _OBJECTIVES:
        raise InputError(f"{option(f'--objective {name}', f'goal={name!r}')}: is none; use step, cost, energy or gpus")
    if target is not None:
        raise InputError(f"{speed}: is the speed that the fewest GPUs must reach; add {asked}, or leave it out")
    return Objective(name, _OBJECTIVES[name])


def _tokens(job: Job) -> float:
    return float(job.training.global_batch * job.training.seq)


def _fewest(job: Job, step: float, target: float) -> ObjectiveValue:
    return (float(job.mesh.size) if _tokens(job) / step >= target else math.inf, step)


def _cost(cluster: SweepCluster, job: Job, step: float) -> ObjectiveValue:
    if cluster.rates.rent is None:
        gpu = cluster.simulator.cluster.gpu.name
        asked, remedy = option("--objective cost", "goal='cost'"), option("--price", "price=")
        raise InputError(f"{asked}: nobody says what {gpu} costs; add {remedy}, in USD a GPU-hour")
    return (cluster.rates.rent * step / _tokens(job), step)


_OBJECTIVES: dict[str, Callable[[SweepCluster, Job, float], ObjectiveValue]] = {
    "step": lambda _, job, step: (step / _tokens(job),),
    "cost": _cost,
    "energy": lambda cluster, job, step: (cluster.rates.power * step / _tokens(job), step),
}


def search(
    case: SweepInputs, points: Sequence[Point], wanted: Objective, top: int = 5, show: SearchProgress = lambda *_: None
) -> SearchResult:
    """Return the `top` points that minimize an objective, in order; ties go to the one that comes first in the space.

    Raises InputError where the objective cannot be told.
    """
    out = Refused()
    with uncollected():
        heap = list(_candidates(case, points, wanted, out))
        heapify(heap)
    answers, known = Answers(top), dict[str, Best]()
    simulated = twins = 0
    while heap and heap[0].value[0] < math.inf and heap[0].value <= answers.worst:
        one = heappop(heap)
        if not one.whole:
            if whole := one.bounded(wanted):
                heappush(heap, whole)
            else:
                out.add("does not fit", count=len(one.places))
            continue
        if rest := one.places[1:]:
            heappush(heap, one._replace(places=rest))
        show(simulated, len(heap))
        place, point = one.places[0], points[one.places[0]]
        twin = known.get(_step(point))
        if twin and twin.place < place and (twin.sure or twin.value > answers.worst):
            twins += 1
            answers.add(twin._replace(place=place, point=point))
        elif row := _simulated(case, point, out):
            simulated += 1
            value = wanted.value(one.alike.cluster, one.alike.job, row["step_time_s"])
            known[_step(point)] = found = Best(value, place, point, row)
            if value[0] < math.inf:
                answers.add(found)
    left = sum(len(one.places) for one in heap)
    return SearchResult(answers.best(), len(points), simulated, left, twins, out, wanted.name)


def _simulated(case: SweepInputs, point: Point, out: Refused) -> Row | None:
    """Return the row of a point, None where it does not fit, which is known before anything is simulated."""
    row = evaluate(case, point)
    if row["status"] == "ok":
        return row
    out.add(row["status"], row["reason"])
    return None


def _step(point: Point) -> str:
    """Return what the step of a point depends on: zero 2 differs from 1 in memory alone, of which it takes no more."""
    return repr({**point, ZERO: 1} if point.get(ZERO) == 2 else point)


class Alike(NamedTuple):
    """Points with one lower bound, that of a job."""

    places: list[int]
    job: Job
    cluster: SweepCluster
    bounds: SplitBounds


def alike(case: SweepInputs, points: Sequence[Point], out: Refused) -> Iterator[Alike]:
    """Yield the points that may be legal by their bounds; out: counts those that are not."""
    known: dict[str, LowerBounds] = {}
    for places in _groups(points):
        yield from _alike(case, points, places, known, out)


class Candidate(NamedTuple):
    """Points that may be legal, and what bounds them from below."""

    value: ObjectiveValue
    places: Sequence[int]
    """Those that are left, in ascending order."""
    level: int
    """What the bound is of: 0: a mean rank's passes, 1: each rank's, 2: the whole step of points that may fit, 3: that with pairs
    of passes in their order."""
    alike: Alike

    @property
    def whole(self) -> bool:
        """Whether there is no tighter bound."""
        return self.level > 1 + self.alike.bounds.pipeline.paired

    def bounded(self, wanted: Objective) -> Candidate | None:
        """Return the same by the next tighter bound; None where they are proved not to fit."""
        _, job, cluster, bounds = self.alike
        if self.level == 1 and not may_fit(bounds, job, cluster):
            return None
        step = bounds.step(job, play=self.level > 1) if self.level else bounds.passes(job, [job.microbatches]).item()
        return self._replace(value=wanted.value(cluster, job, step), level=self.level + 1)


def _candidates(case: SweepInputs, points: Sequence[Point], wanted: Objective, out: Refused) -> Iterator[Candidate]:
    """Yield the points that may be legal, with the bounds of what a mean rank computes."""
    kept = list(alike(case, points, out))
    for own in dict.fromkeys(one.bounds.bounds for one in kept):
        own.learn((one.bounds, one.job) for one in kept if one.bounds.bounds is own)
    for one in kept:
        value = wanted.value(one.cluster, one.job, one.bounds.work(one.job))
        yield Candidate(value, one.places, 0, one)


def _groups(points: Sequence[Point]) -> list[list[int]]:
    """Return the places of points by all that is not in `SHARED`, those of like layers next to each other."""
    found: dict[tuple[object, ...], list[int]] = {}
    for place, point in enumerate(points):
        own = (key if key in SHARED and _shared(key, value) else (key, str(value)) for key, value in point.items())
        found.setdefault(tuple(own), []).append(place)
    return list(found.values())


def _shared(key: str, value: object) -> bool:
    """Return whether a value may stand in a job unread, and leaves it with the `SplitBounds` of the others."""
    if type(value) is not SHARED[key]:
        return False
    return value != 3 if key == ZERO else key != SCHEDULE or not pipeline(str(value), 2).folded


def _alike(
    case: SweepInputs, points: Sequence[Point], places: Sequence[int], known: dict[str, LowerBounds], out: Refused
) -> Iterator[Alike]:
    """Yield the points of a group by their bounds. The first legal one stands for all; others are checked when simulated."""
    first: tuple[Job, SweepCluster, SplitBounds] | None = None
    placed: dict[object, Job] = {}
    found: dict[tuple[object, ...], Alike] = {}
    for place in places:
        point = points[place]
        try:
            first = first or _first(case, point, known)
            job, cluster, bounds = first
            changes = {key: point[key] for key in SHARED if key in point and _shared(key, point[key])}
            size, schedule = changes.pop(MICRO_BATCH, None), changes.pop(SCHEDULE, job.parallelism.schedule)
            if size not in placed:  # dp follows from it
                own = job if size is None else job.changed({MICRO_BATCH: size})
                placed[size] = cluster.simulator.placed(own)
            kind = size, splits(str(schedule), job.parallelism.vpp), *changes.values()
            if kind not in found:
                one = placed[size].changed({**changes, SCHEDULE: schedule})
                found[kind] = Alike([], one, cluster, bounds)
            found[kind].places.append(place)
        except InputError as error:
            out.add("illegal", str(error))
    yield from found.values()


def _first(case: SweepInputs, point: Point, known: dict[str, LowerBounds]) -> tuple[Job, SweepCluster, SplitBounds]:
    """Return the job of a point, its cluster and its bounds. Raises InputError where it is illegal."""
    job, cluster = case.job(point), case.cluster(point)
    cluster.simulator.placed(job)
    key = repr(parted(point)[0])
    if key not in known:
        known[key] = LowerBounds(cluster.simulator.preparation)
    return job, cluster, known[key].of(job)


def may_fit(bounds: SplitBounds, job: Job, cluster: SweepCluster) -> bool:
    """Return whether a lower bound of a job's memory is no more than the GPU has."""
    have = cluster.simulator.cluster.memory
    return verdict(bounds.memory(job, (1 + CLOSE) * have), have) != "does not fit"
