"""`clustersim share TOPOLOGY WORKLOAD WORKLOAD…`: several jobs at once on one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.options import (
    Changes,
    Json,
    Quiet,
    Setting,
    TopologyFile,
    completing,
    overrides,
    workload_file,
    workload_options,
)
from clustersim.cli.run import printed, progressing

if TYPE_CHECKING:
    from clustersim.share.play import Result


@workload_options(lists=False)
def share(
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
        str | None, typer.Option(help="Which nodes jobs get: packed (default), spread, random or random:SEED.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Steps that each job completes at least; default 3.")
    ] = None,
    settings: Setting = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Simulate every rank, also those that are alike.")] = False,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Go on when a job does not fit.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; default results/share-TOPOLOGY-FILES.")
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Write no files.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate jobs that share a cluster: how much slower each gets beside the others, and on which links they meet."""
    from clustersim.output.store import check_target
    from clustersim.share.play import simulate

    wanted = overrides(changes, settings)
    target = out or Path("results") / "-".join(["share", topology.stem, *dict.fromkeys(file.stem for file in files)])
    if not no_save:
        check_target(target)
    with progressing(quiet or as_json) as progress:
        result = simulate(
            topology,
            files,
            wanted,
            placement=placement,
            steps=steps,
            fold=not no_fold,
            ignore_memory=ignore_memory,
            progress=progress,
        )
        if not no_save:
            progress("save")
            _save(result, target, topology, {"overrides": wanted, "fold": not no_fold})
    printed("share", result.summary, lambda: _lines(result), None if no_save else target, as_json, quiet)


def _save(result: Result, target: Path, topology: Path, options: dict[str, Any]) -> None:
    from clustersim.output.shared_files import save

    given = {"placement": result.shared.placement, "steps": result.shared.steps, **options}
    save(target, result.summary, result.shared, {"topology": topology, **result.inputs}, given)


def _lines(result: Result) -> list[str]:
    from clustersim.output.shared_terminal import lines

    return lines(result.summary, result.seconds)
