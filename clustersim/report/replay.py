"""Summary of replayed traces: as plain data, as text, and as a trace for Perfetto."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.convert.chakra import NodeType, TraceSet
from clustersim.engine.record import Record
from clustersim.engine.replay import ReplayTasks
from clustersim.report.breakdown import breakdown, critical_path, mean, of_path
from clustersim.report.links import busiest, path_limits
from clustersim.report.path_shares import path_shares
from clustersim.report.step_trace import StepTrace
from clustersim.report.summary import cluster_facts
from clustersim.report.terminal import Look, counted, folded, link_lines, printable, where_it_goes
from clustersim.report.trace import by_cell, by_class
from clustersim.report.trace_events import write_events
from clustersim.topology.model import Topology
from clustersim.units import duration
from clustersim.writing import saving


def facts(topology: Topology, traces: TraceSet, asked: ReplayTasks, record: Record) -> dict[str, Any]:
    """Return the summary as plain data; keys carry their units."""
    plan = record.plan
    path = critical_path(record)
    limits, limiting = path_limits(path, plan.network)
    shares = path_shares(path, limits, len(traces.nodes))
    return {
        "name": traces.name,
        "cluster": cluster_facts(topology),
        "step_time_s": record.end,
        "breakdown_s": mean(breakdown(record), plan.size.tolist()),
        "critical_path_s": of_path(path),
        "critical_path": {key: shares[key] for key in ("by_stream_s", "by_link")},
        "busiest_links": busiest(topology, _crossed(record), limiting, record.end),
        "traces": {
            "ranks": len(traces.nodes),
            "nodes": sum(map(len, traces.nodes)),
            **dict(sorted(_counts(traces).items())),
        },
        "assumed": asked.notes,
        "simulated": {
            "rank_classes": len(plan.first),
            "player": record.player,
            "events": record.events,
            "maxmin_solves": record.solves,
        },
    }


def _counts(traces: TraceSet) -> Counter[str]:
    """Return {kind of node: number of nodes} of all traces."""
    known = {int(kind): kind.name.lower() for kind in NodeType}
    return Counter(known.get(node.type, "unknown") for nodes in traces.nodes for node in nodes)


def _crossed(record: Record) -> Floats:
    """Return the bytes that cross every link during the step, an array (links,)."""
    sizes = Counter[Any]()
    for task in record.shape.event_task[np.unique(record.leader)].tolist():
        sizes.update(record.tasks.carried(task))
    return record.plan.network.bytes_by_link(dict(sizes))


def lines(summary: dict[str, Any], look: Look) -> list[str]:
    """Return the summary as lines of text."""
    said, cluster = summary["traces"], summary["cluster"]
    head = f"{counted(said['ranks'], 'execution trace')}, {counted(said['nodes'], 'node')}"
    return [
        f"{printable(summary['name'])} on {printable(cluster['name'])}: {head}, {cluster['gpu']}",
        f"  step time  {look.strong(duration(summary['step_time_s']))}",
        "",
        *map(printable, where_it_goes(summary)),
        "",
        *link_lines(summary),
        *(line for note in summary["assumed"] for line in folded(note)),
    ]


def write_trace(path: Path, summary: dict[str, Any], record: Record) -> None:
    """Write the step as a trace for Perfetto, with one rank of each class."""
    spans = by_cell(record.spans, range(len(record.plan.first)))
    trace = StepTrace(record, spans, by_class(record.plan, spans))
    said = {key: summary[key] for key in ("name", "cluster", "step_time_s", "simulated")}
    with saving(path) as file:
        write_events(file, said, trace.events())
