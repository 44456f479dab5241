"""Points of a list with their lower bounds: those that share one are looked at together, and get tighter ones step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from clustersim.config.overrides import parted
from clustersim.errors import InputError
from clustersim.optimization.best import PlaceInSpace
from clustersim.optimization.bound import TRAFFIC, LowerBounds, SplitBounds, letters
from clustersim.optimization.objective import Objective, ObjectiveValue
from clustersim.optimization.refused import Refused
from clustersim.parallel.job import Job
from clustersim.parallel.options import KEYS
from clustersim.schedules.check import pipeline
from clustersim.sweeps.evaluate import SweepCluster, SweepInputs
from clustersim.sweeps.space import SCHEDULE, Point

ZERO, MICRO_BATCH, DP = KEYS["zero"], KEYS["micro_batch"], KEYS["dp"]
SHARED: Mapping[str, type] = {SCHEDULE: str, ZERO: int, MICRO_BATCH: int, KEYS["recompute"]: str} | {
    f"parallelism.overlap.{name}": bool for name in TRAFFIC
}
"""Keys in which points with the same `SplitBounds` may differ, and the type of their values."""


class Branch(Protocol):
    """Points that are bounded together."""

    @property
    def count(self) -> int:
        """How many points."""

    @property
    def whole(self) -> bool:
        """Whether these are points with the tightest bound that there is."""

    def tighter(self, wanted: Objective, out: Refused) -> Iterator[Candidate]:
        """Yield the same points with tighter bounds; those that are proved to be no step are counted in `out`."""


class Candidate(NamedTuple):
    """Points, and what is minimized at a lower bound of all of them."""

    value: ObjectiveValue
    place: PlaceInSpace
    """Of the first."""
    branch: Branch


class Alike(NamedTuple):
    """Points with one lower bound, that of a job."""

    points: Sequence[tuple[PlaceInSpace, Point]]
    """Those that are left, in ascending order."""
    job: Job
    cluster: SweepCluster
    bounds: SplitBounds
    level: int = 0
    """What the bound is of: 0: a mean rank's passes, 1: each rank's, 2: the whole step of points that may fit, 3: that with pairs
    of passes in their order."""

    @property
    def count(self) -> int:  # type: ignore[override]  # a tuple's own counts values
        """How many points."""
        return len(self.points)

    @property
    def whole(self) -> bool:
        """Whether there is no tighter bound."""
        return self.level > 1 + self.bounds.pipeline.paired

    def tighter(self, wanted: Objective, out: Refused) -> Iterator[Candidate]:
        """Yield the same by the next tighter bound, unless they are proved not to fit."""
        if self.level == 1 and not may_fit(self.bounds, self.job, self.cluster):
            out.add("does not fit", count=len(self.points))
            return
        step = self.bounds.step(self.job, play=self.level > 1) if self.level else least_passes(self.bounds, self.job)
        more = self._replace(level=self.level + 1)
        yield Candidate(wanted.value(self.cluster, self.job, step), self.points[0][0], more)


def least_passes(bounds: SplitBounds, job: Job) -> float:
    """Return seconds that the passes of a placed job take at least."""
    return float(bounds.passes(job, [job.microbatches]).item())


def listed(case: SweepInputs, points: Sequence[Point], wanted: Objective, out: Refused) -> Iterator[Candidate]:
    """Yield the points of a list that may be legal, with the bounds of what a mean rank computes."""
    kept = list(alike(case, points, out))
    learn([(one.bounds, one.job) for one in kept])
    for one in kept:
        yield Candidate(wanted.value(one.cluster, one.job, one.bounds.work(one.job)), one.points[0][0], one)


def learn(asked: Sequence[tuple[SplitBounds, Job]]) -> None:
    """Forecast the passes of jobs, those of one cluster together."""
    for own in dict.fromkeys(bounds.bounds for bounds, _ in asked):
        own.learn((bounds, job) for bounds, job in asked if bounds.bounds is own)


def alike(case: SweepInputs, points: Sequence[Point], out: Refused) -> Iterator[Alike]:
    """Yield the points that may be legal by their bounds; out: counts those that are not."""
    known: dict[str, LowerBounds] = {}
    for places in grouped(points):
        yield from _alike(case, points, places, known, out)


def grouped(points: Sequence[Point]) -> list[list[int]]:
    """Return the places of points by all that is not in `SHARED`, those of like layers next to each other."""
    found: dict[tuple[object, ...], list[int]] = {}
    for place, point in enumerate(points):
        own = (key if key in SHARED and shared(key, value) else (key, str(value)) for key, value in point.items())
        found.setdefault(tuple(own), []).append(place)
    return list(found.values())


def shared(key: str, value: object) -> bool:
    """Return whether a value may stand in a job unread, and leaves it with the `SplitBounds` of the others."""
    if type(value) is not SHARED[key]:
        return False
    return value != 3 if key == ZERO else key != SCHEDULE or not pipeline(str(value), 2).folded


def _alike(
    case: SweepInputs, points: Sequence[Point], places: Sequence[int], known: dict[str, LowerBounds], out: Refused
) -> Iterator[Alike]:
    """Yield the points of a group by their bounds. The first legal one stands for all; others are checked when simulated."""
    opened: tuple[Job, SweepCluster, SplitBounds] | None = None
    placed: dict[object, Job] = {}
    found: dict[tuple[object, ...], tuple[Alike, list[tuple[PlaceInSpace, Point]]]] = {}
    for place in places:
        point = points[place]
        try:
            opened = opened or first(case, point, known)
            job, cluster, bounds = opened
            changes = {key: point[key] for key in SHARED if key in point and shared(key, point[key])}
            size, schedule = changes.pop(MICRO_BATCH, None), changes.pop(SCHEDULE, job.parallelism.schedule)
            if size not in placed:  # dp follows from it
                own = job if size is None else job.changed({MICRO_BATCH: size})
                placed[size] = cluster.simulator.placed(own)
            kind = size, letters(str(schedule), job.parallelism.vpp), *changes.values()
            if kind not in found:
                one = placed[size].changed({**changes, SCHEDULE: schedule})
                some: list[tuple[PlaceInSpace, Point]] = []
                found[kind] = Alike(some, one, cluster, bounds), some
            found[kind][1].append(((place,), point))
        except InputError as error:
            out.add("illegal", str(error))
    yield from (one for one, _ in found.values())


def first(case: SweepInputs, point: Point, known: dict[str, LowerBounds]) -> tuple[Job, SweepCluster, SplitBounds]:
    """Return the job of a point, its cluster and its bounds; known: bounds by cluster. Raises InputError where it is illegal."""
    job, cluster = case.job(point), case.cluster(point)
    cluster.simulator.placed(job)
    key = repr(parted(point)[0])
    if key not in known:
        known[key] = LowerBounds(cluster.simulator.preparation)
    return job, cluster, known[key].of(job)


def may_fit(bounds: SplitBounds, job: Job, cluster: SweepCluster) -> bool:
    """Return whether a lower bound of a job's memory is no more than it may need."""
    most = cluster.simulator.preparation.fullest * cluster.simulator.cluster.memory
    return bounds.memory(job, most) <= most
