"""Files and terminal output of `clustersim share`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.config.node_ranges import written
from clustersim.report.jobs import Shared
from clustersim.report.links import tier_of
from clustersim.report.result import put_result
from clustersim.report.table import table
from clustersim.report.terminal import (
    NAMES,
    basis,
    degrees,
    left_out,
    paragraphs,
    simulated,
)
from clustersim.report.trace import numbered_tracks, slices, spans_of_cells
from clustersim.report.trace_events import FIRST, metadata_event
from clustersim.report.verdicts import WORDS
from clustersim.units import duration, gibibytes, plural, scaled, seconds

if TYPE_CHECKING:
    import polars as pl

    from clustersim.config.results import Manifest


def save(target: Path, summary: Mapping[str, Any], shared: Shared, question: Manifest, force: bool = False) -> Path:
    """Write manifest.json, summary.json, jobs.parquet, steps.parquet, links.parquet and trace.json.gz to a folder.

    Returns the folder. An existing one is replaced as by `put`.
    """
    tables = {"jobs": jobs_table(summary), "steps": steps_table(summary), "links": links_table(shared)}
    facts = {job["name"]: job["trace"] for job in summary["jobs"]}
    return put_result(target, question, summary, tables, (facts, _events(shared)), force, {})


def jobs_table(summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return a row per job: `_job` but dicts, degrees, `peak_memory_bytes`, `predictor`, `PART_alone_s`, `PART_together_s`."""
    import polars as pl

    return pl.DataFrame(
        [
            {
                **{key: value for key, value in job.items() if not isinstance(value, dict) and key != "steps"},
                **{key: job["parallelism"][key] for key in ("tp", "pp", "dp", "schedule", "microbatches")},
                "peak_memory_bytes": job["memory"]["peak_bytes"],
                "predictor": job["predictor"]["name"],
                **{f"{part}_alone_s": seconds for part, seconds in job["breakdown_alone_s"].items()},
                **{f"{part}_together_s": seconds for part, seconds in job["breakdown_together_s"].items()},
            }
            for job in summary["jobs"]
        ]
    )


