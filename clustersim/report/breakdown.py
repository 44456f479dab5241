"""Where the step's seconds went: for every rank cell, on the mean of all ranks, and on the critical path.

A rank's step is cut without gap or overlap into: compute, the exposed part of each kind of communication (tp, pp, dp, …),
optimizer, and bubble (waiting for another rank's computation). The parts add up to the step time; so do those of the critical
path, which has no bubble: it is what all others wait for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter

from clustersim.engine.program import Span

UPDATE = ("norm", "optimizer")
PART_OF = {"embedding": "dp", "edp": "dp", "etp": "tp", "tp_ep": "ep"}
"""Families that count with another."""
PARTS = ("compute", "tp", "pp", "dp", "ep", "cp", "optimizer", "bubble")


def breakdown(spans: Iterable[Span], ranks: int, end: float) -> list[dict[str, float]]:
    """Return {part: seconds} of every rank cell; `end` is the step time in seconds."""
    rows: list[list[Span]] = [[] for _ in range(ranks)]
    for span in spans:
        rows[span.rank].append(span)
    return [_of_rank(row, end) for row in rows]


def mean(parts: Sequence[dict[str, float]], ranks: Sequence[int]) -> dict[str, float]:
    """Return the mean of {part: seconds} over all ranks, cell i standing for `ranks[i]` of them."""
    names, count = dict.fromkeys(name for part in parts for name in part), sum(ranks)
    return {
        name: math.fsum(part.get(name, 0.0) * size for part, size in zip(parts, ranks, strict=True)) / count
        for name in names
    }


def of_path(path: Iterable[Span]) -> dict[str, float]:
    """Return {part: seconds} of the critical path; a message counts as pp, a collective on its own stream as its kind."""
    parts = {name: 0.0 for name in PARTS if name != "bubble"}
    for span in path:
        if span.stream == "compute":
            _add_run(parts, span)
            continue
        name = "pp" if span.kind == "send" else PART_OF.get(span.stream, span.stream)
        parts[name] = parts.get(name, 0.0) + span.end - span.start
    return parts


def _of_rank(spans: Sequence[Span], end: float) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    posted = _posted(spans)
    for span in spans:
        if span.stream == "compute":
            _add_run(parts, span)
        elif span.stream == "wait" and span.kind in ("receive", "send"):
            parts["pp"] += span.end - span.start
        elif span.stream == "wait":
            _add_drain(parts, span, posted.get(span.kind, []))
    parts["bubble"] = max(end - math.fsum(parts.values()), 0.0)
    return parts


def _add_run(parts: dict[str, float], span: Span) -> None:
    took = span.end - span.start
    if span.kind in UPDATE:
        parts["optimizer"] += took
        return
    kinds = {segment.move.kind for segment in span.activity.segments if segment.move} if span.activity else set()
    work = min(span.activity.compute, took) if kinds and span.activity else took
    parts["compute"] += work
    if len(kinds) <= 1:
        name = next(iter(kinds), "tp")
        parts[name] = parts.get(name, 0.0) + took - work
        return
    for name, share in _shares(span).items():
        parts[name] = parts.get(name, 0.0) + (took - work) * share


def _shares(span: Span) -> dict[str, float]:
    """Divide the communication of one run by the kind of its moves, in proportion to their idle times."""
    idle: dict[str, float] = {}
    for segment in span.activity.segments if span.activity else ():
        if segment.move:
            idle[segment.move.kind] = idle.get(segment.move.kind, 0.0) + segment.move.idle
    total = math.fsum(idle.values()) or 1.0
    return {name: value / total for name, value in idle.items()}


def _posted(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Return the collectives of each stream, in the order in which they ran, one after the other."""
    result: dict[str, list[Span]] = {}
    for span in spans:
        if span.stream not in ("compute", "wait") and span.kind != "send":
            result.setdefault(span.stream, []).append(span)
    return result


def _add_drain(parts: dict[str, float], span: Span, posted: Sequence[Span]) -> None:
    """Count as exposed only the time in which a collective really moved; the rest was waiting for peers."""
    name = PART_OF.get(span.kind, span.kind)
    first = bisect_right(posted, span.start, key=attrgetter("end"))
    during = takewhile(lambda p: p.start < span.end, map(posted.__getitem__, range(first, len(posted))))
    moved = math.fsum(max(min(p.end, span.end) - max(p.start, span.start), 0.0) for p in during)
    parts[name] = parts.get(name, 0.0) + moved
