"""Exact branch and bound over the points of a space: the best in order, and proof that none that was left out is better.

Every point has a lower bound of what is minimized (`bound.py`): first that of all passes, shared evenly by the ranks, which is
soon known. Where that leaves a doubt, tighter ones follow: the passes of each rank, the whole step, and passes beside each other
in their order. Points are simulated from the lowest bound upwards, and the search ends when the next bound is worse than the
worst of the best that are asked for: so is every point behind it. Points that are as good as each other are one answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from clustersim.garbage import uncollected
from clustersim.optimization.best import Answers, Best
from clustersim.optimization.candidates import ZERO, Alike, Candidate, listed
from clustersim.optimization.objective import Objective
from clustersim.optimization.refused import Refused
from clustersim.optimization.tree import TRAFFIC_KEYS, OpenSpace, branches
from clustersim.parallel.options import KEYS
from clustersim.sweeps.evaluate import Row, SweepInputs, evaluate
from clustersim.sweeps.space import Point

TOO_LARGE = "does not fit"
SearchProgress = Callable[[int, int], None]
"""Is told how many points were simulated, and how many more could be better than what is known."""
FREE = tuple(KEYS[name] for name in ("tp", "pp", "ep", "micro_batch", "recompute", "schedule", "vpp", "zero"))
"""Keys of which all legal values are tried where nobody gives any; `answer.wider` and `tree.beside` add others."""


def free(given: Collection[str]) -> list[str]:
    """Return the keys of which all legal values are tried; given: keys that have values."""
    return [key for key in FREE if key not in given]


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
    """How many no simulation needs, as their lower bound is no better than the best, or than another of their split."""
    twins: int
    """How many no simulation needs, as they take the same step as one that was simulated."""
    refused: Refused
    """All others."""
    goal: str
    """The name of the objective."""
    open_points: int = 0
    """Of a search that was interrupted, how many may be better than the best that are known."""
    gap: float | None = None
    """Of such a search, the share by which none of those is better than the first; None for one that went to its end."""

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many points were out, by kind."""
        return self.refused.counts


def search(
    case: SweepInputs,
    points: OpenSpace | Sequence[Point],
    wanted: Objective,
    top: int = 5,
    show: SearchProgress = lambda *_: None,
    anytime: bool = False,
) -> SearchResult:
    """Return the `top` points that minimize an objective, in order; ties go to the one that comes first in the space.

    points: a list, or the tree of a space, whose splits each have one answer, with the overlap that suits it best. anytime:
    Ctrl-C ends the search with what it has found, once that is something. Raises InputError where the objective cannot be told.
    """
    count = points.points if isinstance(points, OpenSpace) else len(points)
    found = _Searched(
        case, wanted, Answers(top, points.chosen if isinstance(points, OpenSpace) else ()), Refused(), {}, set()
    )
    with uncollected():
        out = found.out
        heap = list(
            branches(points, wanted, out) if isinstance(points, OpenSpace) else listed(case, points, wanted, out)
        )
        heapify(heap)
    interrupted = False
    try:
        found.explore(heap, show)
    except KeyboardInterrupt:
        if not (anytime and found.answers.found):
            raise
        interrupted = True
    best, worst = found.answers.best(), found.answers.worst
    still = [one for one in (*heap, *found.under_way) if interrupted and one.value <= worst]
    left = found.behind + sum(one.branch.count for one in heap if not (interrupted and one.value <= worst))
    gap = 1 - min((one.value[0] for one in still), default=math.inf) / best[0].value[0] if interrupted else None
    more = sum(one.branch.count for one in still)
    least = None if gap is None else max(gap, 0.0)
    return SearchResult(best, count, found.simulated, left, found.twins, out, wanted.name, more, least)


@dataclass(slots=True)
class _Searched:
    """What is known so far."""

    case: SweepInputs
    wanted: Objective
    answers: Answers
    out: Refused
    known: dict[str, Best]
    """Points that were simulated, by what their step depends on."""
    too_large: set[str]
    """Points that do not fit, by what their memory depends on."""
    simulated: int = 0
    twins: int = 0
    behind: int = 0
    """Points whose bound is no better than another of their split."""
    under_way: tuple[Candidate, ...] = ()
    """What is looked at, if anything."""

    def explore(self, heap: list[Candidate], show: SearchProgress) -> None:
        """Take candidates from a heap, tighten their bounds and simulate them until no other can be among the best."""
        while heap and heap[0].value[0] < math.inf and heap[0].value <= self.answers.worst:
            one = heappop(heap)
            self.under_way = (one,)
            if isinstance(one.branch, Alike) and one.branch.whole:
                show(self.simulated, len(heap))
                more = self.tried(one, one.branch)
            else:
                more = one.branch.tighter(self.wanted, self.out)
            for candidate in more:
                heappush(heap, candidate)
            self.under_way = ()

    def tried(self, one: Candidate, points: Alike) -> Iterator[Candidate]:
        """Take in the first of some points with a tightest bound, and yield the others."""
        (place, point), *rest = points.points
        if rest:
            yield Candidate(one.value, rest[0][0], points._replace(points=rest))
        twin = self.known.get(_step(point))
        if self.answers.behind(point, one.value):
            self.behind += 1
        elif twin and twin.place < place and (twin.likely or twin.value > self.answers.worst):
            self.twins += 1
            self.answers.add(twin._replace(place=place, point=point))
        elif row := self._simulated(point):
            self.simulated += 1
            value = self.wanted.value(points.cluster, points.job, row["step_time_s"])
            self.known[_step(point)] = best = Best(value, place, point, row)
            if value[0] < math.inf:
                self.answers.add(best)

    def _simulated(self, point: Point) -> Row | None:
        """Return the row of a point, None where it does not fit, which is known before anything is simulated."""
        if (memory := _memory(point)) in self.too_large:
            self.out.add(TOO_LARGE)
            return None
        row = evaluate(self.case, point)
        if row["status"] == "ok":
            return row
        if row["status"] == TOO_LARGE:
            self.too_large.add(memory)
        self.out.add(row["status"], row["reason"])
        return None


def _memory(point: Point) -> str:
    """Return what the memory of a point depends on: not on whether data-parallel traffic and messages run beside computation."""
    return repr([(key, value) for key, value in point.items() if key not in TRAFFIC_KEYS])


def _step(point: Point) -> str:
    """Return what the step of a point depends on: zero 2 differs from 1 in memory alone, of which it takes no more."""
    return repr({**point, ZERO: 1} if point.get(ZERO) == 2 else point)
