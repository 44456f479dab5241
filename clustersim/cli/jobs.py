"""`clustersim jobs TOPOLOGY WORKLOAD WORKLOAD…`: several jobs at once on one cluster."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli import options
from clustersim.files import keeping_inputs


def jobs(
    context: typer.Context,
    topology: options.TopologyFile,
    files: Annotated[
        list[Path],
        options.WORKLOAD,
        {"help": "Workload files or names of shipped ones, one a job, or one file of jobs (jobs.yaml)."},
    ],
    changes: options.RunChanges,
    *,
    placement: Annotated[str | None, "Nodes of the jobs: packed (default), spread, random or random:SEED."] = None,
    steps: Annotated[
        int | None, "Smallest number of steps that each job completes; default 3.", {"min": 1, "max": 10_000}
    ] = None,
    no_fold: options.NoFold = False,
    ignore_memory: options.IgnoreMemory = False,
    out: Annotated[Path | None, "Folder of the result; default results/jobs-TOPOLOGY-FILES-OPTIONS."] = None,
    force: options.Force = False,
    no_save: options.NoSave = False,
    output: Annotated[options.CommandOutput, ("plugins", "as_json", "verbose", "quiet")],
) -> None:
    """Simulate jobs that share a cluster: how much each slows down the others, and on which links."""
    from clustersim.config.overrides import parted
    from clustersim.jobs.request import load
    from clustersim.jobs.simulate import share as play
    from clustersim.report import jobs_output, names
    from clustersim.report.store import check_target, folder_for, question_of
    from clustersim.topology.build import load as load_topology

    command = context.info_name or "jobs"  # or `share`, its former name
    cluster_changes, job_changes = parted(changes)
    if out and not no_save:
        check_target(out)
    target: Path | None = None
    with output.progress() as progress, keeping_inputs() as read:
        progress("load")
        with options.naming("--placement") if placement else nullcontext():
            request = load(files, job_changes, placement, steps)
        progress("build")
        cluster = load_topology(topology, cluster_changes)
        stored = {"overrides": changes, "placement": request.placement, "steps": request.steps}
        stored |= {"fold": not no_fold, "ignore_memory": ignore_memory}
        question = question_of(command, {"topology": topology, **request.inputs}, read, stored)
        if not no_save:
            chosen = {"placement": placement, "steps": steps}
            named = {**changes, **{name: value for name, value in chosen.items() if value is not None}}
            flags = {"unfolded": no_fold, "ignore-memory": ignore_memory}
            parts: list[str | Path] = [command, topology, *dict.fromkeys(files)]
            target = folder_for(question, out, names.default(parts, named, flags), force)
        with options.naming("--placement") if placement else nullcontext():
            result = play(cluster, request, fold=not no_fold, ignore_memory=ignore_memory, progress=progress)
        if target:
            progress("save")
            target = jobs_output.save(target, result.summary, result.shared, question, force)
    lines = partial(jobs_output.lines, result.summary, result.seconds, output.verbose)
    output.show_saved(command, result.summary, lines, target)
