"""What a step leaves behind: when every node of its graph began and ended, by whichever player, and the spans of that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.graph import Occurrences, StepGraph
from clustersim.engine.program import COMPUTE, Span
from clustersim.engine.tasks import Tasks

_ROUNDING = 1e-12  # of the step: a shorter wait is what two sums differ by


class Turns(NamedTuple):
    """Rows of a table, once for each time that they occur in the whole step."""

    row: Ints
    turn: Ints
    """By how many periods each is later than the row says."""


def turns(inside: Mask, follows: Mask, periods: int) -> Turns:
    """Return when rows occur: those before a period and its own, its copies one period after the other, and what follows.

    inside, follows: which rows are of the period, and which come after it. periods: how many copies it has.
    """
    own, first, last = np.flatnonzero(inside), np.flatnonzero(~follows), np.flatnonzero(follows)
    copies = np.repeat(np.arange(1, periods + 1), len(own))
    turn = np.concatenate([np.zeros(len(first), np.int64), copies, np.full(len(last), periods)])
    return Turns(np.concatenate([first, np.tile(own, periods), last]), turn)


class SegmentEnds(Mapping[int, list[float]]):
    """The ends of half segments by node, kept as arrays: there may be millions, of which few are asked for."""

    def __init__(self, nodes: Ints, start: Ints, ends: Floats) -> None:
        """nodes: ascending. start: where the ends of each begin, and the number of all."""
        self.nodes, self.start, self.ends = nodes, start, ends

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes.tolist())

    def __getitem__(self, node: int) -> list[float]:
        place = bisect_left(self.nodes.data, node)
        if place == len(self.nodes) or self.nodes[place] != node:
            raise KeyError(node)
        found: list[float] = self.ends[self.start[place] : self.start[place + 1]].tolist()
        return found


class Period(NamedTuple):
    """The last whole period of a graph that repeats itself."""

    first: int
    """The place of its first pass, aligned …"""
    passes: int
    """… and how many passes of each rank it has."""
    later: Ints
    """By node, its like one period later; -1 where there is none."""
    place: Ints
    """By node, that of its pass among those of its rank, aligned; -1 outside the passes of microbatches."""
    offset: Ints
    """By rank, what aligns the places of its passes with those of others."""
    follows: Mask
    """By node, whether it comes after the period."""

    @property
    def end(self) -> int:
        """The place behind its last pass, aligned."""
        return self.first + self.passes

    def before(self, node: int) -> bool:
        """Return whether a node stands before the period."""
        return 0 <= self.place.item(node) < self.first

    def inside(self, nodes: Ints) -> Mask:
        """Return which of some nodes are of the period."""
        place = self.place[nodes]
        found: Mask = (place >= self.first) & (place < self.end)
        return found


class Lateness(NamedTuple):
    """By how much parts of a step that drift apart are later than their nodes say, which leave skipped periods out."""

    seconds: Floats
    """By node; 0 before the skipped periods."""
    joined: Mask
    """The nodes that wait for several parts: they have the times of the step."""


class Skipped(NamedTuple):
    """Periods of a steady pipeline that were counted and not played."""

    period: Period
    """The one that they copy."""
    periods: int
    """How many were skipped."""
    seconds: float
    """Of one period; where parts have their own, of the longest."""
    lateness: Lateness | None = None
    """That of parts, where these have periods of their own."""


@dataclass(frozen=True)
class Record:
    """One step of a job, in seconds of the simulation."""

    graph: StepGraph
    tasks: Tasks
    """The tasks of the graph in the programs that were played."""
    starts: Floats
    """When each node began: when what it needs was over."""
    ends: Floats
    segment_ends: Mapping[int, list[float]]
    """The ends of the half segments of nodes that shared a link with others; those not in it ran as if alone."""
    begin: float
    end: float
    events: int = 0
    """Events of SimPy or the compiled loop that the whole simulation processed."""
    solves: int = 0
    """Max-min problems that it solved."""
    player: str = "simpy"
    skipped: Skipped | None = None
    """What `end` has and the nodes have not."""
    slowed: Floats | None = None
    """By how much longer each node took because communication beside it took SMs; None: none did."""

    def begun(self, begin: float) -> Record:
        """Return the same step begun so many seconds later."""
        own = {node: [begin + end for end in ends] for node, ends in self.segment_ends.items()}
        starts, ends = begin + self.starts, begin + self.ends
        return replace(self, starts=starts, ends=ends, segment_ends=own, begin=begin + self.begin, end=begin + self.end)

    @cached_property
    def spans(self) -> list[Span]:
        """What every rank cell did and waited for, in the order in which it ended; waits of no length are left out."""
        spans = [*self.done(np.arange(len(self.graph.occurrences.rank))), *self._waited()]
        spans.sort(key=lambda span: span.end)
        return spans

    def ended(self, nodes: Ints, by: Ints) -> Floats:
        """Return when nodes ended, for others `by` which they were waited for."""
        own: Floats = self.ends[nodes]
        late = self.skipped.lateness if self.skipped else None
        return own if late is None else own + late.seconds[nodes] * late.joined[by]

    @property
    def last(self) -> int:
        """The node with which the step ends."""
        late = self.skipped.lateness if self.skipped else None
        return int(np.argmax(self.ends if late is None else self.ends + late.seconds))

    @cached_property
    def before(self) -> Ints:
        """By node, the one it waited for: of its two predecessors the one that ended later, the first if none did."""
        a, b, _ = self.graph.arrays
        own = np.arange(len(a))
        found: Ints = np.where(self.ended(a, own) >= self.ended(b, own), a, b)
        return found

    @cached_property
    def late(self) -> Floats:
        """By how much later, in seconds, each skipped period lets a node be that it delays, by node."""
        if self.skipped is None:
            return np.zeros(len(self.ends))
        own, periods = self.skipped.lateness, self.skipped.periods
        return np.full(len(self.ends), self.skipped.seconds) if own is None else own.seconds / periods

    def occurring(self, nodes: Ints) -> tuple[Ints, Floats]:
        """Return when nodes occur in the whole step: places in `nodes`, and by how many seconds later than their times say."""
        if self.skipped is None:
            return np.arange(len(nodes)), np.zeros(len(nodes))
        period = self.skipped.period
        found = turns(period.inside(nodes), period.follows[nodes], self.skipped.periods)
        return found.row, self.late[nodes[found.row]] * found.turn

    def counts(self, rank: Ints, place: Ints) -> Ints:
        """Return how often passes of ranks occur, given how many came before: more than once if they stand for skipped ones."""
        times = np.ones(len(rank), np.int64)
        if self.skipped is not None:
            period = self.skipped.period
            aligned = place + period.offset[rank] - period.first
            times[(aligned >= 0) & (aligned < period.passes)] += self.skipped.periods
        return times

    @cached_property
    def waited(self) -> Ints:
        """The rows of the graph's waits that had some length."""
        waits = self.graph.waits
        long = self.ends[waits.awaited] - self.ended(waits.asked, waits.awaited)
        return np.flatnonzero(long > _ROUNDING * self.end)

    def done(self, rows: Ints) -> list[Span]:
        """Return the spans of some rows of the graph's occurrences."""
        some = Occurrences(*(column[rows] for column in self.graph.occurrences))
        start, end = self.starts[some.node], self.ends[some.node]
        asked = np.where(some.asked < 0, start, self.ends[some.asked])
        columns = (some.rank, some.node, some.task, some.microbatch, asked, start, end)
        return [self._span(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def _span(self, rank: int, node: int, number: int, microbatch: int, asked: float, start: float, end: float) -> Span:
        stream, kind, stage, _, _, gives, activity = self.tasks[number]
        which = microbatch if stream == COMPUTE or gives else -1
        return Span(rank, stream, kind, stage, which, asked, start, end, activity, self.segment_ends.get(node))

    def _waited(self) -> list[Span]:
        waits, long = self.graph.waits, self.waited
        asked, end = self.ends[waits.asked], self.ends[waits.awaited]
        start = np.where(waits.stage >= 0, np.maximum(asked, self.ends[waits.sent]), asked)
        which = np.where(waits.stage >= 0, waits.microbatch, -1)
        rows = (waits.rank, waits.stage, which, asked, np.minimum(start, end), end)
        columns = zip(long.tolist(), *(row[long].tolist() for row in rows), strict=True)
        return [
            Span(rank, "wait", waits.kinds[waits.kind[i]], stage, microbatch, wanted, begun, over, None, None)
            for i, rank, stage, microbatch, wanted, begun, over in columns
        ]
