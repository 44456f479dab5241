"""A step of a job whose tasks slow each other here and there: all of it goes through a compiled loop of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, entries, offsets
from clustersim.engine.contention import Holders
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import SegmentEnds
from clustersim.engine.slowing import NO_SLOWING, Slowing
from clustersim.engine.tasks import SlotKinds
from clustersim.engine.world import SlotFlows, World, world


class MetPart(NamedTuple):
    """What was done for tasks that met."""

    segment_ends: Mapping[int, list[float]]
    """As in engine.record.Record."""
    events: int
    solves: int
    slowed: Floats | None = None
    """As in engine.record.Record."""


def hybrid(
    capacity: Floats,
    graph: StepGraph,
    kinds: SlotKinds,
    flows: SlotFlows,
    holders: Holders,
    seconds: Floats,
    slowing: Slowing = NO_SLOWING,
) -> tuple[Floats, MetPart]:
    """Return when each node ends, and what was done for those that met.

    capacity: bytes/s of each link that can be short. kinds, flows: of its slots. seconds: of each node, as if alone. slowing:
    what communication takes from computation beside it.
    """
    from clustersim.engine.eventloop import EVENTS, SOLVES, play  # numba takes half a second to load

    own = world(capacity, graph, kinds, flows, holders, seconds, slowing)
    play(own)
    counted = int(own.counts[EVENTS]), int(own.counts[SOLVES])
    return own.end, MetPart(_segment_ends(own), *counted, own.longer if slowing else None)


def _segment_ends(own: World) -> SegmentEnds:
    """Return the ends of half segments of holders that have been awake."""
    some = np.flatnonzero(own.holders["index"] > 0)
    return SegmentEnds(own.node[some], offsets(np.diff(own.half)[some]), own.ends[entries(own.half, some)])
