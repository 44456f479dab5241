"""The timeline of a step as text: a row a pipeline rank, a column an equal part of the step, whose steady state is folded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.program import COMPUTE, UPDATE, Span
from clustersim.engine.record import Record
from clustersim.report.folded_time import FoldedTime, folded_time
from clustersim.units import duration

COLUMNS, ROWS = 72, 16
LETTERS = ".FBWo-"
"""What a column shows, whichever is longest there; `LEGEND` says it in words."""
LEGEND = "F forward, B backward, W weight gradients, o update, - communication waited for, . bubble"
_OF = {"F": 1, "B": 2, "I": 2, "W": 3}


def lines(record: Record, stage_of: Sequence[int]) -> list[str]:
    """Return the timeline: the first class of ranks of each pipeline rank, `ROWS` of them at most; stage_of: by rank cell."""
    first = dict(reversed([(stage, cell) for cell, stage in enumerate(stage_of)]))
    stages = sorted(first)
    places = dict.fromkeys(np.linspace(0, len(stages) - 1, min(len(stages), ROWS)).round().astype(int).tolist())
    shown = {first[stages[place]]: stages[place] for place in places}
    spans: dict[int, list[Span]] = {cell: [] for cell in shown}
    for span in record.spans:
        if span.rank in spans:
            spans[span.rank].append(span)
    fold = folded_time(record, len(stages))
    width = (record.end - fold.left_out) / COLUMNS
    count = f", {len(shown)} of {len(stages)} pipeline ranks" if len(shown) < len(stages) else ""
    alike = f"; at | {fold.periods * fold.microbatches:,} microbatches like those before are left out"
    name = max(len(str(stage)) for stage in shown.values())
    rows = sorted(shown.items(), key=lambda one: one[1])
    return [
        f"timeline, a column is {duration(width)}{count}{alike if fold.periods else ''}",
        *(f"  pp {stage:>{name}}  {_row(spans[cell], width, fold)}" for cell, stage in rows),
        f"  {LEGEND}",
    ]


def _row(spans: Sequence[Span], width: float, fold: FoldedTime) -> str:
    spent = np.zeros((len(LETTERS), COLUMNS))
    starts = np.array([span.start for span in spans])
    moved = (starts - fold.folded(starts)).tolist()
    for span, shown, by in zip(spans, fold.shown(starts).tolist(), moved, strict=True):
        kind = _kind(span)
        if kind and width and shown:
            _add(spent[kind], (span.start - by) / width, (span.end - by) / width)
    spent[0] = np.maximum(1.0 - spent[1:].sum(axis=0), 0.0)
    found = "".join(LETTERS[kind] for kind in spent.argmax(axis=0).tolist())
    at = int(fold.cut / width) if fold.periods else COLUMNS
    return f"{found[:at]}{'|' * bool(fold.periods)}{found[at:]}"


def _kind(span: Span) -> int:
    if span.stream == "wait":
        return 5
    if span.stream != COMPUTE:
        return 0
    return 4 if span.kind in UPDATE else _OF.get(span.kind, 0)


def _add(row: Floats, begin: float, end: float) -> None:
    """Add what lies between two times, counted in columns, to the columns."""
    first, last = int(begin), min(int(end), COLUMNS - 1)
    edges = np.clip(np.arange(first, last + 2), begin, end)
    row[first : last + 1] += np.diff(edges)
