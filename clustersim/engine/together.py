"""Steps of jobs that share a fabric and seldom slow each other: sums along the longest path of each, SimPy for those that meet.

As where a job is alone (engine.static), the times of all steps are found again and again until all agree: with those of the
last round it is known which tasks meet, of one job or of several, SimPy plays these, and the steps in which one of them takes
another time are summed up anew. All steps in which nobody met are one, begun at different times.

The step of a long pipeline may be a short one, whose periods are counted (engine.steady). On links that several jobs use each
copy of a task then stands where it is in the whole step; none of those for which one period stands may meet another job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, filterfalse, islice, takewhile
from math import inf
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, entries, offsets
from clustersim.engine.contention import Holders, Holdings, Meetings, Met, meeting
from clustersim.engine.player import Compiled
from clustersim.engine.record import Record
from clustersim.engine.slowing import slowing
from clustersim.engine.static import longest

ROUNDS = 64
"""Rounds until all agree: what meets in a step shifts all later ones."""
MOST = 2048
"""Different meetings that SimPy plays by themselves …"""
CROWD, FEW = 0.02, 4096
"""… and of the tasks that hold links, the part that may meet, or this number: with more, SimPy plays all of them sooner."""


def together(
    jobs: Sequence[Compiled],
    further: Sequence[int],
    steps: int = 1,
    starts: Sequence[float] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[list[Record], ...] | None:
    """Return the steps of each job that begin before all have been complete; None where tasks slow each other too often.

    further: so many periods the step of each job has more than its graph; None also where these cannot be counted, as the
    pipeline is not steady, or tasks of several jobs meet in them. steps, starts, progress: as in engine.simulate, which
    returns those that `complete` does.
    """
    if any(slowing(job.graph, job.tasks) for job in jobs):
        return None
    try:
        return _Rounds(jobs, further, steps, starts or [0.0] * len(jobs)).agreed(progress)
    except _NotSteadyError:
        return None


def complete(records: Sequence[Sequence[Record]], steps: int, starts: Sequence[float]) -> tuple[list[Record], ...]:
    """Return those of the steps of each job that are over when every job has done `steps` that began when all had started."""
    since = max(starts)
    stop = max([step for step in line if step.begin >= since][steps - 1].end for line in records)
    return tuple([step for step in line if step.end <= stop] for line in records)


class _NotSteadyError(Exception):
    """A step cannot be told from one of fewer microbatches."""


class _HeldLinks(NamedTuple):
    """What is held of some links."""

    holders: Ints
    """Which of `Holders.node` hold any …"""
    of: Ints
    """… and by row, a holder and link, which of these it is."""
    link: Ints
    share: Floats

    def copied(self, row: Ints) -> _HeldLinks:
        """Return the same, in which each of `row` is the copy of a holder."""
        start = offsets(np.bincount(self.of, minlength=len(self.holders)))
        places = entries(start, row)
        of = np.repeat(np.arange(len(row)), np.diff(start)[row])
        return _HeldLinks(self.holders, of, self.link[places], self.share[places])


def _held(holders: Holders, links: Mask) -> _HeldLinks:
    own, rows = holders.holdings, len(holders.holdings.of)
    some = np.flatnonzero(links[own.link[:rows]])
    held = np.zeros(len(holders.node), bool)
    held[own.of[some]] = True
    return _HeldLinks(np.flatnonzero(held), (np.cumsum(held) - 1)[own.of[some]], own.link[some], own.change[some])


class _StepTimes:
    """A step of a job, in seconds from its begin."""

    def __init__(self, job: _Job, ends: Floats) -> None:
        """ends: of the nodes of its graph. Raises _NotSteadyError where that cannot tell the whole step."""
        self.job, self.ends, own = job, ends, job.compiled
        starts = own.graph.starts(ends)
        over, begun = own.holders.held(own.tasks.times, starts, ends)
        holder, first, last = job.holdings.met(over[job.own], begun[job.own])
        self.met = Met(own.holders.node[job.own[holder]], first, last)
        """Who of the job meet on links which no other job uses."""
        record = Record(own.graph, own.tasks, starts, ends, {}, 0.0, float(ends.max()), met=self.met)
        found = own.steady(record, job.further) if job.further else record
        if found is None:
            raise _NotSteadyError
        self.record, self.end = found, found.end

    def shift(self, nodes: Ints) -> Floats:
        """Return by how much later nodes begin than the record says, which leaves skipped periods out."""
        skipped = self.record.skipped
        if skipped is None:
            return np.zeros(len(nodes))
        late: Floats = self.record.late[nodes] * (skipped.periods * skipped.period.follows[nodes])
        return late

    @cached_property
    def stands(self) -> Mask:
        """By node, whether it stands for others in skipped periods, or these wait for it, or prove that it does."""
        periods = self.job.compiled.periods
        if periods is None:
            return np.zeros(len(self.ends), bool)
        last, lag = periods.last, periods.meeting(self.met) or 0
        found: Mask = (last.place >= last.first - lag) & (last.place < last.end + last.passes)
        return found

    @cached_property
    def common(self) -> tuple[Floats, Floats]:
        """Until when and from when on each holder of `job.common`, and its copies, hold their links."""
        own, record, some = self.job.compiled, self.record, self.job.common.holders
        row, late = record.occurring(own.holders.node[some])
        over, begun = own.holders.held(own.tasks.times, record.starts, record.ends)
        return over[some][row] + late, begun[some][row] + late


class _Job:
    """A job, and its step if nobody slows anybody."""

    def __init__(self, compiled: Compiled, further: int, common: Mask) -> None:
        """further: periods that its step has more than its graph. common: the links that several jobs use."""
        self.compiled, self.further = compiled, further
        own = _held(compiled.holders, ~common)
        self.own, self.holdings = own.holders, Holdings(*own[1:])
        self.common = _held(compiled.holders, common)
        self.seconds = np.append(compiled.tasks.times.idle, 0.0)[compiled.graph.arrays[2]]
        self.undisturbed = _StepTimes(self, longest(compiled.graph, self.seconds))
        self.row, _ = self.undisturbed.record.occurring(self.nodes)
        """Which of the holders of `common` each of them and of their copies is …"""
        self.common = self.common.copied(self.row)

    @property
    def nodes(self) -> Ints:
        """The nodes that hold links that several jobs use."""
        return self.compiled.holders.node[self.common.holders]

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

    def begins(self, nodes: Ints) -> Floats:
        """Return when nodes begin."""
        found: Floats = self.begin + self.times.record.starts[nodes] + self.times.shift(nodes)
        return found

    def change(self) -> float:
        """Take the times that were found; return since when these change anything, infinite if nothing does."""
        nodes = [n for n in self.found.keys() | self.took.keys() if self.found.get(n) != self.took.get(n)]
        if not nodes:
            return inf
        since, self.took = float(self.begins(np.array(nodes)).min()), self.found
        self.times = self.times.job.times(self.took, self.times.ends[: min(nodes)])
        return since

    def record(self, meetings: Meetings) -> Record:
        """Return what the step leaves behind."""
        one, begin = self.times.record, self.begin
        return replace(
            one,
            starts=begin + one.starts,
            ends=begin + one.ends,
            segment_ends=self.segment_ends,
            begin=begin,
            end=self.end,
            events=meetings.events,
            solves=meetings.solves,
            player="hybrid" if meetings.events else "static",
            met=None,
        )


class _Rounds:
    """Steps of all jobs, until nothing changes."""

    def __init__(self, jobs: Sequence[Compiled], further: Sequence[int], steps: int, starts: Sequence[float]) -> None:
        capacity = jobs[0].plan.network.capacity
        users = np.zeros(len(capacity), np.int64)
        for job in jobs:
            users[np.unique(job.holders.holdings.link)] += 1
        self.jobs = [_Job(job, more, users > 1) for job, more in zip(jobs, further, strict=True)]
        self.wanted, self.starts = steps, starts
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
        self.crossing = np.empty(0, np.int64)
        """Those of them that meet there."""

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
        held = [(step.begin, step.times.common) for step in steps]
        over, begun = (np.concatenate([begin + at[i] for begin, at in held]) for i in (0, 1))
        holder, first, last = self.common.met(over, begun)
        self.crossing = self.holders[holder]
        return Met(self.crossing, first, last)

    def join(self, steps: Sequence[_JobStep]) -> None:
        """Find what is held of links that several jobs use in so many steps."""
        jobs = [step.times.job for step in steps]
        begins = np.cumsum([0, *(len(job.row) for job in jobs)]).tolist()
        of = np.concatenate([job.common.of + begin for job, begin in zip(jobs, begins, strict=False)])
        self.common = Holdings(of, *(np.concatenate([job.common[i] for job in jobs]) for i in (2, 3)))
        self.holders = np.concatenate([job.nodes[job.row] + place * self.size for place, job in enumerate(jobs)])

    def play(self, groups: Sequence[Ints], every: Sequence[tuple[int, _JobStep]], stop: float) -> bool:
        """Tell the steps what their nodes take that meet; return whether there were not too many groups.

        Raises _NotSteadyError where one that stands for others meets another job.
        """
        start = np.cumsum([0, *map(len, groups)])
        nodes = np.concatenate([np.empty(0, np.int64), *groups])
        crossing = offsets(np.isin(nodes, self.crossing))[start]
        crosses = np.repeat(np.diff(crossing) > 0, np.diff(start))
        slot, (begun, late) = np.empty(len(nodes), np.int64), np.zeros((2, len(nodes)))
        places, own = np.divmod(nodes, self.size)
        for place, (number, step) in enumerate(every):
            step.found, step.segment_ends = {}, {}
            rows = np.flatnonzero(places == place)
            node, cross = own[rows], crosses[rows]
            if (cross & step.times.stands[node]).any():
                raise _NotSteadyError
            # those of one step that meet each other alone are as much later
            late[rows] = np.where(cross, step.times.shift(node), 0.0)
            begun[rows] = step.begin + step.times.record.starts[node] + late[rows]
            slot[rows] = self.activities[number] + step.times.job.compiled.graph.arrays[2][node]
        cuts = start[1:-1]
        slots = [one.tolist() for one in np.split(slot, cuts)]
        met = (meeting(own, at, stop) for own, at in zip(slots, np.split(begun, cuts), strict=True) if len(own))
        played = self.meetings.each(met)
        if played is None:
            return False
        found = chain.from_iterable(played)
        for place, node, by, (seconds, ends) in zip(places.tolist(), own.tolist(), late.tolist(), found, strict=True):
            every[place][1].found[node] = seconds
            if ends is not None:
                every[place][1].segment_ends[node] = [end - by for end in ends]
        return True
