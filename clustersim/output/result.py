"""All files of one result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.output.document import document
from clustersim.output.store import folder, manifest, write_json
from clustersim.output.tables import links_table, memory_table, ranks_table, spans_table
from clustersim.output.trace import write_trace

if TYPE_CHECKING:
    from clustersim.engine.memory import Held
    from clustersim.engine.plan import Plan
    from clustersim.engine.simulate import Record
    from clustersim.topology.model import Topology


def save(
    target: Path,
    summary: dict[str, Any],
    parts: list[dict[str, float]],
    plan: Plan,
    record: Record,
    memory: list[Held],
    topology: Topology,
    inputs: dict[str, Path],
    options: dict[str, Any],
) -> None:
    """Write manifest.json, summary.json, the tables (spans, ranks, links, memory) and trace.json.gz into `target`."""
    width = ranks_per_stage(summary)
    stage_of = [int(first) // width for first in plan.first]
    with folder(target) as place:
        write_json(place / "manifest.json", manifest(inputs, options))
        write_json(place / "summary.json", document("run", summary))
        spans_table(record, plan).write_parquet(place / "spans.parquet")
        ranks_table(plan, parts, stage_of).write_parquet(place / "ranks.parquet")
        links_table(plan, topology, record.end).write_parquet(place / "links.parquet")
        memory_table(memory, record, plan, stage_of).write_parquet(place / "memory.parquet")
        write_trace(place / "trace.json.gz", record, plan, width)


def ranks_per_stage(summary: dict[str, Any]) -> int:
    """Return how many ranks one pipeline rank has: tp·dp."""
    split = summary["parallelism"]
    return int(split["tp"]) * int(split["dp"])
