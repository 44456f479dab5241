"""The best points so far, and counts of the excluded ones.

Equally good points count as one answer; among the points of one split the best counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from clustersim.optimization.objective import ObjectiveValue
from clustersim.sweeps.evaluate import Row
from clustersim.sweeps.space import Point

SAME = 1e-9
"""Relative difference up to which two points are equally good."""
PlaceInSpace = tuple[int, ...]
"""Index of a point in its space, as a tuple of indices of its keys; simpler splits come first."""


class Best(NamedTuple):
    """One of the best points."""

    value: ObjectiveValue
    place: PlaceInSpace
    point: Point
    row: Row
    same: tuple[Point, ...] = ()
    """Equally good points: less simple, or unlikely to fit."""

    @property
    def likely(self) -> bool:
        """Whether the point likely fits into memory."""
        return bool(self.row["memory_verdict"] == "likely")


@dataclass(frozen=True, slots=True)
class Refused:
    """Counts of excluded points by kind: illegal, does not fit, failed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """{kind: reason of its first point}, where a reason was computed."""

    def add(self, kind: str, why: str = "", count: int = 1) -> None:
        """Count `count` points of a kind, and store `why`, the reason, of the first."""
        self.counts[kind] += count
        if why:
            self.examples.setdefault(kind, why)


class Answers:
    """The best points so far, each a different answer."""

    def __init__(self, top: int, chosen: Collection[str] = ()) -> None:
        """top: number of answers. chosen: keys that are optimized within each split; all other keys distinguish splits."""
        self.top, self.chosen = top, frozenset(chosen)
        self.ranked = list[Best]()
        self._splits: dict[tuple[str, bool], Best] = {}

    def add(self, new: Best) -> None:
        """Add a point: an equally good one joins an existing answer, and only the best point of each split remains."""
        key = self._split_key(new.point), new.likely
        if (old := self._splits.get(key)) and _sort_key(old) <= _sort_key(new):
            return
        self._splits[key] = new
        self.ranked = _merged(sorted(self._splits.values(), key=_sort_key))

    def behind(self, point: Point, value: ObjectiveValue) -> bool:
        """Return whether a point with at least this value is worse than another of its split that likely fits."""
        best = self._splits.get((self._split_key(point), True)) if self.chosen else None
        return best is not None and best.value < value

    @property
    def worst(self) -> ObjectiveValue:
        """Largest value with which a point can still be among the best; infinite while there are fewer than `top`."""
        return self.ranked[self.top - 1].value if self.top <= len(self.ranked) else (math.inf, math.inf)

    def best(self) -> list[Best]:
        """Return the best points, the best first."""
        return self.ranked[: self.top]

    def _split_key(self, point: Point) -> str:
        """Return a text of the keys that are not `chosen`, equal for points of one split."""
        return repr([(key, value) for key, value in point.items() if key not in self.chosen])


def _sort_key(best: Best) -> tuple[ObjectiveValue, PlaceInSpace]:
    return best.value, best.place


def _merged(points: list[Best]) -> list[Best]:
    """Return one answer for equally good points: the first one in the space among those that likely fit."""
    groups: list[list[Best]] = []
    for best in points:
        if groups and all(map(partial(math.isclose, rel_tol=SAME), groups[-1][0].value, best.value)):
            groups[-1].append(best)
        else:
            groups.append([best])
    ordered = [sorted(group, key=lambda best: (not best.likely, best.place)) for group in groups]
    answers = [first._replace(same=tuple(best.point for best in rest)) for first, *rest in ordered]
    return sorted(answers, key=_sort_key)
