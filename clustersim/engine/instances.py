"""The graph of a step from the programs of its ranks: the pattern of a pass, copied to all ranks and microbatches by arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask, distinct, distinct_rows, entries, narrow, offsets
from clustersim.engine.compiled import Loop, paid_off
from clustersim.engine.graph import Labels, Occurrences, StepGraph, Waits, successors
from clustersim.engine.pattern import BEFORE, BEGIN, JOIN, LAST, LOCAL, MEETING, NOW, NTH, SENT
from clustersim.engine.program import GroupCell, Program
from clustersim.engine.templates import Templates, numbered, patterns
from clustersim.errors import SimulationError

WIDE = 128
"""Ranks from which on levels are long enough for arrays."""


def build(programs: Sequence[Program], members: Mapping[GroupCell, int]) -> StepGraph:
    """Return the graph of one step. members: how many rank cells each group has.

    Raises SimulationError at a deadlock, which names a rank and what it cannot begin.
    """
    return _Instances(Templates(programs, members)).graph(len(programs))


class _Meetings(NamedTuple):
    """The tasks that ranks start together, in the order of their nodes, and who comes to them, one row a rank and task."""

    start: Ints
    """The rows of task i are start[i] to start[i + 1], its ranks in their order."""
    node: Ints
    """By task; -1 where the first rank of the group does not come."""
    size: Ints
    """By task, how many ranks there ought to be."""
    rows: Ints
    """Which arrivals of all passes the rows are."""


class _Instances:
    """All passes of a step as arrays: what references stand for is found in the order in which they depend on each other."""

    def __init__(self, templates: Templates) -> None:
        self.templates, self.microbatch, self.place = templates, narrow(templates.microbatch), narrow(templates.place)
        self.patterns, self.pattern, self.numbers = patterns(templates)
        self.numbered = numbered(templates, self.patterns, self.pattern)
        self.first_task = narrow(self.numbered.task[templates.of_pass])
        """The first task of each pass."""
        count = np.array([len(one.nodes) for one in self.patterns])[self.pattern]
        self.begin = narrow(1 + np.cumsum(count) - count)
        """The first node of each pass."""
        (what, one, other), of_pass = self.rows([list(pattern.references) for pattern in self.patterns], 3)
        self.first = np.searchsorted(of_pass, np.arange(len(self.pattern)))
        """The first reference of each pass."""
        self.found = np.where(what == LOCAL, self.begin[of_pass] + one, -1)
        """The node of each reference."""
        self.arrivals = self.rows([pattern.arrivals for pattern in self.patterns], 6)
        self.arrivals[0][3] += self.first_task[self.arrivals[1]]
        self.meetings = self.met(what == MEETING, one, other, of_pass)
        now, last = what == NOW, what == LAST
        self.found[now] = self.end([pattern.now for pattern in self.patterns], 0)[of_pass[now]]
        for name, stream in self.numbers.streams.items() if last.any() else ():
            rows = np.flatnonzero(last & (one == stream))
            own = [pattern.own.get(name, [0])[-1] for pattern in self.patterns]
            self.found[rows] = self.end(own, -1)[of_pass[rows]]
        self.launched(np.flatnonzero(what == NTH), one, other, of_pass)
        rows = np.flatnonzero(what == BEFORE)
        self.launched(rows, one, self.counted(rows, one, of_pass) - other, of_pass)
        self.sent = self.messages(np.flatnonzero(what == SENT), one, of_pass)

    def rows(self, tables: Sequence[Sequence[tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
        """Return the rows of a table of each pattern, once for each of their passes: columns (width, rows), and passes."""
        start = np.cumsum([0, *map(len, tables)])
        flat = chain.from_iterable(chain.from_iterable(tables))
        columns = np.fromiter(flat, np.int32, width * int(start[-1])).reshape(-1, width).T
        count = np.diff(start)[self.pattern]
        return columns.take(entries(start, self.pattern), axis=1), np.repeat(
            np.arange(len(count), dtype=np.int32), count
        )

    def nodes(self, reference: Ints, of_pass: Ints) -> Ints:
        """Return the nodes that references in passes stand for."""
        found: Ints = self.found[self.first[of_pass] + reference]
        return found

    def end(self, references: Sequence[int], begin: int) -> Ints:
        """Return, by pass, where the passes of its rank before it left off; references: where each pattern does, 0 if nowhere."""
        reference = np.array(references)[self.pattern]
        changed = np.maximum.accumulate(np.where(reference > 0, np.arange(len(reference)), -1))
        last = np.append(-1, changed[:-1])
        found: Ints = np.where(last >= self.templates.first_pass, self.nodes(reference[last], last), begin)
        return found

    def met(self, asked: Mask, one: Ints, other: Ints, references: Ints) -> _Meetings:
        """Find the tasks that ranks start together; asked: which of the references are to them, of which columns follow."""
        (group, call, _, _, local, _), of_pass = self.arrivals
        most = max((len(own) for own in self.templates.groups), default=0)
        numbers = [[self.templates.group_numbers[name] for name in own] for own in self.templates.groups]
        number = np.array([[*own, *[-1] * (most - len(own))] for own in numbers], np.int64).reshape(len(numbers), most)
        calls = [[pattern.calls.get(group, -1) + 1 for group in range(most)] for pattern in self.patterns]
        before = self.templates.before(np.array(calls, np.int64).reshape(len(calls), most)[self.pattern])

        def key(group: Ints, call: Ints, of_pass: Ints) -> Ints:
            found: Ints = number[self.templates.rank_of_pass[of_pass], group] << 32 | before[of_pass, group] + call
            return found

        own = key(group, call, of_pass)
        order = np.argsort(own, kind="stable")
        start = np.flatnonzero(np.diff(own[order], prepend=-1))
        first = order[start]
        node = np.where(local[first] < 0, -1, self.begin[of_pass[first]] + local[first])
        self.found[asked] = node[np.searchsorted(own[first], key(one[asked], other[asked], references[asked]))]
        sizes = np.array([self.templates.members[name] for name in self.templates.group_numbers], np.int64)
        by_node, count = np.argsort(node, kind="stable"), np.diff(np.append(start, len(own)))
        rows = order[entries(np.append(start, len(own)), by_node)]
        start = offsets(count[by_node])
        return _Meetings(start, node[by_node], sizes[own[first] >> 32][by_node], rows)

    def launched(self, rows: Ints, stream: Ints, which: Ints, of_pass: Ints) -> None:
        """Find the n-th tasks of streams, to which some rows of the references are."""
        if not len(rows):
            return
        names = self.numbers.streams
        tables = [[(names[name], one) for name, own in x.own.items() for one in own] for x in self.patterns]
        (streams, own), passes = self.rows(tables, 2)
        key = self.templates.rank_of_pass[passes] * len(names) + streams
        order = np.argsort(key, kind="stable")
        begin = np.searchsorted(key[order], self.templates.rank_of_pass[of_pass[rows]] * len(names) + stream[rows])
        taken = order[begin + which[rows] - 1]
        self.found[rows] = self.nodes(own[taken], passes[taken])

    def counted(self, rows: Ints, stream: Ints, of_pass: Ints) -> Ints:
        """Return, by reference, how many tasks of a stream the rank has launched before the pass, if it is one of `rows`."""
        found = np.zeros(len(stream), np.int64)
        if len(rows):
            own = [[len(one.own.get(name, ())) for name in self.numbers.streams] for one in self.patterns]
            before = self.templates.before(np.array(own, np.int64)[self.pattern])
            found[rows] = before[of_pass[rows], stream[rows]]
        return found

    def messages(self, rows: Ints, message: Ints, of_pass: Ints) -> Ints:
        """Find the messages to which some rows of the references are; return the nodes at whose ends all were asked for."""
        count = int(self.microbatch.max(initial=-1)) + 2  # microbatch -1 is the last column
        (number, node, asked), passes = self.rows([one.sent for one in self.patterns], 3)
        nodes, sent = (np.full((len(self.numbered.stage), count), -1) for _ in range(2))
        number = self.message(number, passes)
        nodes[number, self.microbatch[passes]] = self.nodes(node, passes)
        sent[number, self.microbatch[passes]] = self.nodes(asked, passes)
        self.found[rows] = nodes[self.message(message[rows], of_pass[rows]), self.microbatch[of_pass[rows]]]
        return sent

    def message(self, which: Ints, of_pass: Ints) -> Ints:
        """Return the numbers of messages that are counted from the first of their templates."""
        found: Ints = self.numbered.message[self.numbered.first[self.templates.of_pass[of_pass]] + which]
        return found

    def graph(self, ranks: int) -> StepGraph:
        """Return all nodes, in an order in which every one comes after those before it. Raises SimulationError."""
        (a, b, slot, task, count), of_pass = self.rows([one.nodes for one in self.patterns], 5)
        a, b = self.nodes(a, of_pass), self.nodes(b, of_pass)
        task += self.first_task[of_pass]
        slot += np.where(slot == JOIN, 0, narrow(self.numbered.slot[self.templates.of_pass])[of_pass])
        labels = np.array([task, self.microbatch[of_pass], self.place[of_pass], count])
        self.complete(labels)
        if len(missing := np.flatnonzero((a < 0) | (b < 0))):
            raise self.stuck(*labels[:2, missing[0]].tolist())
        begin = np.array([[0], [0], [JOIN], [-1], [-1], [-1], [0]], np.int32)
        columns = np.concatenate([begin, [a, b, slot, *labels]], axis=1)
        columns = np.concatenate([columns, self.joined(columns)], axis=1)
        order = ordered(columns[0], columns[1], wide=ranks >= WIDE)
        if len(order) < columns.shape[1]:
            left = np.setdiff1d(np.arange(columns.shape[1]), order)
            raise self.stuck(*columns[3:5, left[0]].tolist())
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        a, b = (place[row[order]] for row in columns[:2])
        slot, *told = (row[order] for row in columns[2:])
        return StepGraph(
            (a, b, slot),
            tuple(self.numbered.slots),
            tuple(self.numbered.tasks),
            self.occurrences(place),
            self.waits(place),
            Labels(*told),
            ranks,
        )

    def complete(self, labels: Ints) -> None:
        """Raise SimulationError unless all ranks of a group come to each task that they start together."""
        start, node, size, rows = self.meetings
        short = np.flatnonzero((np.diff(start) < size) | (node < 0))
        if len(short):
            (_, _, _, task, _, _), of_pass = self.arrivals
            row = rows[start[short[0]]]
            raise self.stuck(int(task[row]), int(self.microbatch[of_pass[row]]))

    def joined(self, columns: Ints) -> Ints:
        """Let each task that ranks start together begin when the last of them is there: return the nodes that join them.

        columns: a, b, slot and labels of all other nodes.
        """
        start, node, _, rows = self.meetings
        (_, _, arrived, task, _, count), of_pass = self.arrivals
        arrived = self.nodes(arrived[rows], of_pass[rows])
        columns[2, node] = self.shared_slots(task[rows], start)
        first, length = start[:-1], np.diff(start)
        of, place = np.repeat(np.arange(len(node)), length), np.arange(len(rows)) - np.repeat(first, length)
        known = np.append(
            0, np.cumsum(arrived != arrived[first][of])
        )  # the last one is a predecessor of the task itself
        made = np.flatnonzero((known[1:] > known[first][of]) & (place < length[of] - 1))
        of = of[made]
        turn = np.arange(len(made)) - np.searchsorted(of, of)
        number = columns.shape[1] + np.arange(len(made))
        columns[:2, node] = arrived[first], arrived[start[1:] - 1]
        columns[0, node[of]] = number  # the last of them stays
        a = np.where(turn == 0, arrived[first[of]], number - 1)
        slot = np.full(len(made), JOIN)
        return narrow(
            np.concatenate([[a, arrived[made], slot], columns[3:6, node[of]], [count[rows[first[of]]] + turn]])
        )

    def shared_slots(self, task: Ints, start: Ints) -> Ints:
        """Return the slots of tasks that ranks start together, those of task i being start[i] to start[i + 1] of `task`."""
        slots, size, like = self.numbered.slots, np.diff(start), np.empty(len(start) - 1, np.int64)
        for count in distinct(size).tolist():
            some = np.flatnonzero(size == count)
            first, of = distinct_rows(task[start[some][:, None] + np.arange(count)].astype(np.int64))
            like[some] = some[first[of]]
        new, turn = np.unique(like, return_inverse=True)  # in the order in which they come first
        known = len(slots)
        slots += [tuple(task[start[one] : start[one + 1]].tolist()) for one in new.tolist()]
        found: Ints = known + turn
        return found

    def occurrences(self, place: Ints) -> Occurrences:
        """Return what ranks do at nodes; place: where each node is in the order of the graph."""
        (node, asked, task), of_pass = self.rows([one.occurrences for one in self.patterns], 3)
        own = np.where(asked == BEGIN, -1, place[self.nodes(np.maximum(asked, 0), of_pass)])
        rank, task = self.templates.rank_of_pass[of_pass], task + self.first_task[of_pass]
        passes = self.microbatch[of_pass], self.templates.place[of_pass]
        return Occurrences(*map(narrow, (rank, place[self.nodes(node, of_pass)], own, task, *passes)))

    def waits(self, place: Ints) -> Waits:
        """Return what ranks wait for, as `occurrences` does."""
        (kind, asked, awaited, message), of_pass = self.rows([one.waits for one in self.patterns], 4)
        which = self.microbatch[of_pass]
        stage, sent = np.full(len(kind), -1), np.zeros(len(kind), np.int64)
        of_messages = np.flatnonzero(message >= 0)
        number = self.message(message[of_messages], of_pass[of_messages])
        stage[of_messages], sent[of_messages] = self.numbered.stage[number], self.sent[number, which[of_messages]]
        wanted, over = self.nodes(asked, of_pass), self.nodes(awaited, of_pass)
        rank, kinds = self.templates.rank_of_pass[of_pass], tuple(self.numbers.kinds)
        nodes = place[wanted], place[over], place[sent]
        rank, kind, stage, which, order = map(narrow, (rank, kind, stage, which, self.templates.place[of_pass]))
        return Waits(rank, kind, stage, which, order, *nodes, kinds)

    def stuck(self, task: int, microbatch: int) -> SimulationError:
        """Return the error of a step that cannot end, as a task cannot begin."""
        rank, (part, key), _ = self.numbered.tasks[task]
        what = f"{part} {key}" if key is not None else part
        return SimulationError(f"deadlock: rank cell {rank} cannot begin {what} of microbatch {microbatch}")


def ordered(a: Ints, b: Ints, wide: bool) -> Ints:
    """Return nodes so that each comes after its predecessors, without those on a circle or behind one.

    wide: whether whole levels are gone through at once, unless the loop is compiled; the order is the same.
    """
    after, start = successors(a, b)
    if wide and not paid_off():
        return np.concatenate(list(_by_levels(start, after)))
    found: Ints = _order(start[:-1], start[1:], after, np.full(len(a), 2), np.full(len(a), -1))
    return found[found >= 0]


@Loop
def _order(start: Ints, end: Ints, after: Ints, missing: Ints, order: Ints) -> None:
    order[0], found = 0, 1
    for place in range(len(order)):
        if place == found:
            break
        node = order[place]
        for one in range(start[node], end[node]):
            following = after[one]
            missing[following] -= 1
            if missing[following] == 0:
                order[found] = following
                found += 1


def _by_levels(start: Ints, after: Ints) -> Iterator[Ints]:
    """Yield the nodes of each level; the successors of node i are after[start[i]] to after[start[i + 1]]."""
    missing, last = np.full(len(start) - 1, 2), np.empty(len(start) - 1, np.int64)
    missing[0], level = 0, np.zeros(1, np.int64)
    while len(level):
        yield level
        following = after[entries(start, level)]
        turn = np.arange(len(following))
        np.subtract.at(missing, following, 1)
        last[following] = turn  # a node stands where it is met for the last time
        level = following[(missing[following] == 0) & (last[following] == turn)]
