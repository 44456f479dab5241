"""A steady pipeline: periods that are copies of each other are counted, not played.

In the middle of a schedule every rank repeats itself, some microbatches later. A short step is played in which that happens at
least a few times. A period ends at one place among the passes of each rank, counted from its first backward pass: so ranks that
run ahead in a pipeline need no more microbatches than the others. When in its last whole period all nodes end one equal time
after their likes of the period before, and so do all earlier ones on which any of them depends, each further period does
likewise, however many there are: a node ends at the maximum of its predecessors plus what it takes, so that an equal delay of
what comes before delays it by as much. What follows the last period is then as late as all of the further ones take. Replicas
of a pipeline that nothing joins before the end of the step may have a period each (replica_drift.py).

What a pass loses to communication beside it follows from when both begin and end; so where passes are slowed, what is beside
those of a period has to be delayed alike too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, narrow
from clustersim.engine.contention import Contention, LinkUse
from clustersim.engine.graph import Labels, StepGraph
from clustersim.engine.microbatch_overlap import StepKey
from clustersim.engine.program import TemplateKey
from clustersim.engine.record import Period, Record, Skipped
from clustersim.engine.replica_drift import joined, parts
from clustersim.engine.slowing import NO_SLOWING, Slowing
from clustersim.schedules.action import Action

_SAME = 1e-12  # of a period, by which delays may differ that are equal but for rounding: so much the whole step is off at most
# a small difference may grow where tasks contend again and again: so some more periods must be equal …
_CONTENDED = 4
# … to the last digits, as sums of times are off by a few of them and no more
_ROUNDING = 64 * 2.0**-52


@dataclass(frozen=True)
class Periods:
    """Where a graph repeats itself, whatever its tasks take."""

    graph: StepGraph
    last: Period
    """The last whole one."""
    begin: int
    """The first place from which on the graph repeats itself."""
    lag: int
    """Of a node in a period, the most places by which what it needs is earlier."""
    fixed: Ints
    """Predecessors of what follows that no period delays …"""
    delayed: Ints
    """… and beside each of them the other predecessor, which is delayed."""

    @cached_property
    def part(self) -> Ints:
        """By node, its part of the graph: as in engine.replica_drift."""
        return narrow(parts(self.graph, self.last.place, self.last.follows))

    @property
    def later(self) -> Mask:
        """The nodes that further periods delay: those of the last whole one, and what follows."""
        found: Mask = self.last.follows | (self.last.place >= self.last.first)
        return found

    def seconds(self, ends: Floats, contention: Contention, losses: Slowing = NO_SLOWING) -> Floats | None:
        """Return what a period takes: a single number, or one of each node's part where these have their own.

        ends: of nodes. contention: of nodes. losses: what computation loses to communication. None when the step was not steady.
        """
        starts, lag = self.graph.starts(ends), self.contending(contention)
        if lag is not None and losses:
            lag = self.losing(losses, starts, ends, lag)
        if lag is None or (ends[self.fixed] >= ends[self.delayed]).any():
            return None
        checked = self.since(lag)
        delay = ends[self.last.later[checked]] - ends[checked]
        seconds: Floats = delay.mean()
        off = np.abs(delay - seconds).max()
        if losses:  # begins decide too what is lost
            begun = starts[self.last.later[checked]] - starts[checked]
            off = max(off, np.abs(begun - seconds).max())
        if off <= (_SAME * seconds if lag <= self.lag else min(_SAME * seconds, _ROUNDING * ends.max())):
            return seconds
        of = self.part[checked]
        count = np.bincount(of, minlength=len(ends))
        each = np.bincount(of, delay, len(ends)) / np.maximum(count, 1)
        if losses or len(contention.node) or (np.abs(delay - each[of]) > _SAME * each[of]).any():
            return None
        found: Floats = np.where(self.part >= 0, each[self.part], 0.0)
        return found

    def since(self, lag: int) -> Ints:
        """Return the nodes of the last whole period, and of `lag` places before it."""
        first, place = self.last.first, self.last.place
        return np.flatnonzero((place >= first - lag) & (place < first + self.last.passes))

    def contending(self, contention: Contention) -> int | None:
        """Return by how many places what decides the times of a period is earlier, those included that contend for links.

        None when tasks contend that are not delayed alike.
        """
        first, place, lag = self.last.first, self.last.place, self.lag
        end = self.last.end
        groups = []
        for nodes in contention.groups():
            which, follows = place[nodes], self.last.follows[nodes]
            inside = bool(((which >= first) & (which < end)).any())
            if follows.any() or inside:
                groups.append(nodes)
                before = first - int(which[~follows].min(initial=first))
                lag = max(lag, before, (_CONTENDED - 1) * self.last.passes * inside)
        if first - lag < self.begin:
            return None
        checked, alike = (np.zeros(len(place), bool) for _ in range(2))
        checked[self.since(lag)] = True
        alike[self.last.later[self.since(lag)]] = True
        for group in groups:
            inside = bool(((place[group] >= first) & (place[group] < end)).any())
            if not (checked | (alike if inside else self.last.follows))[group].all():
                return None
        return lag

    def losing(self, losses: Slowing, starts: Floats, ends: Floats, lag: int) -> int | None:
        """Return by how many places what decides the times of a period is earlier, those included that take from its passes.

        lag: of all others. None when a pass is slowed by what is not delayed as it is. What takes is not slowed in turn: so
        each pass needs those beside it to be delayed alike, and nothing of what is beside these.
        """
        first, place, follows = self.last.first, self.last.place, self.last.follows
        slowed, taking = losses.beside(starts, ends)
        inside = (place[slowed] >= first) & (place[slowed] < self.last.end)
        some = inside | follows[slowed]
        inside, taking = inside[some], taking[some]
        lag = max(lag, first - int(place[taking[~follows[taking]]].min(initial=first)))
        if first - lag < self.begin:
            return None
        checked = self.since(lag)
        delayed, alike = follows.copy(), np.zeros(len(place), bool)
        delayed[checked] = alike[checked] = alike[self.last.later[checked]] = True
        return lag if np.where(inside, alike[taking], delayed[taking]).all() else None


def steady(
    record: Record, losses: Slowing, contention: Contention, periods: Periods, further: int, links: LinkUse
) -> Record | None:
    """Return the record of a step with so many further periods; None when it was not steady.

    losses: what computation loses to communication. contention: of its nodes. links: that they use.
    """
    seconds = periods.seconds(record.ends, contention, losses)
    if seconds is None:
        return None
    skipped = Skipped(periods.last, further, float(seconds.max()))
    if not seconds.ndim:
        return replace(record, end=record.end + further * skipped.seconds, skipped=skipped)
    late, times = further * seconds, record.tasks.times
    found = joined(record.graph, periods.part, periods.later, links, times, record.ends, late)
    if found is None:
        return None
    skipped = skipped._replace(lateness=found.lateness)
    return replace(record, starts=found.starts, ends=found.ends, end=found.end, skipped=skipped)


def periods(graph: StepGraph, period: int, passes: int) -> Periods | None:
    """Return where a graph repeats itself every `period` microbatches, None when it does nowhere long enough.

    passes: those of a rank in a period.
    """
    a, b, slot = graph.arrays
    offset = _aligned(graph)
    place = narrow(np.where(graph.labels.microbatch < 0, -1, graph.labels.place + offset[graph.node_rank]))
    later = _later(graph.labels, period)
    regular = (later >= 0) & (slot[later] == slot) & (place[later] - place == passes)
    for before in (a, b):
        regular &= (place[before] >= 0) & (later[before] == before[later])
    count = int(place.max(initial=-1)) + 1
    run = _last_run(np.bincount(place[regular], minlength=count) == np.bincount(place[place >= 0], minlength=count))
    if run is None:
        return None
    begin, end = run
    own = np.flatnonzero((place >= begin) & (place < end))
    lag = max(0, *(int((place[own] - place[before[own]]).max(initial=0)) for before in (a, b)))
    first = end - passes
    if first - lag < begin:
        return None
    known = _follows(graph, place, end)
    shifted = known | ((place >= first - lag) & (place < end))
    after = np.flatnonzero(known)
    pairs = [(x[after], y[after]) for x, y in ((a, b), (b, a))]
    rows = [np.flatnonzero(~shifted[x]) for x, _ in pairs]
    fixed, delayed = (np.concatenate([pair[i][row] for pair, row in zip(pairs, rows, strict=True)]) for i in (0, 1))
    if not shifted[delayed].all():
        return None
    return Periods(
        graph, Period(first, passes, later, place, offset, known), begin, lag, narrow(fixed), narrow(delayed)
    )


def _later(labels: Labels, period: int) -> Ints:
    """Return, by node, its like one period later, -1 where there is none."""
    task, microbatch, _, number = labels
    span = int(microbatch.max(initial=0)) + period + 2
    many = int(number.max(initial=0)) + 1
    own = (task.astype(np.int64) * span + microbatch) * many + number
    order = np.argsort(own)
    wanted = own + period * many
    found = order[np.minimum(np.searchsorted(own[order], wanted), len(own) - 1)]
    return narrow(np.where((microbatch >= 0) & (own[found] == wanted), found, -1))


def _last_run(good: Mask) -> tuple[int, int] | None:
    """Return the begin and end of the last run of good microbatches."""
    found = np.flatnonzero(good)
    if not len(found):
        return None
    end = int(found[-1]) + 1
    bad = np.flatnonzero(~good[:end])
    return (int(bad[-1]) + 1 if len(bad) else 0), end


def _aligned(graph: StepGraph) -> Ints:
    """Return what aligns the places of passes of ranks: the first backward passes of all have one."""
    rank, _, _, task, _, place = graph.occurrences  # a node of several ranks is written for one of them alone
    backward = np.array([_backward(where) for _, where, _ in graph.tasks], bool)[task]
    first = np.full(graph.ranks, np.iinfo(np.int64).max)
    np.minimum.at(first, rank[backward], place[backward])
    first[first == np.iinfo(np.int64).max] = 0
    aligned: Ints = first.max() - first
    return aligned


def _backward(where: TemplateKey) -> bool:
    """Return whether a template is that of backward passes."""
    part, key = where
    if part not in ("steps", "special"):
        return False
    letter = cast(StepKey, key)[0] if part == "steps" else cast(Action, key).letter
    return letter in ("B", "I")


def _follows(graph: StepGraph, place: Ints, end: int) -> Mask:
    """Return the nodes that come after the last whole period: those of later passes, and of the end of the step."""
    finish = np.array([task[1][0] == "finish" for task in graph.tasks], bool)
    task = graph.labels.task
    known: Mask = (place >= end) | ((place < 0) & finish[task] & (task >= 0))
    return known
