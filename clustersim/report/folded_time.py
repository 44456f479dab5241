"""The steady state of a step, derived from its times, so that repeated periods are shown once with a count.

A pipeline in its steady state repeats in every period the actions of the previous one, for later microbatches. Here the times
prove it: every task that starts in the window occurs again one period later with the same duration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.record import Record

WORTH = 24
"""Smallest number of microbatches for which leaving periods out is worthwhile."""
CANDIDATES = 4
"""Number of periods that are tried. A schedule may have different ones for forward and backward passes."""
_SAME = 1e-9  # relative to the step: differences below this are rounding errors of the sums


class FoldedTime(NamedTuple):
    """A step without its repeated periods.

    Everything that starts before `cut` keeps its time; later starts are `left_out` seconds earlier.
    """

    cut: float
    """Time in seconds after which periods are left out."""
    period: float
    """Length of a period in seconds."""
    periods: int
    """Number of periods that are left out. They equal the period before the cut."""
    microbatches: int
    """Number of microbatches by which a period advances each rank."""

    @property
    def left_out(self) -> float:
        """Seconds that are left out."""
        return self.periods * self.period

    def shown(self, start: Floats) -> Mask:
        """Return a mask (items,) of the items that the folded step shows. start: their start times in seconds."""
        hidden: Mask = (start > self.cut) & (start <= self.cut + self.left_out)
        return ~hidden

    def folded(self, start: Floats) -> Floats:
        """Return the start times in the folded step, in seconds, of shown items that start at `start`."""
        return np.where(start > self.cut, start - self.left_out, start)


NOT_FOLDED = FoldedTime(np.inf, 0.0, 0, 0)


def folded_time(record: Record, pipeline: int) -> FoldedTime:
    """Return the step of a record without its repeated periods; `NOT_FOLDED` if they have fewer than WORTH microbatches.

    pipeline: number of pipeline ranks, which is also the microbatches per period of interleaved schedules.
    """
    shape, microbatch = record.shape, record.shape.event_microbatch
    start, took = record.starts, record.ends - record.starts
    most = int(microbatch.max(initial=0)) + 1 + 2 * pipeline
    key = shape.event_task.astype(np.int64) * most + microbatch
    for moved in dict.fromkeys((1, pipeline, 2)):
        later = _row_of(key, np.where(microbatch < 0, -1, key + moved))
        earlier = _row_of(key, np.where(microbatch < moved, -1, key - moved))
        tried = (_window(record, start, took, (later, earlier), moved, p) for p in _periods(record, start, later))
        longest = max(tried, key=lambda window: window.left_out, default=NOT_FOLDED)
        if longest.periods * moved >= WORTH:
            return longest
    return NOT_FOLDED


def _row_of(key: Ints, wanted: Ints) -> Ints:
    """Return for each entry of `wanted` its index in `key`; -1 if it is not there, or several times."""
    order = np.argsort(key, kind="stable")
    at = key[order]
    left, right = np.searchsorted(at, wanted), np.searchsorted(at, wanted, "right")
    rows: Ints = np.where(right - left == 1, order[np.minimum(left, len(at) - 1)], -1)
    return rows


def _periods(record: Record, start: Floats, later: Ints) -> list[float]:
    """Return candidates for the period: the most frequent intervals (s) between an event and its next repetition; [] if none.

    They are at most `CANDIDATES`, the most frequent first. start: starts in s (events,). later: index of the next repetition of
    each event (events,); -1 without one.
    """
    repeated = later >= 0
    tolerance = 10 * _SAME * record.end
    delta = start[later[repeated]] - start[repeated]
    times, counts = np.unique(np.round(delta / tolerance), return_counts=True)
    common = (times[np.argsort(-counts, kind="stable")][:CANDIDATES] * tolerance).tolist()
    return [float(np.median(delta[np.abs(delta - time) <= tolerance])) for time in common if time > 0]


def _window(
    record: Record, start: Floats, took: Floats, neighbours: tuple[Ints, Ints], moved: int, period: float
) -> FoldedTime:
    """Return the longest window in which every period of `period` s repeats exactly the previous one; `NOT_FOLDED` without one.

    start, took: start and duration of each event (events,) in s. neighbours: index of its next and its previous repetition; -1
    without one. moved: microbatches per period.
    """
    later, earlier = neighbours
    tolerance = _SAME * record.end
    delta = np.where(later >= 0, start[later] - start, np.nan)
    repeated = later >= 0
    steady = repeated & (np.abs(delta - period) <= tolerance) & (np.abs(took[later] - took) <= tolerance)
    known = (earlier >= 0) & steady[earlier]
    odd = np.sort(np.concatenate([start[~steady], start[~known] - period, [record.begin, float(start.max())]]))
    place = int(np.diff(odd).argmax())
    inside = start[(start > odd[place] + tolerance) & steady]
    if not len(inside):
        return NOT_FOLDED
    first = (odd[place] + float(inside.min())) / 2  # between two starts, so that rounding decides nothing
    periods = max(int((odd[place + 1] + period - tolerance - first) / period) - 2, 0)
    return FoldedTime(first + period, period, periods, moved)
