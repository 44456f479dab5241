"""A step with all its periods: those that were counted are copies of the last one that was played.

What stands before a node of a period stands before each of its copies, as many periods later. So nodes, what ranks do and wait
for at them, and their times follow by arrays, without a schedule, a graph or a player for the whole step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustersim.arrays import Floats, Ints, narrow
from clustersim.engine.graph import Labels, Occurrences, StepGraph, Waits
from clustersim.engine.instances import WIDE, ordered
from clustersim.engine.record import Period, Record, Turns, turns


def expand_periods(record: Record) -> Record:
    """Return the record of all periods of a step; its nodes stand in another order than in a graph that was built for them."""
    if record.skipped is None:
        return record
    copies = _Copies(record.graph, record.skipped.period, record.skipped.periods)
    nodes, late = copies.nodes.row, record.late
    by = late[nodes] * copies.nodes.turn
    return replace(
        record,
        graph=copies.graph(),
        starts=record.starts[nodes] + by,
        ends=record.ends[nodes] + by,
        segment_ends=copies.segment_ends(record, late),
        skipped=None,
        slowed=None if record.slowed is None else record.slowed[nodes],
    )


def expanded(graph: StepGraph, period: Period, periods: int) -> StepGraph:
    """Return a graph lengthened by `periods` copies of its last whole period, its nodes level by level."""
    found = _Copies(graph, period, periods).graph()
    (a, b, slot), work, waits = found.arrays, found.occurrences, found.waits
    order = ordered(a, b, wide=graph.ranks >= WIDE)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    return replace(
        found,
        arrays=(place[a[order]], place[b[order]], slot[order]),
        occurrences=work._replace(node=place[work.node], asked=np.where(work.asked < 0, -1, place[work.asked])),
        waits=waits._replace(asked=place[waits.asked], awaited=place[waits.awaited], sent=place[waits.sent]),
        labels=Labels(*(narrow(column[order]) for column in found.labels)),
    )


class _Copies:
    """The nodes of a step with those of its skipped periods.

    First stand those before the period and its own, then its copies, one period after the other, then what comes after it.
    """

    def __init__(self, graph: StepGraph, period: Period, periods: int) -> None:
        self.short, self.periods, self.period = graph, periods, period
        later, labels = self.period.later, graph.labels
        repeated = later >= 0
        self.microbatches = int((labels.microbatch[later] - labels.microbatch)[repeated].max())
        """Of a period."""
        aligned = np.where(self.period.follows, self.period.end, self.period.place)
        self.nodes = self._rows(aligned)
        own, count = np.flatnonzero((aligned >= self.period.first) & (aligned < self.period.end)), len(later)
        before = np.full(count, -1)
        before[later[repeated]] = np.flatnonzero(repeated)
        back, on = self._chain(own, before), self._chain(own, later)
        self.like, self.by = np.full(count, -1), np.zeros(count, np.int64)
        """By node, its like in the period, of which it is the copy so many periods later; -1: it has none."""
        for by, nodes in enumerate([*back[::-1], own, *on], -len(back)):
            self.like[nodes[nodes >= 0]], self.by[nodes[nodes >= 0]] = np.flatnonzero(nodes >= 0), by
        self.number = np.zeros(count, np.int64)
        """By node, its number in the whole step."""
        once = np.flatnonzero((self.nodes.turn == 0) | (aligned[self.nodes.row] >= self.period.end))
        self.number[self.nodes.row[once]] = once
        copies = np.flatnonzero((self.nodes.turn > 0) & (aligned[self.nodes.row] < self.period.end))
        known = [np.where(nodes >= 0, self.number[nodes], -1) for nodes in (*back[::-1], own)]
        after = [np.where(nodes >= 0, self.number[nodes], -1) for nodes in on]
        self.numbers = np.concatenate([*known, copies, *after]).reshape(-1, len(own))
        """The same of all likes of the nodes of the period, row by row one period later …"""
        self.first = len(back)
        """… which itself has this row."""

    def _rows(self, aligned: Ints) -> Turns:
        """Return when rows occur, given the places of their passes, aligned."""
        follows = aligned >= self.period.end
        return turns((aligned >= self.period.first) & ~follows, follows, self.periods)

    def _chain(self, nodes: Ints, following: Ints) -> list[Ints]:
        """Return what follows nodes, period after period; -1 where nothing does."""
        found = []
        while (nodes := np.where(nodes >= 0, following[nodes], -1)).max(initial=-1) >= 0:
            found.append(nodes)
        return found

    def referred(self, nodes: Ints, turn: Ints) -> Ints:
        """Return the numbers of nodes to which something refers that is so many periods later than it says; -1 stays."""
        found: Ints = self.number[nodes]
        moved = np.flatnonzero((nodes >= 0) & (self.like[nodes] >= 0))
        own = nodes[moved]
        found[moved] = self.numbers[self.first + self.by[own] + turn[moved], self.like[own]]
        return np.where(nodes < 0, -1, found)

    def graph(self) -> StepGraph:
        """Return the graph of the whole step."""
        short, (row, turn) = self.short, self.nodes
        a, b, slot = short.arrays
        task, microbatch, place, before = (column[row] for column in short.labels)
        return replace(
            short,
            arrays=(self.referred(a[row], turn), self.referred(b[row], turn), slot[row]),
            occurrences=self._occurrences(),
            waits=self._waits(),
            labels=Labels(task, self._microbatch(microbatch, turn), place + turn * self.period.passes, before),
        )

    def _occurrences(self) -> Occurrences:
        rank, node, asked, task, microbatch, place = self.short.occurrences
        row, turn = self._in_order(rank, place)
        return Occurrences(
            rank[row],
            self.referred(node[row], turn),
            self.referred(asked[row], turn),
            task[row],
            self._microbatch(microbatch[row], turn),
            place[row] + turn * self.period.passes,
        )

    def _waits(self) -> Waits:
        rank, kind, stage, microbatch, place, asked, awaited, sent, kinds = self.short.waits
        row, turn = self._in_order(rank, place)
        return Waits(
            rank[row],
            kind[row],
            stage[row],
            self._microbatch(microbatch[row], turn),
            place[row] + turn * self.period.passes,
            self.referred(asked[row], turn),
            self.referred(awaited[row], turn),
            self.referred(sent[row], turn),
            kinds,
        )

    def _microbatch(self, microbatch: Ints, turn: Ints) -> Ints:
        return np.where(microbatch < 0, -1, microbatch + turn * self.microbatches)

    def _in_order(self, rank: Ints, place: Ints) -> Turns:
        """Return when rows of passes of ranks occur, in the order of these."""
        row, turn = self._rows(
            np.where(place > 0, place + self.period.offset[rank], -1)
        )  # the first one has no actions
        order = np.lexsort((place[row] + turn * self.period.passes, rank[row]))
        return Turns(row[order], turn[order])

    def segment_ends(self, record: Record, late: Floats) -> dict[int, list[float]]:
        """Return the ends of the half segments of those that shared a link; late: seconds of a period, by node."""
        slowed = np.isin(self.nodes.row, list(record.segment_ends))
        return {
            node: [end + turn * late[row] for end in record.segment_ends[row]]
            for node, row, turn in zip(
                np.flatnonzero(slowed).tolist(),
                self.nodes.row[slowed].tolist(),
                self.nodes.turn[slowed].tolist(),
                strict=True,
            )
        }
