"""Spans, ranks, links and memory as tables: {column name: values}."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.compile import Plan
from clustersim.engine.memory import RankMemory
from clustersim.engine.record import Record
from clustersim.report.links import link_bytes, tier_of
from clustersim.report.parquet import TableColumns, Texts


def spans_table(record: Record) -> TableColumns:
    """Return a row per span: `rank` (first of its cell), `ranks`, `stream`, `kind`, `stage`, `microbatch`, and times in s.

    `asked_s` is when the rank requested it, `start_s` to `end_s` when it ran, `compute_s` the seconds of computation in it.
    """
    spans = sorted(record.spans, key=lambda s: (s.rank, s.stream, s.start, s.end))
    plan, cell = record.plan, np.array([s.rank for s in spans], np.int64)
    return {
        "rank": plan.first[cell],
        "ranks": plan.size[cell],
        "stream": Texts.of(s.stream for s in spans),
        "kind": Texts.of(s.kind for s in spans),
        "stage": np.array([s.stage for s in spans], np.int32),
        "microbatch": np.array([s.microbatch for s in spans], np.int32),
        "asked_s": _floats(s.requested for s in spans),
        "start_s": _floats(s.start for s in spans),
        "end_s": _floats(s.end for s in spans),
        "compute_s": _floats(s.activity.timing.compute if s.activity else 0.0 for s in spans),
    }


def _floats(values: Iterable[float]) -> Floats:
    """Return numbers as a column."""
    return np.fromiter(values, float)


def ranks_table(plan: Plan, parts: list[dict[str, float]], stage_of: list[int]) -> TableColumns:
    """Return a row per rank cell: `rank` (the first), `ranks` (number), `pipeline_rank` (`stage_of`), `PART_s` of its parts."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        "rank": plan.first,
        "ranks": plan.size,
        "pipeline_rank": np.array(stage_of, np.int64),
        **{f"{name}_s": _floats(part.get(name, 0.0) for part in parts) for name in names},
    }


def memory_table(memory: list[RankMemory], record: Record, stage_of: list[int]) -> TableColumns:
    """Return a row per pass: `pipeline_rank`, `stage`, `kind`, `microbatch`, `KIND_bytes`, `total_bytes`, `start_s`, `end_s`.

    The times are those of the first rank cell of the pipeline rank; NaN for a pass that it does not run.
    """
    cells = {stage: cell for cell, stage in reversed(list(enumerate(stage_of)))}
    known = _times(record, set(cells.values()))
    passes = [(rank, action) for rank, each in enumerate(memory) for action in each.row]
    times = [known.get((cells[rank], *action), (np.nan, np.nan)) for rank, action in passes]
    count = [len(each.row) for each in memory]
    held = {
        **{f"{kind}_bytes": np.concatenate([getattr(each, kind) for each in memory]) for kind in _BY_PASS},
        **{f"{kind}_bytes": np.repeat([getattr(each.rest, kind) for each in memory], count) for kind in _THROUGHOUT},
    }
    return {
        "pipeline_rank": np.array([rank for rank, _ in passes], np.int64),
        "stage": np.array([action.stage for _, action in passes], np.int64),
        "kind": Texts.of(action.letter for _, action in passes),
        "microbatch": np.array([action.microbatch for _, action in passes], np.int64),
        "start_s": _floats(start for start, _ in times),
        "end_s": _floats(end for _, end in times),
        **held,
        "total_bytes": sum(held.values(), np.zeros(len(passes))),
    }


_BY_PASS = ("activations", "workspace", "gradients", "gathered")
_THROUGHOUT = ("parameters", "optimizer", "framework", "buffers")


def _times(record: Record, cells: set[int]) -> dict[tuple[int, int, str, int], tuple[float, float]]:
    """Return {(cell, stage, kind, microbatch): (start, end)} of the passes of these rank cells."""
    times: dict[tuple[int, int, str, int], tuple[float, float]] = {}
    for span in record.spans:
        if span.rank in cells and span.stream == "compute" and span.stage >= 0:
            key = span.rank, span.stage, span.kind, span.microbatch
            begin, end = times.get(key, (span.start, span.end))
            times[key] = min(begin, span.start), max(end, span.end)
    return times


def links_table(record: Record) -> TableColumns:
    """Return a row per directed link with traffic: `tier`, `index` in it, `capacity_bytes_per_s`, `bytes`, `utilization`."""
    topology, crossed = record.plan.network.topology, link_bytes(record.plan)
    used = np.flatnonzero(crossed)
    tiers, index = tier_of(topology, used)
    return {
        "tier": Texts([tier.name for tier in topology.tiers], tiers),
        "index": index,
        "capacity_bytes_per_s": topology.capacity[used],
        "bytes": crossed[used],
        "utilization": crossed[used] / topology.capacity[used] / record.end,
    }
