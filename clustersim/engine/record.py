"""What a step leaves behind: when every node of its graph began and ended, by whichever player, and the spans of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.graph import JOIN, Graph
from clustersim.engine.program import Span, Task


@dataclass(frozen=True)
class Record:
    """One step of a job, in seconds of the simulation."""

    graph: Graph
    tasks: Sequence[Task]
    """The tasks of the graph in the programs that were played."""
    starts: Floats
    """When each node began: when what it needs was over."""
    ends: Floats
    marks: Mapping[int, list[float]]
    """The ends of the half segments of nodes that shared a link with others; those not in it ran as if alone."""
    begin: float
    end: float
    events: int = 0
    """SimPy events that the whole simulation processed."""
    solves: int = 0
    """Max-min problems that it solved."""
    player: str = "simpy"

    @cached_property
    def spans(self) -> list[Span]:
        """What every rank cell did and waited for, in the order in which it ended; waits of no length are left out."""
        spans = [*self._done(), *self._waited()]
        spans.sort(key=lambda span: span.end)
        return spans

    def _done(self) -> list[Span]:
        parts, graph = self.graph.parts, self.graph
        asked = np.where(parts.asked < 0, self.starts[parts.node], self.ends[parts.asked])
        rows = (
            parts.rank,
            parts.node,
            parts.task,
            parts.microbatch,
            asked,
            self.starts[parts.node],
            self.ends[parts.node],
        )
        found = []
        for rank, node, number, microbatch, wanted, start, end in zip(*(row.tolist() for row in rows), strict=True):
            task = self.tasks[number]
            assert graph.slot[node] != JOIN
            found.append(
                Span(
                    rank,
                    task.stream,
                    task.kind,
                    task.stage,
                    microbatch if task.stream == "compute" or task.gives else -1,
                    wanted,
                    start,
                    end,
                    task.activity,
                    self.marks.get(node),
                )
            )
        return found

    def _waited(self) -> list[Span]:
        waits = self.graph.waits
        asked, end = self.ends[waits.asked], self.ends[waits.awaited]
        start = np.where(waits.stage >= 0, np.maximum(asked, self.ends[waits.sent]), asked)
        long = np.flatnonzero(end > asked)
        rows = (waits.rank, waits.stage, waits.microbatch, asked, np.minimum(start, end), end)
        columns = zip(long.tolist(), *(row[long].tolist() for row in rows), strict=True)
        return [
            Span(rank, "wait", waits.kind[i], stage, microbatch, wanted, begun, over, None, None)
            for i, rank, stage, microbatch, wanted, begun, over in columns
        ]
