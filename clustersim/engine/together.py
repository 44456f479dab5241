"""Steps of jobs that share a fabric and seldom slow each other: sums along the longest path of each, SimPy for those that meet.

As where a job is alone (engine.static), the times of all steps are found again and again until all agree: with those of the
last round it is known which tasks meet, of one job or of several, SimPy plays these, and the steps in which one of them takes
another time are summed up anew. All steps in which nobody met are one, begun at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, filterfalse, islice, takewhile
from math import inf
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.contention import Holders, Holdings, Meetings, Met, meeting
from clustersim.engine.player import Compiled
from clustersim.engine.record import Record
from clustersim.engine.slowing import Slowing
from clustersim.engine.static import longest

ROUNDS = 64
"""Rounds until all agree: what meets in a step shifts all later ones."""
MOST = 2048
"""Different meetings that SimPy plays by themselves …"""
CROWD, FEW = 0.02, 4096
"""… and of the tasks that hold links, the part that may meet, or this number: with more, SimPy plays all of them sooner."""


def together(
    jobs: Sequence[Compiled],
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...] | None:
    """Return the steps of each job that begin before all have been complete; None where tasks slow each other too often.

    steps, starts, progress: as in engine.simulate, which returns those that `complete` does.
    """
    if any(Slowing(job.graph, job.tasks) for job in jobs):
        return None
    return _Rounds(jobs, steps, starts or [0.0] * len(jobs)).agreed(progress)


def complete(records: Sequence[Sequence[Record]], steps: int, starts: Sequence[float]) -> tuple[list[Record], ...]:
    """Return those of the steps of each job that are over when every job has done `steps` that began when all had started."""
    since = max(starts)
    stop = max([step for step in line if step.begin >= since][steps - 1].end for line in records)
    return tuple([step for step in line if step.end <= stop] for line in records)


class _HeldLinks(NamedTuple):
    """What is held of some links."""

    holders: Ints
    """Which of `Holders.node` hold any …"""
    of: Ints
    """… and by row, a holder and link, which of these it is."""
    link: Ints
    share: Floats

    def holdings(self) -> Holdings:
        return Holdings(self.of, self.link, self.share)


def _held(holders: Holders, links: Mask) -> _HeldLinks:
    own, rows = holders.holdings, len(holders.holdings.of)
    some = np.flatnonzero(links[own.link[:rows]])
    held = np.zeros(len(holders.node), bool)
    held[own.of[some]] = True
    return _HeldLinks(np.flatnonzero(held), (np.cumsum(held) - 1)[own.of[some]], own.link[some], own.change[some])


class _StepTimes:
    """A step of a job, in seconds from its begin."""

    def __init__(self, job: _Job, ends: Floats) -> None:
        self.job, self.ends, self.end = job, ends, float(ends.max())
        self.starts = job.compiled.graph.starts(ends)

    @cached_property
    def held(self) -> tuple[Floats, Floats]:
        """Until when and from when on each holder holds its links."""
        return self.job.compiled.holders.held(self.job.compiled.tasks.times, self.starts, self.ends)

    @cached_property
    def met(self) -> Met:
        """Who of the job meet on links which no other job uses."""
        over, begun = self.held
        part, holdings = self.job.own, self.job.holdings
        holder, first, last = holdings.met(over[part.holders], begun[part.holders])
        return Met(self.job.compiled.holders.node[part.holders[holder]], first, last)


class _Job:
    """A job, and its step if nobody slows anybody."""

    def __init__(self, compiled: Compiled, common: Mask) -> None:
        """common: the links that several jobs use."""
        self.compiled = compiled
        self.common, self.own = (_held(compiled.holders, links) for links in (common, ~common))
        self.holdings = self.own.holdings()
        self.seconds = np.append(compiled.tasks.times.idle, 0.0)[compiled.graph.arrays[2]]
        self.undisturbed = _StepTimes(self, longest(compiled.graph, self.seconds))

    def times(self, took: dict[int, float], known: Floats) -> _StepTimes:
        """Return a step in which some nodes take other times; known: the ends of the first nodes."""
        if not took:
            return self.undisturbed
        seconds = self.seconds.copy()
        seconds[list(took)] = list(took.values())
        return _StepTimes(self, longest(self.compiled.graph, seconds, known))


@dataclass
class _JobStep:
    """A step of a job, as the last round had it."""

    times: _StepTimes
    begin: float = 0.0
    took: dict[int, float] = field(default_factory=dict)
    """The seconds of nodes that meet others, as far as `times` knows …"""
    found: dict[int, float] = field(default_factory=dict)
    """… and as SimPy has found."""
    segment_ends: dict[int, list[float]] = field(default_factory=dict)
    """As in engine.record.Record."""

    @property
    def end(self) -> float:
        return self.begin + self.times.end

    def change(self) -> float:
        """Take the times that were found; return since when these change anything, infinite if nothing does."""
        nodes = [n for n in self.found.keys() | self.took.keys() if self.found.get(n) != self.took.get(n)]
        if not nodes:
            return inf
        since, self.took = self.begin + float(self.times.starts[nodes].min()), self.found
        self.times = self.times.job.times(self.took, self.times.ends[: min(nodes)])
        return since

    def record(self, meetings: Meetings) -> Record:
        """Return what the step leaves behind."""
        own, times, begin = self.times.job.compiled, self.times, self.begin
        how = meetings.events, meetings.solves, "hybrid" if meetings.events else "static"
        starts, ends = begin + times.starts, begin + times.ends
        return Record(own.graph, own.tasks, starts, ends, self.segment_ends, begin, self.end, *how)


class _Rounds:
    """Steps of all jobs, until nothing changes."""

    def __init__(self, jobs: Sequence[Compiled], steps: int, starts: Sequence[float]) -> None:
        capacity = jobs[0].plan.network.capacity
        users = np.zeros(len(capacity), np.int64)
        for job in jobs:
            users[np.unique(job.holders.holdings.link)] += 1
        self.jobs, self.wanted, self.starts = [_Job(job, users > 1) for job in jobs], steps, starts
        self.activities = np.cumsum([0, *(len(job.tasks.activities) for job in jobs)]).tolist()
        """Where those of each job begin among those of all."""
        self.meetings = Meetings(capacity, [one for job in jobs for one in job.tasks.activities], MOST)
        self.steps: list[list[_JobStep]] = [[] for _ in jobs]
        """Of each job."""
        self.size = max(len(job.graph) for job in jobs)
        """Node i of the n-th of all steps is number n * size + i of all nodes."""
        self.lengths: list[int] = []
        """Of how many steps of each job the next two are …"""
        self.common = Holdings(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        """… what is held of links that several jobs use …"""
        self.holders = np.empty(0, np.int64)
        """… and by whom, of all nodes."""

    def agreed(self, progress: Callable[[float], None]) -> tuple[list[Record], ...] | None:
        """Return the steps of each job, once all agree."""
        for _ in range(ROUNDS):
            stop = self.begin()
            every = [(number, step) for number, steps in enumerate(self.steps) for step in steps]
            groups = self.met([step for _, step in every]).together()
            holders = sum(len(step.times.job.compiled.holders.node) for _, step in every)
            if sum(map(len, groups)) > max(CROWD * holders, FEW):
                return None
            if not self.play(groups, every, stop):
                return None
            since = min(step.change() for _, step in every)
            if since >= stop:
                return tuple([one.record(self.meetings) for one in line] for line in self.steps)
            progress(since / stop)
        return None

    def begin(self) -> float:
        """Say when each step begins; return when every job has as many as are wanted that began when all had started."""
        since, stop = max(self.starts), 0.0
        for number, start in enumerate(self.starts):
            counted = filterfalse(lambda step: step.begin < since, self.line(number, start))
            stop = max(stop, next(islice(counted, self.wanted - 1, None)).end)
        for number, start in enumerate(self.starts):
            begun = takewhile(lambda step: step.begin < stop, self.line(number, start))
            del self.steps[number][len(list(begun)) :]
        return stop

    def line(self, number: int, begin: float) -> Iterator[_JobStep]:
        """Yield the steps of a job one after the other, and new ones after these, without end; each is told when it begins."""
        line, undisturbed = self.steps[number], self.jobs[number].undisturbed
        for place in count():
            if place == len(line):
                line.append(_JobStep(undisturbed))
            line[place].begin = begin
            yield line[place]
            begin = line[place].end

    def met(self, steps: Sequence[_JobStep]) -> Met:
        """Return which of all nodes meet."""
        found, times = [], 0
        for place, step in enumerate(steps):
            found.append(step.times.met.shifted(place * self.size, times))
            times = max(times, int(found[-1].last.max(initial=-1)) + 1)
        found.append(self.met_of_several(steps).shifted(0, times))
        return Met(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def met_of_several(self, steps: Sequence[_JobStep]) -> Met:
        """Return which of all nodes meet on links that several jobs use."""
        if [len(line) for line in self.steps] != self.lengths:
            self.lengths = [len(line) for line in self.steps]
            self.join(steps)
        held = [(step.begin, step.times.job.common.holders, step.times.held) for step in steps]
        over, begun = (np.concatenate([begin + at[i][some] for begin, some, at in held]) for i in (0, 1))
        holder, first, last = self.common.met(over, begun)
        return Met(self.holders[holder], first, last)

    def join(self, steps: Sequence[_JobStep]) -> None:
        """Find what is held of links that several jobs use in so many steps."""
        parts = [step.times.job.common for step in steps]
        nodes = [step.times.job.compiled.holders.node for step in steps]
        begins = np.cumsum([0, *(len(part.holders) for part in parts)]).tolist()
        of = np.concatenate([part.of + begin for part, begin in zip(parts, begins, strict=False)])
        self.common = Holdings(of, *(np.concatenate([part[i] for part in parts]) for i in (2, 3)))
        own = (
            node[part.holders] + place * self.size for place, (part, node) in enumerate(zip(parts, nodes, strict=True))
        )
        self.holders = np.concatenate(list(own))

    def play(self, groups: Sequence[Sequence[int]], every: Sequence[tuple[int, _JobStep]], stop: float) -> bool:
        """Tell the steps what their nodes take that meet; return whether there were not too many groups."""
        for _, step in every:
            step.found, step.segment_ends = {}, {}
        met = []
        for group in groups:
            begun, slots = [], []
            for place, node in (divmod(one, self.size) for one in group):
                number, step = every[place]
                begun.append(step.begin + step.times.starts.item(node))
                slots.append(self.activities[number] + step.times.job.compiled.graph.slot[node])
            met.append(meeting(slots, np.array(begun), stop))
        played = self.meetings.each(met)
        if played is None:
            return False
        for group, tasks in zip(groups, played, strict=True):
            for one, (seconds, ends) in zip(group, tasks, strict=True):
                place, node = divmod(one, self.size)
                every[place][1].found[node] = seconds
                if ends is not None:
                    every[place][1].segment_ends[node] = ends
        return True
