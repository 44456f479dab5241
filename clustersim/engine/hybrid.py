"""A step of a job whose tasks slow each other here and there: all of it goes through a compiled loop of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, offsets
from clustersim.engine.contention import Holders
from clustersim.engine.fabric import Activity
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import SegmentEnds
from clustersim.engine.world import Sums, world


class MetPart(NamedTuple):
    """What was done for tasks that met."""

    segment_ends: Mapping[int, list[float]]
    """As in engine.record.Record."""
    events: int
    solves: int


def hybrid(
    capacity: Floats, graph: StepGraph, activities: Sequence[Activity], holders: Holders, seconds: Floats
) -> tuple[Floats, MetPart]:
    """Return when each node ends, and what was done for those that met.

    capacity: bytes/s of each link that can be short. activities: of each slot. seconds: of each node, as if alone.
    """
    from clustersim.engine.eventloop import EVENTS, SOLVES, play  # numba takes half a second to load

    own = world(capacity, graph, activities, holders, seconds)
    found = _segment_ends(holders.node, *play(own, Sums.room(len(own.holders), len(own.links), len(own.rows))))
    return own.nodes["end"].copy(), MetPart(found, int(own.counts[EVENTS]), int(own.counts[SOLVES]))


def _segment_ends(nodes: Ints, holder: Ints, half: Ints, time: Floats) -> SegmentEnds:
    """Return the ends of half segments of holders, which are these nodes, in the order in which they were found."""
    count = np.bincount(holder, minlength=len(nodes))
    start = offsets(count)
    ends = np.empty(len(time))
    ends[start[holder] + half] = time
    some = np.flatnonzero(count)
    return SegmentEnds(nodes[some], np.append(start[some], len(time)), ends)
