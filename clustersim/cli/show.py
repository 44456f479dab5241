"""`clustersim show`: a cluster in figures, or a schedule as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.options import Json
from clustersim.errors import InputError

MOST_PASSES = 20_000


def show(
    topology: Annotated[Path | None, typer.Argument(help="A topology file.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Draw this schedule instead, such as 1f1b.")] = None,
    stages: Annotated[int, typer.Option(min=1, max=512, help="Pipeline ranks of the schedule.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, max=4096, help="Microbatches of the schedule.")] = 8,
    chunks: Annotated[int, typer.Option(min=1, max=64, help="Model chunks a rank (interleaved).")] = 1,
    as_json: Json = False,
) -> None:
    """Print what a topology file describes (switches, cables, bisection), or draw a pipeline schedule."""
    if schedule and stages * microbatches * chunks > MOST_PASSES:
        raise InputError(
            f"{stages} stages × {microbatches} microbatches × {chunks} chunks are too many to draw; lower one"
        )
    if schedule:
        from clustersim.cli.schedule import schedule_text

        typer.echo(schedule_text(schedule, stages, microbatches, chunks))
    if topology:
        _cluster(topology, as_json)
    if not schedule and not topology:
        raise InputError("nothing to show; give a topology file, or --schedule 1f1b")


def _cluster(path: Path, as_json: bool) -> None:
    from clustersim.topology.build import load
    from clustersim.topology.describe import describe

    topology = load(path)
    if as_json:
        typer.echo(
            json.dumps(
                {"name": topology.name, "kind": topology.kind, "gpu": topology.gpu.name, **topology.counts}, indent=2
            )
        )
        return
    rows = describe(topology)
    width = max(len(label) for label, _ in rows)
    typer.echo("\n".join(f"{label:<{width}}  {value}" for label, value in rows))