def steps_table(summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return a row per complete step: `job`, `step` (number), start and duration (s), and whether the means count it."""
    import polars as pl

    steps = [(job["name"], number, step) for job in summary["jobs"] for number, step in enumerate(job["steps"])]
    return pl.DataFrame([{"job": job, "step": number, **step} for job, number, step in steps])


def links_table(shared: Shared) -> pl.DataFrame:
    """Return a row per directed link and job: `tier`, `index`, `job`, `capacity_…`, `bytes_per_s`, `utilization`, `…_of_all`."""
    import polars as pl

    job, link = np.nonzero(shared.rates)
    capacity, total = shared.cluster.capacity[link], shared.rates.sum(axis=0)[link]
    tiers, index = tier_of(shared.cluster, link)
    return pl.DataFrame(
        {
            "tier": [shared.cluster.tiers[i].name for i in tiers.tolist()],
            "index": index,
            "job": [shared.jobs[i].name for i in job.tolist()],
            "capacity_bytes_per_s": capacity,
            "bytes_per_s": shared.rates[job, link],
            "utilization": shared.rates[job, link] / capacity,
            "utilization_of_all": total / capacity,
        }
    ).sort("tier", "index", "job")


def _events(shared: Shared) -> Iterator[str]:
    """Yield the events of the trace: one process per job, one track per stream of a rank cell."""
    for number, job in enumerate(shared.jobs, FIRST):
        yield metadata_event(number, None, "process_name", "name", job.name)
        begun = FIRST
        every = (span for step in job.steps for span in step.spans)
        for cell, row in spans_of_cells(every, job.traced(len(shared.jobs))).items():
            track = numbered_tracks(row, begun)
            begun += len(track)
            label = f"rank {int(job.plan.first[cell])}"
            for name, tid in track.items():
                yield metadata_event(number, tid, "thread_name", "name", f"{label} {name}")
            for span in row:
                yield from slices(span, number, track)


RUNS = 3
"""Number of separate ranges of nodes that the table shows per job."""


def lines(summary: dict[str, Any], took: float, verbose: bool = False) -> list[str]:
    """Return the summary as lines of text; with `verbose`, also errors of kernel times. took: wall seconds of the simulation."""
    predictors = [job["predictor"] for job in summary["jobs"]]
    length = f" for {seconds(summary['simulated']['seconds'])}"
    last = [
        f"kernel times by {' and '.join(dict.fromkeys(p['name'] for p in predictors))}",
        *left_out(summary),
    ]
    if verbose:
        last = [simulated(summary, took, length), *basis(summary, predictors)]
    return paragraphs(_head(summary), _times(summary), _exposed(summary), *map(_shared, summary["meetings"]), last)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows under their heads, the first column aligned left, the others right."""
    return table([(f"  {name}", *cells) for name, *cells in (head, *rows)], "<>")


def _head(summary: dict[str, Any]) -> list[str]:
    """Return the lines on the cluster, its warnings, and the nodes, split and memory of each job."""
    cluster, jobs = summary["cluster"], summary["jobs"]
    rows = [
        (
            job["name"],
            written(job["nodes"], RUNS),
            str(job["gpus"]),
            degrees(job["parallelism"]),
            gibibytes(job["memory"]["peak_bytes"])
            + ("" if job["memory"]["fits"] else f", {WORDS[job['memory']['verdict']]}"),
        )
        for job in jobs
    ]
    free = f", {summary['free_nodes']} of {cluster['nodes']} nodes free" if summary["free_nodes"] else ""
    where = f"{cluster['name']}: {cluster['gpus']} × {cluster['gpu']}, placement {summary['placement']}{free}"
    warnings = [f"warning: {warning}" for warning in summary["warnings"]]
    return [
        f"{plural(len(jobs), 'job', 'jobs')} on {where}",
        *warnings,
        *_table(("job", "nodes", "GPUs", "split", "memory"), rows),
    ]


def _times(summary: dict[str, Any]) -> list[str]:
    """Return the table of step times: alone, with the other jobs, and their ratio."""
    rows = [
        (
            job["name"],
            duration(job["step_alone_s"]),
            duration(job["step_together_s"]),
            " to ".join(dict.fromkeys(duration(job[f"step_together_{end}_s"]) for end in ("min", "max"))),
            str(sum(step["counted"] for step in job["steps"])),
            f"{job['slowdown']:.3f}",
        )
        for job in summary["jobs"]
    ]
    head = ("job", "alone", "together", "shortest to longest", "steps", "slowdown")
    return ["step time", *_table(head, rows)]


def _exposed(summary: dict[str, Any]) -> list[str]:
    """Return the table of exposed communication per job, alone and together, with the parts that change by 0.1 % of a step."""
    names = list(dict.fromkeys(name for job in summary["jobs"] for name in _changed(job)))
    rows = []
    for job in summary["jobs"]:
        alone, together = job["breakdown_alone_s"], job["breakdown_together_s"]
        pairs = [(job["exposed_alone_s"], job["exposed_together_s"])]
        pairs += [(alone.get(name, 0.0), together.get(name, 0.0)) for name in names]
        rows.append((job["name"], *(f"{duration(a)} → {duration(b)}" for a, b in pairs)))
    head = ("job", "all", *(NAMES.get(name, name).removesuffix(" communication").split(" (")[0] for name in names))
    return ["exposed communication in a step, alone → together (mean of its ranks)", *_table(head, rows)]


def _changed(job: dict[str, Any]) -> list[str]:
    """Return the names of the parts of a step that change by at least a thousandth of it when jobs run together."""
    alone, together = job["breakdown_alone_s"], job["breakdown_together_s"]
    least = 1e-3 * job["step_alone_s"]
    return [name for name in together if abs(together[name] - alone.get(name, 0.0)) > least]


def _shared(meeting: dict[str, Any]) -> list[str]:
    """Return the table of the links that two jobs share: load by tier, each job's share, and how long both use them."""
    a, b = meeting["jobs"]
    if not meeting["links"]:
        return [f"{a} and {b} share no link"]
    rows = [
        (
            tier["tier"],
            str(tier["links"]),
            tier["busiest"],
            *(f"{scaled(tier['bytes_per_s'][name], 'B/s')} ({100 * tier['share'][name]:.0f} %)" for name in (a, b)),
            f"{100 * tier['utilization']:.1f} %",
            "" if tier["both"] is None else f"{100 * tier['both']:.1f} % of the time",
        )
        for tier in meeting["tiers"]
    ]
    head = ("tier", "links", "the busiest", a, b, "utilization", "both at once")
    return [f"{a} and {b} share {meeting['links']:,} links", *_table(head, rows)]
