"""Summary of replayed traces: as plain data, as text, and as a trace for Perfetto."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from clustersim.arrays import Floats, distinct
from clustersim.convert.chakra import NodeType, TraceSet
from clustersim.engine.record import Record
from clustersim.engine.replay import ReplayTasks
from clustersim.report.breakdown import breakdown, critical_path, mean_of_ranks, path_parts
from clustersim.report.links import busiest, path_limits
from clustersim.report.path_shares import path_shares
from clustersim.report.step_trace import StepTrace
from clustersim.report.summary import cluster_facts
from clustersim.report.terminal import Look, breakdown_lines, link_lines, printable, wrapped
from clustersim.report.trace import first_ranks, spans_of_cells
from clustersim.report.trace_events import write_events
from clustersim.topology.model import Topology
from clustersim.units import duration, plural
from clustersim.writing import saving


def facts(topology: Topology, traces: TraceSet, tasks: ReplayTasks, record: Record) -> dict[str, Any]:
    """Return the summary of a replayed step. tasks: what was run.

    Keys: `name`, `cluster`, `step_time_s`, `breakdown_s` and `critical_path_s` ({part: s}), `critical_path` (by stream and
    link), `busiest_links`, `traces` (numbers of ranks and nodes), `assumed` (sentences), `simulated`.
    """
    plan = record.plan
    path = critical_path(record)
    limits, limiting = path_limits(path, plan.network)
    shares = path_shares(path, limits, len(traces.nodes))
    known = {int(kind): kind.name.lower() for kind in NodeType}
    counts = Counter(known.get(node.type, "unknown") for nodes in traces.nodes for node in nodes)
    return {
        "name": traces.name,
        "cluster": cluster_facts(topology),
        "step_time_s": record.end,
        "breakdown_s": mean_of_ranks(breakdown(record), plan.size.tolist()),
        "critical_path_s": path_parts(path),
        "critical_path": {key: shares[key] for key in ("by_stream_s", "by_link")},
        "busiest_links": busiest(topology, _crossed(record), limiting, record.end),
        "traces": {
            "ranks": len(traces.nodes),
            "nodes": sum(map(len, traces.nodes)),
            **dict(sorted(counts.items())),
        },
        "assumed": tasks.notes,
        "simulated": {
            "rank_classes": len(plan.first),
            "player": record.player,
            "events": record.events,
            "maxmin_solves": record.solves,
        },
    }


def _crossed(record: Record) -> Floats:
    """Return the bytes that cross every link during the step, an array (links,)."""
    sizes = Counter[Any]()
    for task in record.shape.event_task[distinct(record.leader)].tolist():
        sizes.update(record.tasks.carried(task))
    return record.plan.network.bytes_by_link(dict(sizes))


def lines(summary: dict[str, Any], look: Look) -> list[str]:
    """Return the summary of `facts` as lines of text."""
    counts, cluster = summary["traces"], summary["cluster"]
    head = (
        f"{plural(counts['ranks'], 'execution trace', 'execution traces')}, {plural(counts['nodes'], 'node', 'nodes')}"
    )
    return [
        f"{printable(summary['name'])} on {printable(cluster['name'])}: {head}, {cluster['gpu']}",
        f"  step time  {look.strong(duration(summary['step_time_s']))}",
        "",
        *map(printable, breakdown_lines(summary)),
        "",
        *link_lines(summary),
        *(line for note in summary["assumed"] for line in wrapped(note)),
    ]


def write_trace(path: Path, summary: dict[str, Any], record: Record) -> None:
    """Write the step as a trace for Perfetto, with one rank of each class."""
    spans = spans_of_cells(record.spans, range(len(record.plan.first)))
    trace = StepTrace(record, spans, first_ranks(record.plan, spans))
    metadata = {key: summary[key] for key in ("name", "cluster", "step_time_s", "simulated")}
    with saving(path) as file:
        write_events(file, metadata, trace.events())
