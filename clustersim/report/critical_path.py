"""The critical path: the chain of spans, each begun when the one before it ended, that the step time is the sum of.

Every wait ends at the very moment when what it waited for ends, so that the chain is found from the last span backwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from clustersim.engine.program import Span

Test = Callable[[Span], bool]


def critical_path(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the critical path, first to last, without those of waits; `spans` are in order of their ends.

    Of ranks in lock-step, it has the one that computes longest.
    """
    ends = [span.end for span in spans]
    path: list[Span] = []
    place: int | None = len(spans) - 1 if spans else None
    while place is not None:
        if spans[place].stream == "wait":
            place = _last(spans, ends, place, spans[place].end, _awaited(spans[place]))
            continue
        peers = _peers(spans, ends, place)
        path.append(max(peers, key=lambda span: span.activity.compute if span.activity else 0.0))
        place = _last(spans, ends, place, spans[place].start, _cause(peers))
    return path[::-1]


def _cause(peers: Sequence[Span]) -> Test:
    """Return what spans in lock-step waited for: the pass before on the rank that asked last, or what kept their stream busy."""
    ranks, stream = {span.rank for span in peers}, peers[0].stream
    late = next((span.rank for span in peers if span.asked == span.start), None)
    if late is not None:
        return lambda o: o.rank == late and o.stream in ("compute", "wait")
    return lambda o: o.rank in ranks and o.stream == stream


def _awaited(wait: Span) -> Test:
    """Return what ends a wait: the message of that stage and microbatch, or what the rank itself put on a stream."""
    if wait.kind == "receive":
        return lambda o: o.kind == "send" and (o.stage, o.microbatch) == (wait.stage, wait.microbatch)
    if wait.kind == "send":
        return lambda o: o.kind == "send" and o.rank == wait.rank
    return lambda o: o.stream == wait.kind and o.rank == wait.rank


def _peers(spans: Sequence[Span], ends: list[float], place: int) -> list[Span]:
    """Return the span and those in lock-step with it: that began and ended with it, on the same stream."""
    one = spans[place]
    if one.kind == "send":
        return [one]
    alike = (spans[index] for index in range(bisect_left(ends, one.end), bisect_right(ends, one.end)))
    return [o for o in alike if o[1:5] == one[1:5] and o.start == one.start]


def _last(spans: Sequence[Span], ends: list[float], place: int, end: float, test: Test) -> int | None:
    """Return the last place before `place` of a span that ended at `end` and passes the test."""
    first, last = bisect_left(ends, end, 0, place), bisect_right(ends, end, 0, place)
    return next((index for index in range(last - 1, first - 1, -1) if test(spans[index])), None)
