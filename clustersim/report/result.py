"""All files of one result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.report.document import document
from clustersim.report.store import MANIFEST, Question, put, write_columns, write_json
from clustersim.report.tables import links_table, memory_table, ranks_table, spans_table
from clustersim.report.trace import write_trace
from clustersim.writing import write

if TYPE_CHECKING:
    from clustersim.engine.compile import Plan
    from clustersim.engine.memory import RankMemory
    from clustersim.engine.record import Record
    from clustersim.topology.model import Topology


def save(
    target: Path,
    summary: dict[str, Any],
    parts: list[dict[str, float]],
    plan: Plan,
    record: Record,
    memory: list[RankMemory],
    topology: Topology,
    asked: Question,
    force: bool = False,
    pages: Mapping[str, str] | None = None,
) -> Path:
    """Write manifest.json, summary.json, the tables (spans, ranks, links, memory), trace.json.gz and pages into a folder.

    pages: text by name, such as `report.html`. Returns the folder, and replaces what is there as `put` does.
    """
    width = ranks_per_stage(summary)
    stage_of = [int(first) // width for first in plan.first]

    def fill(place: Path) -> None:
        write_json(place / MANIFEST, asked.manifest())
        write_json(place / "summary.json", document("run", summary))
        write_columns(place / "spans.parquet", spans_table(record, plan))
        write_columns(place / "ranks.parquet", ranks_table(plan, parts, stage_of))
        write_columns(place / "links.parquet", links_table(plan, topology, record.end))
        write_columns(place / "memory.parquet", memory_table(memory, record, plan, stage_of))
        write_trace(place / "trace.json.gz", record, plan, width)
        for name, text in (pages or {}).items():
            write(place / name, text.encode())

    return put(target, asked, fill, force)


def ranks_per_stage(summary: dict[str, Any]) -> int:
    """Return how many ranks one pipeline rank has: tp·dp."""
    split = summary["parallelism"]
    return int(split["tp"]) * int(split["dp"])
