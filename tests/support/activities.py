"""Activities made of segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from clustersim.engine.fabric import Activity, Segment, SegmentTimes
from clustersim.model.operator import Collective


def activity_of(
    segments: Iterable[Segment], calls: Mapping[Collective, float] | None = None, memory: float = 0.0
) -> Activity:
    """Return the activity of segments; memory: as in SegmentTimes."""
    own = list(segments)
    flows = tuple(s.flow for s in own if s.flow is not None)
    places = accumulate([s.flow is not None for s in own])
    order = [-1 if s.flow is None else place - 1 for s, place in zip(own, places, strict=True)]
    return Activity(SegmentTimes([(s.compute, *s[2:]) for s in own], flows, order, memory), flows, calls or {})
