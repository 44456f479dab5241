"""`clustersim run TOPOLOGY WORKLOAD`: simulate one training step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clustersim.cli.answer import print_json
from clustersim.cli.options import (
    Changes,
    Json,
    Quiet,
    Setting,
    TopologyFile,
    WorkloadFile,
    overrides,
    workload_options,
)

if TYPE_CHECKING:
    from clustersim.pipeline import Progress, Result


@workload_options(lists=False)
def run(
    topology: TopologyFile,
    workload: WorkloadFile,
    changes: Changes,
    settings: Setting = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Simulate every rank, also those that are alike.")] = False,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Go on when the job does not fit.")] = False,
    flops: Annotated[
        Literal["causal", "full"], typer.Option(help="Count causal attention half, or in full.")
    ] = "causal",
    out: Annotated[Path | None, typer.Option(help="Folder of the result; default results/TOPOLOGY-WORKLOAD.")] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Write no files.")] = False,
    timeline: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the timeline.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one training step and say how long it takes, why, and whether it fits."""
    from clustersim.output.store import check_target
    from clustersim.pipeline import simulate

    wanted = overrides(changes, settings)
    target = out or Path("results") / f"{topology.stem}-{workload.stem}"
    if not no_save:
        check_target(target)
    with progressing(quiet or as_json) as progress:
        result = simulate(
            topology,
            workload,
            wanted,
            fold=not no_fold,
            ignore_memory=ignore_memory,
            full_attention=flops == "full",
            progress=progress,
        )
        if not no_save:
            progress("save")
            _save(
                result,
                target,
                {"topology": topology, "workload": workload},
                {"overrides": wanted, "fold": not no_fold},
            )
    if timeline:
        _draw(result, timeline)
    printed("run", result.summary, lambda: _lines(result), None if no_save else target, as_json, quiet)


def _save(result: Result, target: Path, inputs: dict[str, Path], options: dict[str, Any]) -> None:
    from clustersim.output.result import save

    save(
        target,
        result.summary,
        result.parts,
        result.plan,
        result.record,
        result.facts.memory,
        result.topology,
        inputs,
        options,
    )


def _draw(result: Result, path: Path) -> None:
    from clustersim.output.timeline import write

    write(path, result.record, result.plan, f"{result.job.name} on {result.topology.name}")


def printed(
    command: str,
    summary: dict[str, Any],
    text: Callable[[], Iterable[str]],
    target: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the result of a command: its summary as JSON, or its text and where its files lie."""
    from clustersim.output.trace import left_out

    if as_json:
        print_json(command, summary)
    elif not quiet:
        typer.echo("\n".join(text()))
        if target:
            typer.echo(f"written to {target}/ (open trace.json.gz at https://ui.perfetto.dev)")
            typer.echo("".join(f"{line}\n" for line in left_out(summary)), nl=False)


def _lines(result: Result) -> list[str]:
    from clustersim.output.terminal import lines

    return lines(result.summary, result.seconds)


@contextmanager
def progressing(silent: bool) -> Iterator[Progress]:
    """Show the step under way while standard error is a terminal."""
    if silent or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("load", console=Console(stderr=True)) as status:
        yield status.update
