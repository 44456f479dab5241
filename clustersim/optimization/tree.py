"""A space whose points are made where a bound leaves a doubt: splits first, then schedules, then what runs beside computation.

A node of the tree has values of some options, and the others are open. Its bound is no more than that of any point below:

1. Degrees, micro-batch, recomputation and the overlap of tensor-parallel communication have values. What a mean rank computes
   depends on nothing else: neither on the order of its passes, nor on how stages are cut, nor on what shards the optimizer.
2. So have zero, schedule, chunks and the overlap of expert-parallel communication: the passes of each rank. No message is waited
   for while `overlap.p2p` is open, which is never longer.
3. Reductions, gathers and messages beside computation or behind it: points, each with the bound of its whole step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from clustersim.config.overrides import parted, scalar
from clustersim.errors import InputError
from clustersim.frameworks import OverlapChoice, load
from clustersim.garbage import uncollected
from clustersim.optimization.best import PlaceInSpace
from clustersim.optimization.bound import LowerBounds, SplitBounds
from clustersim.optimization.candidates import (
    DP,
    MICRO_BATCH,
    SHARED,
    ZERO,
    Alike,
    Candidate,
    first,
    grouped,
    learn,
    least_passes,
    may_fit,
    shared,
)
from clustersim.optimization.objective import Objective, ObjectiveValue
from clustersim.optimization.refused import Refused
from clustersim.parallel.job import Job
from clustersim.parallel.options import KEYS
from clustersim.sweeps.evaluate import SweepCluster, SweepInputs
from clustersim.sweeps.legal import (
    EP_OVERLAP,
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
from clustersim.sweeps.space import SCHEDULE, VPP, Point, SweepSpace, bounded

FRAMEWORK, RECOMPUTE = "training.framework", KEYS["recompute"]
ORDERS = (ZERO, SCHEDULE, VPP, EP_OVERLAP)
"""Keys of the second level."""
TRAFFIC_KEYS = (GRAD_REDUCE, PARAM_GATHER, P2P)
"""Keys of the third."""
UNREAD = frozenset({MICRO_BATCH, RECOMPUTE, TP_OVERLAP, EP_OVERLAP, SCHEDULE})
"""Keys on which no legal value of the third level depends."""
HIDING = dict.fromkeys((GRAD_REDUCE, P2P), True)
"""Values of open keys with which no bound of the second level is more than with others."""


@dataclass(frozen=True, slots=True)
class SplitRoot:
    """A node of the first level."""

    place: int
    point: Point
    """Keys that have values."""
    first: Point
    """The first point below."""
    count: int
    """How many points are below."""


class OpenSpace:
    """The legal points of a space, and what may run beside computation in them where nobody says it."""

    def __init__(self, case: SweepInputs, asked: SweepSpace) -> None:
        self.case, self.asked = case, asked
        self.choices, self.chosen = beside(case, asked)
        """Chosen: keys of overlap that nobody gives: each split has the values that suit it best."""
        auto = (*asked.auto, *self.chosen)
        self.values = LegalValues(case, auto)
        self.orders = tuple(key for key in ORDERS if key in auto)
        self.traffic = tuple(key for key in TRAFFIC_KEYS if key in auto)
        self.outer = in_order([key for key in auto if key not in {*self.orders, *self.traffic}])
        self._counts: dict[tuple[object, ...], int] = {}
        with uncollected():
            self.roots = list(self._roots())

    @property
    def points(self) -> int:
        """How many legal points there are."""
        return sum(root.count for root in self.roots)

    def _roots(self) -> Iterator[SplitRoot]:
        points: Iterator[Point] = iter(self.asked.space())
        for key in self.outer:
            points = self._filled(points, key)
        found: list[Point] = []
        place = 0
        for place, point in enumerate(points, 1):
            if below := next(self.below(point, (*self.orders, *self.traffic)), None):
                found.append(below[1])
                bounded(len(found), whole=False)
                yield SplitRoot(place, point, arranged(below[1]), self.count(point, (*self.orders, *self.traffic)))
        others = without(self.asked, found)
        if not found and not others:
            named = " and ".join(f"{key}=auto" for key in self.asked.auto)
            raise InputError(f"{named}: no value is legal with the others; write some, and the points say why")
        yield from (SplitRoot(place + more, point, point, 1) for more, point in enumerate(others, 1))

    def _filled(self, points: Iterable[Point], key: str) -> Iterator[Point]:
        return (whole for point in points for _, whole in self.below(point, (key,)))

    def below(self, point: Point, keys: Sequence[str], path: PlaceInSpace = ()) -> Iterator[tuple[PlaceInSpace, Point]]:
        """Yield a point with all legal values of keys; one whose cluster cannot be stays as it is."""
        values: Sequence[object] | None = None
        if keys:
            with suppress(InputError):
                values = self._legal(point, keys[0])
        if values is None:
            yield path, point
            return
        for place, value in enumerate(values):
            yield from self.below({**point, keys[0]: value}, keys[1:], (*path, place))

    def count(self, point: Point, keys: tuple[str, ...]) -> int:
        """Return how many points are below one that keys are open in."""
        unread = UNREAD if keys == self.traffic else {TP_OVERLAP} if EP_OVERLAP in keys else {TP_OVERLAP, RECOMPUTE}
        question = len(keys), *(str(value) for key, value in point.items() if key not in unread)
        if question not in self._counts:
            first, rest = keys[: -len(self.traffic) or None], self.traffic
            if keys == self.traffic:
                self._counts[question] = sum(1 for _ in self.below(point, keys))
            else:
                self._counts[question] = sum(self.count(one, rest) for _, one in self.below(point, first))
        return self._counts[question]

    def _legal(self, point: Point, key: str) -> Sequence[object]:
        """Return the legal values of a key; where nobody gave it, those that differ and that the framework has."""
        found = self.values.of(point, key)
        if key not in self.chosen or len(found) < 2:
            return found
        seen = PointValues(self.case, self.values.base, point, frozenset())
        choice, chunks = self.choices.get(key), seen.whole(VPP) if VPP in seen else 1
        own = [value for value in found if choice is None or choice.has(value, chunks)]
        pp, replicas = seen.whole(KEYS["pp"]), seen.cluster.gpus >= 2 * seen.lanes or seen.whole(KEYS["cp"]) > 1
        differ = pp > 1 if key == P2P else pp > 1 or replicas if key in self.traffic else True
        return own if differ and own else found[:1]


def beside(case: SweepInputs, asked: SweepSpace) -> tuple[Mapping[str, OverlapChoice], tuple[str, ...]]:
    """Return what the framework of the workload lets run beside computation, and the keys of it that nobody gives a value."""
    given, named = {*asked.axes, *asked.fixed, *asked.auto}, case.base.training.framework
    framework = scalar(FRAMEWORK, asked.fixed.get(FRAMEWORK, named))
    choices = load(str(framework)).choices if framework else {}
    keys = [key for key in OVERLAPS if key not in given and (not framework or key in choices)]
    experts = case.base.model.experts or "model.experts" in given
    return choices, tuple(key for key in keys if experts or key != EP_OVERLAP)


def branches(space: OpenSpace, wanted: Objective, out: Refused) -> Iterator[Candidate]:
    """Yield the nodes of the first level that may be legal, with the bounds of what a mean rank computes."""
    known: dict[str, LowerBounds] = {}
    groups = grouped([root.point for root in space.roots])
    kept = [one for places in groups for one in _opened(space, [space.roots[place] for place in places], known, out)]
    learn([both for one in kept for both in one.least])
    for one in kept:
        work = min(bounds.work(job) for bounds, job in one.least)
        yield Candidate(wanted.value(one.cluster, one.job, work), (one.root.place,), one)


def _opened(
    space: OpenSpace, roots: Sequence[SplitRoot], known: dict[str, LowerBounds], out: Refused
) -> Iterator[OpenSplit]:
    """Yield nodes of like layers. The first legal point stands for all; others are checked when simulated."""
    group: _Group | None = None
    replicas: dict[object, int] = {}
    for root in roots:
        try:
            group = group or _Group(*first(space.case, root.first, known)[:2], known[repr(parted(root.first)[0])], {})
            own = {key: value for key, value in root.first.items() if key in SHARED and shared(key, value)}
            job = group.job.changed(own | {key: root.first[key] for key in space.orders if key in root.first})
            if (size := job.training.micro_batch) not in replicas:  # dp follows from it
                replicas[size] = group.cluster.simulator.placed(job).dp
            yield OpenSplit(space, root, job.changed({DP: replicas[size]}), group)
        except InputError as error:
            out.add("illegal", str(error), root.count)


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes of one cluster, one model and like layers."""

    job: Job
    cluster: SweepCluster
    bounds: LowerBounds
    known: dict[tuple[object, ...], SplitBounds]

    def of(self, job: Job) -> SplitBounds:
        """Return the bounds of a job of the group."""
        split = job.parallelism
        if (key := (split.vpp, job.order_of_stages, split.overlap.ep)) not in self.known:
            self.known[key] = self.bounds.of(job)
        return self.known[key]


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """A node of the first level."""

    space: OpenSpace
    root: SplitRoot
    job: Job
    """The first point below, placed."""
    group: _Group
    whole: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """How many points are below."""
        return self.root.count

    @property
    def cluster(self) -> SweepCluster:
        """The cluster of all of them."""
        return self.group.cluster

    @property
    def least(self) -> list[tuple[SplitBounds, Job]]:
        """The jobs of which one takes no longer than any below: layers differ by the overlap of experts' exchanges alone."""
        jobs = [self.job]
        if EP_OVERLAP in self.space.orders and self.job.model.experts and self.job.parallelism.ep > 1:
            jobs = [self.job.changed({EP_OVERLAP: kind}) for kind in ("none", "shared")]
        return [(self.group.of(job), job) for job in jobs]

    def tighter(self, wanted: Objective, out: Refused) -> Iterator[Candidate]:
        """Yield the nodes of the second level, by the passes of each rank."""
        space = self.space
        known: dict[tuple[object, ...], tuple[SplitBounds, ObjectiveValue]] = {}
        for path, point in space.below(self.root.point, space.orders):
            try:
                order = tuple(point.get(key) for key in space.orders if key != ZERO)  # which does not matter to passes
                if order not in known:
                    job = hidden(space, self.job, point)
                    bounds = self.group.of(job)
                    known[order] = bounds, wanted.value(self.cluster, job, least_passes(bounds, job))
                place, (bounds, value) = (self.root.place, *path), known[order]
                yield Candidate(value, place, OpenTraffic(space, place, point, self.job, self.cluster, bounds))
            except InputError as error:
                out.add("illegal", str(error), space.count(point, space.traffic))


