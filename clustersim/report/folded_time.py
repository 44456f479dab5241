"""The steady state of a step, found in its times: what repeats itself from period to period need be shown once, with a count.

A pipeline in its steady state does in every period what it did in the one before, for later microbatches. Here that is proved
of the times: every task that begins in the window comes again one period later, and takes as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.record import Record

WORTH = 24
"""Microbatches that are left out at least; fewer are shown."""
CANDIDATES = 4
"""Periods that are tried: a schedule may have one of forward and one of backward passes."""
_SAME = 1e-9  # of the step: what sums of floats may be off


class FoldedTime(NamedTuple):
    """A step without the periods that are like their neighbours.

    All that begins before `cut` is where it was; what begins later is `left_out` earlier than in the step.
    """

    cut: float
    """Seconds."""
    period: float
    """Seconds."""
    periods: int
    """Periods that are left out; what they were like is the period before the cut."""
    microbatches: int
    """By how many a period moves each rank on."""

    @property
    def left_out(self) -> float:
        """Seconds."""
        return self.periods * self.period

    def shown(self, start: Floats) -> Mask:
        """Return which of the things that begin at `start` in the record are shown."""
        hidden: Mask = (start > self.cut) & (start <= self.cut + self.left_out)
        return ~hidden

    def folded(self, start: Floats) -> Floats:
        """Return when what is shown begins in the folded step."""
        return np.where(start > self.cut, start - self.left_out, start)


NOT_FOLDED = FoldedTime(np.inf, 0.0, 0, 0)


def folded_time(record: Record, pipeline: int) -> FoldedTime:
    """Return the step of a record folded, or `NOT_FOLDED`.

    pipeline: its ranks; interleaved schedules move so many microbatches a period.
    """
    parts = record.graph.occurrences
    start, took = record.starts[parts.node], record.ends[parts.node] - record.starts[parts.node]
    most = int(parts.microbatch.max(initial=0)) + 1 + 2 * pipeline
    key = (parts.task * (int(parts.rank.max(initial=0)) + 1) + parts.rank) * most + parts.microbatch
    for moved in dict.fromkeys((1, pipeline, 2)):
        later = _row_of(key, np.where(parts.microbatch < 0, -1, key + moved))
        earlier = _row_of(key, np.where(parts.microbatch < moved, -1, key - moved))
        tried = (_window(record, start, took, (later, earlier), moved, p) for p in _periods(record, start, later))
        found = max(tried, key=lambda one: one.left_out, default=NOT_FOLDED)
        if found.periods * moved >= WORTH:
            return found
    return NOT_FOLDED


def _row_of(key: Ints, wanted: Ints) -> Ints:
    """Return by row the row whose key is wanted, -1 where there is none or several."""
    order = np.argsort(key, kind="stable")
    at = key[order]
    left, right = np.searchsorted(at, wanted), np.searchsorted(at, wanted, "right")
    found: Ints = np.where(right - left == 1, order[np.minimum(left, len(at) - 1)], -1)
    return found


def _periods(record: Record, start: Floats, later: Ints) -> list[float]:
    """Return the commonest times from a task to its like: those that may be the period."""
    has = later >= 0
    off = _SAME * record.end
    times, many = np.unique(np.round((start[later[has]] - start[has]) / off / 10), return_counts=True)
    common = times[np.argsort(-many, kind="stable")][:CANDIDATES]
    delta = start[later[has]] - start[has]
    return [float(np.median(delta[np.abs(delta - one * off * 10) <= 10 * off])) for one in common.tolist() if one > 0]


def _window(
    record: Record, start: Floats, took: Floats, neighbours: tuple[Ints, Ints], moved: int, period: float
) -> FoldedTime:
    """Return the longest window in which every period has what the one before it had, and nothing else."""
    later, earlier = neighbours
    off = _SAME * record.end
    delta = np.where(later >= 0, start[later] - start, np.nan)
    has = later >= 0
    steady = has & (np.abs(delta - period) <= off) & (np.abs(took[later] - took) <= off)
    known = (earlier >= 0) & steady[earlier]
    odd = np.sort(np.concatenate([start[~steady], start[~known] - period, [record.begin, float(start.max())]]))
    place = int(np.diff(odd).argmax())
    inside = start[(start > odd[place] + off) & steady]
    if not len(inside):
        return NOT_FOLDED
    first = (odd[place] + float(inside.min())) / 2  # between two begins, so that no sum of floats decides a side
    periods = max(int((odd[place + 1] + period - off - first) / period) - 2, 0)
    return FoldedTime(first + period, period, periods, moved)
