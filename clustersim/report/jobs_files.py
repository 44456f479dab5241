"""All files of a result of jobs that share a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.engine.expand_periods import expand_periods
from clustersim.report.document import document
from clustersim.report.jobs_facts import Shared
from clustersim.report.store import SUMMARY, Question, put, write_json, write_manifest, write_table
from clustersim.report.trace import by_cell, slices, streams
from clustersim.report.trace_events import FIRST, said_of, write_events

if TYPE_CHECKING:
    import polars as pl


def save(target: Path, summary: Mapping[str, Any], shared: Shared, asked: Question, force: bool = False) -> Path:
    """Write manifest.json, summary.json, jobs.parquet, steps.parquet, links.parquet and trace.json.gz into a folder.

    Returns it, and replaces what is there as `put` does.
    """

    def fill(place: Path) -> None:
        write_manifest(place, asked.manifest())
        write_json(place / SUMMARY, document(asked.command, summary))
        write_table(place / "jobs.parquet", jobs_table(summary))
        write_table(place / "steps.parquet", steps_table(summary))
        write_table(place / "links.parquet", links_table(shared))
        facts = {job["name"]: job["trace"] for job in summary["jobs"]}
        write_events(place / "trace.json.gz", facts, _events(shared))

    return put(target, asked, fill, force)


def jobs_table(summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return one row a job: name, nodes, GPUs, degrees, its step alone and beside the others, and where both go (in s)."""
    import polars as pl

    return pl.DataFrame([_flat(job) for job in summary["jobs"]])


def _flat(job: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in job.items() if not isinstance(value, dict) and key != "steps"}
    degrees = {key: job["parallelism"][key] for key in ("tp", "pp", "dp", "schedule", "microbatches")}
    known = {"peak_memory_bytes": job["memory"]["peak_bytes"], "predictor": job["predictor"]["name"]}
    places = [
        {f"{part}_{how}_s": seconds for part, seconds in job[f"breakdown_{how}_s"].items()}
        for how in ("alone", "together")
    ]
    return {**flat, **degrees, **known, **places[0], **places[1]}


def steps_table(summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return one row a complete step of a job: when it began and how long it took (s), and whether the means count it."""
    import polars as pl

    return pl.DataFrame(
        [
            {"job": job["name"], "step": number, **step}
            for job in summary["jobs"]
            for number, step in enumerate(job["steps"])
        ]
    )


def links_table(shared: Shared) -> pl.DataFrame:
    """Return one row a directed link and job: tier, index, capacity, mean bytes/s of the job, utilization by it and by all."""
    import polars as pl

    job, link = np.nonzero(shared.rates)
    capacity, total = shared.cluster.capacity[link], shared.rates.sum(axis=0)[link]
    tiers = shared.cluster.tiers
    which = np.searchsorted([tier.first for tier in tiers], link, side="right") - 1
    return pl.DataFrame(
        {
            "tier": [tiers[i].name for i in which.tolist()],
            "index": link - np.array([tier.first for tier in tiers] or [0])[which],
            "job": [shared.jobs[i].name for i in job.tolist()],
            "capacity_bytes_per_s": capacity,
            "bytes_per_s": shared.rates[job, link],
            "utilization": shared.rates[job, link] / capacity,
            "utilization_of_all": total / capacity,
        }
    ).sort("tier", "index", "job")


def _events(shared: Shared) -> Iterator[str]:
    """Yield the trace: one process a job, one track a stream of a rank cell."""
    for number, one in enumerate(shared.jobs, FIRST):
        yield said_of(number, None, "process_name", "name", one.name)
        begun = FIRST
        every = (span for step in one.steps for span in expand_periods(step).spans)
        for cell, row in by_cell(every, one.traced(len(shared.jobs))).items():
            names = ["compute", *sorted({name for span in row for name in streams(span)} - {"compute"})]
            track = {name: begun + i for i, name in enumerate(names)}
            begun += len(names)
            label = f"rank {int(one.plan.first[cell])}"
            for name, tid in track.items():
                yield said_of(number, tid, "thread_name", "name", f"{label} {name}")
            for span in row:
                yield from slices(span, number, track)
