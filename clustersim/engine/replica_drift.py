"""Parts of a step that nothing joins before its end: replicas of a pipeline, each with a period of its own.

While passes run, a replica waits for its own stages alone. One whose messages cross more switches takes longer for each
microbatch, so that replicas drift apart until the end of the step joins them: a reduction of gradients begins when the last
replica is there. Skipped periods therefore delay each part by its own seconds, and what is joined by those of the latest.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, connected, distinct
from clustersim.engine.contention import Holders, peaks
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import Lateness
from clustersim.engine.tasks import SlotTimes

JOINED, BEGIN = -1, -2
"""In place of a part: of nodes that wait for several; of nodes before all passes, which wait for none."""


def parts(graph: StepGraph, place: Ints, follows: Mask) -> Ints:
    """Return the part of each node; place, follows: as in engine.steady_state.Periods."""
    a, b, _ = graph.arrays
    own = np.flatnonzero((place >= 0) & ~follows)
    rank, before = graph.node_rank, np.concatenate([a[own], b[own]])
    inside = place[before] >= 0
    pairs = np.unique(np.concatenate([rank[own], rank[own]])[inside] * graph.ranks + rank[before[inside]])
    part = connected(graph.ranks, *np.divmod(pairs, graph.ranks))
    found = np.where((place >= 0) | follows, part[rank], BEGIN)
    joined = np.zeros(len(found), bool)
    for before in (a, b):
        joined |= follows & (found[before] != BEGIN) & (found[before] != found)
    for begin, end in pairwise(graph.levels):
        level = slice(begin, end)
        joined[level] |= joined[a[level]] | joined[b[level]]
    return np.where(joined, JOINED, found)


class JoinedTimes(NamedTuple):
    """The times of a step whose parts drifted apart."""

    starts: Floats
    ends: Floats
    """Those of nodes that join parts are times of the step; all others leave skipped periods out."""
    lateness: Lateness
    end: float
    """Of the step."""


class ReplicaDrift:
    """Joins the parts of a graph at the end of a step, where it can be proved that they slow each other at no time."""

    def __init__(self, graph: StepGraph, part: Ints, delayed: Mask, holders: Holders) -> None:
        """part: of each node. delayed: the nodes that come after further periods."""
        self.graph, self.part, self.joining = graph, part, part == JOINED
        self.delayed = delayed & ~self.joining
        self.node, self.slot, self.link, self.share = holders.rows

    @cached_property
    def apart(self) -> bool:
        """Whether parts fit on the links that they share at whatever times each of them comes there."""
        part = self.part[self.node]
        rows, many = np.flatnonzero(part >= 0), len(self.part)
        parts = np.bincount(distinct(self.link[rows] * many + part[rows]) // many)
        rows = rows[parts[self.link[rows]] > 1]
        _, once = np.unique(
            self.link[rows] * many + self.slot[rows], return_index=True
        )  # a task is under way once at a time
        taken = np.bincount(self.link[rows[once]], self.share[rows[once]])
        return bool((taken <= FITS).all())

    def joined(self, starts: Floats, ends: Floats, seconds: Floats, times: SlotTimes) -> JoinedTimes | None:
        """Return the times of a step in which nobody meets until parts are joined; None where they may slow each other.

        starts, ends: of the nodes of the short step. seconds: by which each node's part is delayed. times: of slots.
        """
        if not self.apart:
            return None
        late = np.where(self.delayed, seconds, 0.0)
        took, seen = ends - starts, (ends + late).tolist()
        starts, ends, a, b = starts.copy(), ends.copy(), self.graph.a, self.graph.b
        for node in np.flatnonzero(self.joining).tolist():
            starts[node] = begun = max(seen[a[node]], seen[b[node]])
            ends[node] = seen[node] = begun + took[node]
        if not self._alone(starts + late, ends + np.where(self.part >= 0, seconds, 0.0), times):
            return None
        return JoinedTimes(starts, ends, Lateness(late, self.joining), max(seen))

    def _alone(self, starts: Floats, ends: Floats, times: SlotTimes) -> bool:
        """Return whether what joins parts never meets on a link with what they do.

        starts, ends: in the time of the step; of what comes before the last whole period, the ends of its last copies.
        """
        joining, links = self.joining[self.node], int(self.link.max(initial=-1)) + 1
        begun, over = starts[self.node] + times.before[self.slot], ends[self.node] - times.after[self.slot]
        first, last = np.full(links, np.inf), np.zeros(links)
        np.minimum.at(first, self.link[joining], begun[joining])
        before = ~(joining | self.delayed[self.node])
        np.maximum.at(last, self.link[before], over[before])
        if (first < last).any():
            return False
        some = np.flatnonzero(over > first[self.link])
        return bool((peaks(self.link[some], begun[some], over[some], self.share[some], links) <= FITS).all())
