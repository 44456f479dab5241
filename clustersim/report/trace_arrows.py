"""Arrows of a trace: from a message to the pass that waits for it, and along the ranks of a collective or of passes in lock-step.

Where one rank stands for all that are alike, they join the ranks that stand for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.compile import Plan
from clustersim.engine.program import COMPUTE, GroupCell, Task, computing
from clustersim.engine.record import Record
from clustersim.report.trace import DrawnRank
from clustersim.report.trace_events import arrow_of

Arrow = tuple[str, list[tuple[int, int, float]]]
"""Its kind, and its ends: process, thread, and when the slice there begins, in seconds."""


@dataclass(frozen=True)
class Arrows:
    """Who waits for whom among the ranks that are drawn."""

    record: Record
    plan: Plan
    drawn: Sequence[DrawnRank]
    families: Mapping[str, Ints]
    """Where single ranks are drawn and not one of each kind: the ranks of all groups by family (groups, n)."""
    tracks: Mapping[str, int]
    """The thread of each stream."""

    def events(self) -> Iterator[str]:
        """Yield every arrow."""
        for number, (kind, ends) in enumerate(chain(self._messages(), self._together()), 1):
            yield arrow_of(kind, number, ends)

    @property
    def ends(self) -> Ints:
        """How often arrows begin, end or pass at a rank of each cell, about: those of its messages, and of its collectives."""
        parts, waits = self.record.graph.occurrences, self.record.graph.waits
        together = parts.rank[self.record.tasks.once(_grouped)[parts.task]]
        ranks = self.record.graph.ranks
        return np.bincount(together, minlength=ranks) + 2 * np.bincount(waits.rank[waits.stage >= 0], minlength=ranks)

    @cached_property
    def _of_cell(self) -> dict[int, list[DrawnRank]]:
        """By rank cell, the ranks that are drawn of it."""
        found: dict[int, list[DrawnRank]] = {}
        for one in self.drawn:
            found.setdefault(one.cell, []).append(one)
        return found

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """The process of each rank that is drawn."""
        return {one.rank: one.number for one in self.drawn}

    def _messages(self) -> Iterator[Arrow]:
        """Yield an arrow from each message to the pass that waits for it."""
        record, waits = self.record, self.record.graph.waits
        order, start = record.graph.by_node
        parts, begins, computation = record.graph.occurrences, self._begins(), self.tracks[COMPUTE]
        ready = np.maximum(record.ends[waits.asked], record.ends[waits.awaited])
        for i in np.flatnonzero(waits.stage >= 0).tolist():
            row, receiver = int(order[start[waits.awaited[i]]]), int(waits.rank[i])
            sent, sender = float(record.starts[parts.node[row]]), int(parts.rank[row])
            if receiver not in begins or record.ends[parts.node[row]] <= sent:
                continue
            place = int(np.searchsorted(begins[receiver], ready[i]))
            stream = record.tasks[int(parts.task[row])].stream
            for one, other in self._pairs(sender, receiver, stream) if place < len(begins[receiver]) else ():
                ends = [(one, self.tracks[stream], sent), (other, computation, float(begins[receiver][place]))]
                yield "message", ends

    def _pairs(self, sender: int, receiver: int, stream: str) -> Iterator[tuple[int, int]]:
        """Yield the processes of sender and receiver of a message between rank cells, of all ranks that are drawn."""
        if not self.families:
            if sender in self._of_cell and receiver in self._of_cell:
                yield self._of_cell[sender][0].number, self._of_cell[receiver][0].number
            return
        senders = self._senders(stream)
        for one in self._of_cell.get(receiver, ()):
            for rank in senders.get(one.rank, ()):
                if rank in self._numbers:
                    yield self._numbers[rank], one.number

    def _senders(self, stream: str) -> Mapping[int, Sequence[int]]:
        """Return the ranks that send to each rank on a stream."""
        found = self._known.setdefault(stream, {})
        for sender, receiver in self.families[stream].tolist() if not found else ():
            found.setdefault(receiver, []).append(sender)
        return found

    @cached_property
    def _known(self) -> dict[str, dict[int, list[int]]]:
        return {}

    def _begins(self) -> dict[int, Floats]:
        """Return when the computations of each rank cell begin, ascending."""
        parts, tasks, record = self.record.graph.occurrences, self.record.tasks, self.record
        some = tasks.once(computing)[parts.task] & (record.ends[parts.node] > record.starts[parts.node])
        rank, begun = parts.rank[some], record.starts[parts.node[some]]
        order = np.lexsort((begun, rank))
        cells = np.array(list(self._of_cell))
        first, last = (np.searchsorted(rank[order], cells, side=side) for side in ("left", "right"))
        ends = zip(cells.tolist(), first.tolist(), last.tolist(), strict=True)
        return {cell: begun[order[low:high]] for cell, low, high in ends}

    def _together(self) -> Iterator[Arrow]:
        """Yield arrows along the ranks of each collective, and of passes in lock-step."""
        record = self.record
        order, start = record.graph.by_node
        parts, starts = record.graph.occurrences, record.starts.tolist()
        for node in np.flatnonzero(record.ends > record.starts).tolist():
            rows = order[start[node] : start[node + 1]]
            tasks = [record.tasks[int(task)] for task in parts.task[rows].tolist()]
            group = tasks[0].group if tasks else None
            if group is None:
                continue
            kind = "collective" if len(tasks[0].kind) > 1 else "lock-step"
            for ranks in self._groups(group, parts.rank[rows].tolist()):
                if len(ranks) > 1:
                    ends = [(one, self.tracks[tasks[0].stream], starts[node]) for one in sorted(ranks)]
                    yield kind, ends

    def _groups(self, group: GroupCell, cells: Sequence[int]) -> Iterator[list[int]]:
        """Yield the processes of each group of a cell that are drawn; cells: the rank cells of its first group."""
        if not self.families:
            yield [self._of_cell[cell][0].number for cell in cells if cell in self._of_cell]
            return
        family, own = group
        of = self.plan.network.cells.groups[family].of
        for ranks in self.families[family][np.flatnonzero(of == own)].tolist():
            yield [self._numbers[rank] for rank in ranks if rank in self._numbers]


def _grouped(tasks: Sequence[Task]) -> Mask:
    """Return which tasks several ranks do together."""
    return np.array([task.group is not None for task in tasks], bool)
