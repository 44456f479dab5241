"""Spans, ranks and links as polars tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clustersim.engine.compile import Plan
from clustersim.engine.memory import RankMemory
from clustersim.engine.program import Span
from clustersim.engine.record import Record
from clustersim.report.links import link_bytes
from clustersim.topology.model import Topology

if TYPE_CHECKING:
    import polars as pl


def spans_table(record: Record, plan: Plan) -> pl.DataFrame:
    """Return one row a span: rank (the first of its cell), ranks it stands for, stream, kind, stage, microbatch, times in s.

    `asked_s` is when the rank wanted it, `start_s` when it began, `compute_s` how much of it was computation.
    """
    import polars as pl

    first, size = plan.first.tolist(), plan.size.tolist()
    return pl.DataFrame(
        [
            (
                first[s.rank], size[s.rank], s.stream, s.kind, s.stage, s.microbatch, s.asked, s.start, s.end,
                s.activity.compute if s.activity else 0.0,
            )
            for s in _ordered(record)
        ],
        schema={
            "rank": pl.Int64, "ranks": pl.Int64, "stream": pl.String, "kind": pl.String, "stage": pl.Int32,
            "microbatch": pl.Int32, "asked_s": pl.Float64, "start_s": pl.Float64, "end_s": pl.Float64,
            "compute_s": pl.Float64,
        },
        orient="row",
    )  # fmt: skip


def _ordered(record: Record) -> list[Span]:
    return sorted(record.spans, key=lambda s: (s.rank, s.stream, s.start, s.end))


def ranks_table(plan: Plan, parts: list[dict[str, float]], stage_of: list[int]) -> pl.DataFrame:
    """Return one row a rank cell: its first rank, how many ranks it stands for, pipeline rank, and its breakdown in s."""
    import polars as pl

    columns: dict[str, list[float]] = {
        "rank": plan.first.tolist(),
        "ranks": plan.size.tolist(),
        "pipeline_rank": [float(s) for s in stage_of],
    }
    names = dict.fromkeys(name for part in parts for name in part)
    columns |= {f"{name}_s": [part.get(name, 0.0) for part in parts] for name in names}
    return pl.DataFrame(columns).with_columns(pl.col("pipeline_rank").cast(pl.Int64))


def memory_table(memory: list[RankMemory], record: Record, plan: Plan, stage_of: list[int]) -> pl.DataFrame:
    """Return one row a pass of each pipeline rank: when it runs on the first of its ranks, and the bytes held by kind."""
    import polars as pl

    cells = {stage: cell for cell, stage in reversed(list(enumerate(stage_of)))}
    times = _times(record, set(cells.values()))
    rows = [
        (rank, *action, *times.get((cells[rank], *action), (None, None)), *bytes_)
        for rank, one in enumerate(memory)
        for action, *bytes_ in zip(
            one.row,
            *(each.tolist() for each in (one.activations, one.workspace, one.gradients, one.gathered)),
            strict=True,
        )
    ]
    names = (
        "pipeline_rank",
        "stage",
        "kind",
        "microbatch",
        "start_s",
        "end_s",
        "activations_bytes",
        "workspace_bytes",
        "gradients_bytes",
        "gathered_bytes",
    )
    table = pl.DataFrame(rows, schema=names, orient="row")
    rest = pl.DataFrame(
        [
            {"pipeline_rank": rank}
            | {f"{kind}_bytes": getattr(one.rest, kind) for kind in ("parameters", "optimizer", "framework")}
            for rank, one in enumerate(memory)
        ]
    )
    total = pl.sum_horizontal(pl.col("^.*_bytes$")).alias("total_bytes")
    return table.join(rest, on="pipeline_rank", maintain_order="left").with_columns(total)


def _times(record: Record, cells: set[int]) -> dict[tuple[int, int, str, int], tuple[float, float]]:
    """Return when each pass of these rank cells began and ended, by cell, stage, kind and microbatch."""
    found: dict[tuple[int, int, str, int], tuple[float, float]] = {}
    for span in record.spans:
        if span.rank in cells and span.stream == "compute" and span.stage >= 0:
            key = span.rank, span.stage, span.kind, span.microbatch
            begin, end = found.get(key, (span.start, span.end))
            found[key] = min(begin, span.start), max(end, span.end)
    return found


def links_table(plan: Plan, topology: Topology, end: float) -> pl.DataFrame:
    """Return one row a directed link that carried something: name, tier, capacity, bytes, mean utilization over the step."""
    import polars as pl

    crossed = link_bytes(plan)
    used = np.flatnonzero(crossed)
    tiers = np.empty(len(crossed), np.int64)
    for i, tier in enumerate(topology.tiers):
        tiers[tier.first : tier.first + tier.links] = i
    names, starts = [t.name for t in topology.tiers], np.array([t.first for t in topology.tiers] or [0])
    return pl.DataFrame(
        {
            "tier": [names[i] for i in tiers[used].tolist()],
            "index": used - starts[tiers[used]],
            "capacity_bytes_per_s": topology.capacity[used],
            "bytes": crossed[used],
            "utilization": crossed[used] / topology.capacity[used] / end,
        }
    )
