"""A step of a job whose tasks slow each other here and there: all of it goes through a compiled loop of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, entries, offsets
from clustersim.engine.contention import Holders
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import SegmentEnds
from clustersim.engine.tasks import SlotKinds
from clustersim.engine.world import SlotFlows, World, world


class MetPart(NamedTuple):
    """What was done for tasks that met."""

    segment_ends: Mapping[int, list[float]]
    """As in engine.record.Record."""
    events: int
    solves: int


def hybrid(
    capacity: Floats, graph: StepGraph, kinds: SlotKinds, flows: SlotFlows, holders: Holders, seconds: Floats
) -> tuple[Floats, MetPart]:
    """Return when each node ends, and what was done for those that met.

    capacity: bytes/s of each link that can be short. kinds, flows: of its slots. seconds: of each node, as if alone.
    """
    from clustersim.engine.eventloop import EVENTS, SOLVES, play  # numba takes half a second to load

    own = world(capacity, graph, kinds, flows, holders, seconds)
    play(own)
    return own.end, MetPart(_segment_ends(own), int(own.counts[EVENTS]), int(own.counts[SOLVES]))


def _segment_ends(own: World) -> SegmentEnds:
    """Return the ends of half segments of holders that have been awake."""
    some = np.flatnonzero(own.holders["index"] > 0)
    return SegmentEnds(own.node[some], offsets(np.diff(own.half)[some]), own.ends[entries(own.half, some)])
