"""What a trace shows on request beside kernels: the load of the links that limit the critical path, and the power state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from clustersim.engine.compile import Plan
from clustersim.engine.program import COMPUTE, UPDATE, Span
from clustersim.engine.record import Record
from clustersim.engine.traffic import Variant

_NOTHING = 1e-9  # of a link: what sums of rates are off
Call = tuple[Variant, int]


def link_load(record: Record, plan: Plan, link: int) -> list[tuple[float, float]]:
    """Return the load of a link over the step: seconds, and from then on the share of its capacity that moves over it.

    Every transfer counts with its mean rate between its begin and its end.
    """
    weights, changes = _crossing(plan, link), defaultdict[float, float](float)
    for call, start, end, size in dict.fromkeys(_moved(record.spans, weights)):
        rate = size * weights[call] / (end - start)
        changes[start] += rate
        changes[end] -= rate
    times = sorted(changes)
    level = np.cumsum([changes[time] for time in times]) / plan.network.topology.capacity[link]
    return list(zip(times, np.where(level > _NOTHING, level, 0.0).tolist(), strict=True))


def _crossing(plan: Plan, link: int) -> dict[Call, float]:
    """Return the bytes that cross a link for each byte of the collectives of every group cell."""
    found: defaultdict[Call, float] = defaultdict(float)
    for variant in plan.network.traffic:
        of = plan.network.cells.groups[variant[0]].of
        for t in plan.network.phases(variant):
            own = np.flatnonzero(t.link == link)
            for group, weight in zip(t.group[own].tolist(), t.weight[own].tolist(), strict=True):
                found[variant, int(of[group])] += weight
    return dict(found)


def _moved(spans: Iterable[Span], wanted: Mapping[Call, float]) -> Iterator[tuple[Call, float, float, float]]:
    """Yield what moved of some collectives: which, from when to when, and how many bytes; once for each rank cell of a group."""
    for span in spans:
        calls = [call for call in span.activity.carried if call in wanted] if span.activity else []
        if not calls or span.activity is None or span.end <= span.start:
            continue
        if span.stream != COMPUTE:
            yield from ((call, span.start, span.end, span.activity.carried[call]) for call in calls)
            continue
        by_family = {call[0][0]: call for call in calls}
        ends = span.segment_ends or [span.start + end for end in span.activity.ends]
        for i, segment in enumerate(span.activity.segments):
            if segment.flow and segment.flow.family in by_family and ends[2 * i + 1] > ends[2 * i]:
                yield by_family[segment.flow.family], ends[2 * i], ends[2 * i + 1], segment.flow.size


def power_state(spans: Iterable[Span], share: float) -> list[tuple[float, float]]:
    """Return the clock of matrix products over the step: seconds, and from then on its share of that of a short burst.

    share: what power leaves of it while passes run; between them it is 1.
    """
    found: list[tuple[float, float]] = [(0.0, 1.0)]
    passes = sorted((s.start, s.end) for s in spans if s.stream == COMPUTE and s.kind not in UPDATE and s.end > s.start)
    for start, end in passes:
        if found[-1] == (start, 1.0):
            found.pop()  # one pass follows another
        if not found or found[-1][1] != share:
            found.append((start, share))
        found.append((end, 1.0))
    return found
