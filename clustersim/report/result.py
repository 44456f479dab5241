"""Writes all files of a run's result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.hardware.formats import product_type
from clustersim.report.names import document
from clustersim.report.step_trace import StepTrace
from clustersim.report.store import SUMMARY, put, write_json, write_manifest, write_table
from clustersim.report.tables import links_table, memory_table, ranks_table, spans_table
from clustersim.report.trace import DrawnRank, cells_that_fit, first_ranks, slice_counts, spans_of_cells
from clustersim.report.trace_events import write_events
from clustersim.writing import saving, write

if TYPE_CHECKING:
    import polars as pl

    from clustersim.arrays import Ints
    from clustersim.config.results import Manifest
    from clustersim.engine.compile import Plan
    from clustersim.engine.launching import Seconds
    from clustersim.engine.memory import RankMemory
    from clustersim.engine.record import Record
    from clustersim.report.parquet import TableColumns


def save(
    target: Path,
    summary: dict[str, Any],
    parts: list[dict[str, float]],
    record: Record,
    memory: list[RankMemory],
    question: Manifest,
    force: bool = False,
    pages: Mapping[str, str] | None = None,
) -> Path:
    """Write manifest.json, summary.json, the tables (spans, ranks, links, memory), trace.json.gz and pages to a folder.

    parts: breakdown of each rank cell. memory: of each pipeline rank. pages: {name: text}, such as `report.html`. Returns the
    folder. An existing one is replaced as by `put`.
    """
    plan, stage_of = record.plan, stages_of(record.plan, summary)
    cells = cells_that_fit(plan, slice_counts([record]), ranks_per_stage(summary))
    spans = spans_of_cells(record.spans, cells)
    tables = {
        "spans": spans_table(record),
        "ranks": ranks_table(plan, parts, stage_of),
        "links": links_table(record),
        "memory": memory_table(memory, record, stage_of),
    }
    trace = StepTrace(record, spans, first_ranks(plan, spans), tables["memory"], stage_of)
    facts = trace_facts(summary, question.question, summary["trace"])
    return put_result(target, question, summary, tables, (facts, trace.events()), force, pages or {})


def put_result(
    target: Path,
    question: Manifest,
    summary: Mapping[str, Any],
    tables: Mapping[str, TableColumns | pl.DataFrame],
    trace: tuple[object, Iterable[str]],
    force: bool,
    pages: Mapping[str, str],
) -> Path:
    """Write manifest.json, summary.json, tables as NAME.parquet, trace.json.gz and pages to a folder, as `put`.

    `trace` are the metadata and the events of the trace. Returns the folder.
    """

    def fill(place: Path) -> None:
        """Write the files to the folder `place`."""
        write_manifest(place, question)
        write_json(place / SUMMARY, document(question.command, summary))
        for name, table in tables.items():
            write_table(place / f"{name}.parquet", table)
        with (place / "trace.json.gz").open("wb") as file:
            write_events(file, *trace)
        for name, text in pages.items():
            write(place / name, text.encode())

    return put(target, question, fill, force)


def detailed_trace(
    summary: dict[str, Any],
    record: Record,
    memory: list[RankMemory],
    ranks: Sequence[int] | None,
    families: Mapping[str, Ints],
    seconds: Sequence[Seconds],
) -> StepTrace:
    """Return the trace of a step with all details. memory: of each pipeline rank.

    `ranks` are drawn; None: one of each class. `families` are the ranks of all groups by family. `seconds` are kernel times by
    node type; if empty, kernels are not drawn.
    """
    plan, stage_of = record.plan, stages_of(record.plan, summary)
    cell_of = plan.network.cells.ranks.of
    cells = dict.fromkeys(range(len(plan.first)) if ranks is None else cell_of[list(ranks)].tolist())
    spans = spans_of_cells(record.spans, sorted(cells))
    drawn = first_ranks(plan, spans) if ranks is None else tuple(DrawnRank(r, int(cell_of[r]), 1) for r in ranks)
    shares = summary["predictor"]["clock_shares"].get(product_type(summary["parallelism"]["precision"]), {})
    held, families = memory_table(memory, record, stage_of), {} if ranks is None else families
    links, clock = _links(summary, plan), shares.get("share", 1.0)
    return StepTrace(record, spans, drawn, held, stage_of, families, seconds, links, clock)


def write_trace(
    path: Path, trace: StepTrace, summary: dict[str, Any], question: str, progress: Callable[[str], None]
) -> int:
    """Write a trace and return its number of events. question: its digest.

    Raises InputError if the path cannot be written, and DiskFullError if the disk is full.
    """
    shown = {"ranks": int(trace.record.plan.size.sum()), "ranks_shown": sum(rank.ranks for rank in trace.drawn)}
    facts = trace_facts(summary, question, {**shown, "kernels_shown": bool(trace.seconds)})
    with saving(path) as file:
        return write_events(file, facts, trace.events(progress))


def _links(summary: dict[str, Any], plan: Plan) -> list[int]:
    """Return the indices of the first link of each row of `by_link` of a summary's critical path: links that limit it."""
    tiers = {tier.name: tier.first for tier in plan.network.topology.tiers}
    names = (row["link"].partition("[") for row in summary["critical_path"]["by_link"] if row["link"])
    return [tiers[tier] + int(number[:-1]) for tier, _, number in names]


def trace_facts(summary: dict[str, Any], question: str | None, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a trace: `name`, `cluster`, `parallelism`, `step_time_s`, `question` (digest) and counts `shown`."""
    selected = {key: summary[key] for key in ("name", "cluster", "parallelism", "step_time_s")}
    return {**document("run", selected), "question": question, **shown}


def ranks_per_stage(summary: dict[str, Any]) -> int:
    """Return the number of ranks of one pipeline rank: tp·cp·dp."""
    split = summary["parallelism"]
    return int(split["tp"]) * int(split["cp"]) * int(split["dp"])


def stages_of(plan: Plan, summary: dict[str, Any]) -> list[int]:
    """Return the pipeline rank of each rank cell, in their order."""
    width = ranks_per_stage(summary)
    return [int(first) // width for first in plan.first]
