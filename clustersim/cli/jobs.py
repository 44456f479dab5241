"""`clustersim jobs TOPOLOGY WORKLOAD WORKLOAD…`: several jobs at once on one cluster."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.cli.answer import printed
from clustersim.cli.options import (
    Changes,
    Force,
    IgnoreMemory,
    Json,
    NoFold,
    NoSave,
    Plugins,
    Quiet,
    Setting,
    TopologyFile,
    Verbose,
    completing,
    naming,
    overrides,
    workload_file,
    workload_options,
)
from clustersim.cli.progress import progressing

if TYPE_CHECKING:
    from clustersim.jobs.simulate import JobsResult
    from clustersim.report.store import Question


@workload_options(lists=False, cluster=True)
def jobs(
    context: typer.Context,
    topology: TopologyFile,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="WORKLOAD",
            help="Workload files or names of shipped ones, one a job, or one file of jobs (jobs.yaml).",
            parser=workload_file,
            autocompletion=completing("workloads"),
        ),
    ],
    changes: Changes,
    placement: Annotated[
        str | None, typer.Option(help="Nodes of the jobs: packed (default), spread, random or random:SEED.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Smallest number of steps that each job completes; default 3.")
    ] = None,
    settings: Setting = None,
    no_fold: NoFold = False,
    ignore_memory: IgnoreMemory = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; default results/jobs-TOPOLOGY-FILES-OPTIONS.")
    ] = None,
    force: Force = False,
    no_save: NoSave = False,
    plugins: Plugins = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Simulate jobs that share a cluster: how much each slows down the others, and on which links."""
    from clustersim.config.overrides import parted
    from clustersim.files import keeping_inputs
    from clustersim.jobs.request import load
    from clustersim.jobs.simulate import share as play
    from clustersim.report import names
    from clustersim.report.store import Question, check_target, place
    from clustersim.topology.build import load as load_topology

    command = context.info_name or "jobs"  # or `share`, its former name
    changed = overrides(changes, settings)
    of_cluster, of_jobs = parted(changed)
    if out and not no_save:
        check_target(out)
    target: Path | None = None
    with progressing(quiet or as_json) as progress, keeping_inputs() as read:
        progress("load")
        with naming("--placement") if placement else nullcontext():
            wanted = load(files, of_jobs, placement, steps)
        progress("build")
        cluster = load_topology(topology, of_cluster)
        options = {"overrides": changed, "placement": wanted.placement, "steps": wanted.steps}
        options |= {"fold": not no_fold, "ignore_memory": ignore_memory}
        asked = Question.of(command, {"topology": topology, **wanted.inputs}, read, options)
        if not no_save:
            given = {"placement": placement, "steps": steps}
            named = {**changed, **{name: value for name, value in given.items() if value is not None}}
            flags = {"unfolded": no_fold, "ignore-memory": ignore_memory}
            parts: list[str | Path] = [command, topology, *dict.fromkeys(files)]
            target = place(asked, out, names.default(parts, named, flags), force)
        with naming("--placement") if placement else nullcontext():
            result = play(cluster, wanted, fold=not no_fold, ignore_memory=ignore_memory, progress=progress)
        if target:
            progress("save")
            target = _save(result, target, asked, force)
    printed(command, result.summary, lambda: _lines(result, verbose), target, as_json, quiet)


def _save(result: JobsResult, target: Path, asked: Question, force: bool) -> Path:
    from clustersim.report.jobs_output import save

    return save(target, result.summary, result.shared, asked, force)


def _lines(result: JobsResult, verbose: bool) -> list[str]:
    from clustersim.report.jobs_output import lines

    return lines(result.summary, result.seconds, verbose)