def hidden(space: OpenSpace, job: Job, point: Point) -> Job:
    """Return the job of a node of the second level, whose bounds are no more than those of the points below."""
    hiding = {key: True for key in HIDING if key in space.traffic}
    return job.changed({key: point[key] for key in space.orders if key in point} | hiding)


@dataclass(frozen=True, slots=True)
class OpenTraffic:
    """A node of the second level."""

    space: OpenSpace
    place: PlaceInSpace
    point: Point
    split: Job
    """That of the node above."""
    cluster: SweepCluster
    bounds: SplitBounds
    level: int = 0
    """What the bound is of: 0: each rank's passes, 1: the step of points that may fit, 2: that with pairs of passes played."""
    whole: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """How many points are below."""
        return self.space.count(self.point, self.space.traffic)

    def tighter(self, wanted: Objective, out: Refused) -> Iterator[Candidate]:
        """Yield the same by the next tighter bound, at last the points, unless they are proved not to fit."""
        job = hidden(self.space, self.split, self.point)
        if self.level == 0 and not may_fit(self.bounds, job, self.cluster):
            out.add("does not fit", count=self.count)
        elif self.level > self.bounds.pipeline.paired:
            yield from self._points(job, wanted)
        else:
            step = self.bounds.step(job, play=self.level > 0, exchanged=False)
            yield Candidate(wanted.value(self.cluster, job, step), self.place, replace(self, level=self.level + 1))

    def _points(self, hidden: Job, wanted: Objective) -> Iterator[Candidate]:
        """Yield the points by the bounds of their whole steps."""
        for path, point in self.space.below(self.point, self.space.traffic):
            job = hidden.changed({key: point[key] for key in self.space.traffic if key in point})
            place = *self.place, *path
            value = wanted.value(self.cluster, job, self.bounds.step(job, play=False))
            yield Candidate(value, place, Alike([(place, arranged(point))], job, self.cluster, self.bounds, 2))
