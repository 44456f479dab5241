"""A step of a job whose tasks slow each other here and there: all of it goes through a compiled loop of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, offsets
from clustersim.engine.contention import Holders
from clustersim.engine.fabric import Activity
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import SegmentEnds
from clustersim.engine.world import World, world


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
    play(own)
    return own.nodes["end"].copy(), MetPart(_segment_ends(own), int(own.counts[EVENTS]), int(own.counts[SOLVES]))


def _segment_ends(own: World) -> SegmentEnds:
    """Return the ends of half segments of holders that have been awake."""
    holders = own.holders
    some = np.flatnonzero(holders["index"] > 0)
    count = 2 * (holders["segment_end"] - holders["segment"])[some]
    start = offsets(count)
    places = np.repeat(holders["half"][some] - start[:-1], count) + np.arange(start[-1])
    return SegmentEnds(holders["node"][some], start, own.ends[places])
