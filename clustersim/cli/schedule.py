"""`clustersim schedule NAME`: a pipeline schedule as text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clustersim.cli.answer import print_json
from clustersim.cli.options import Json, Plugins, naming
from clustersim.errors import InputError

MOST_PASSES = 20_000


def schedule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule, such as 1f1b.")],
    pp: Annotated[int, typer.Option(min=1, max=512, help="Pipeline ranks.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, max=4096, help="Microbatches per step.")] = 8,
    vpp: Annotated[int, typer.Option(min=1, max=64, help="Model chunks per rank (interleaved).")] = 1,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Draw a pipeline schedule as text: the passes of each rank over time, its bubble, and the activations each rank keeps."""
    check_size(pp, microbatches, vpp)
    with naming("schedule"):
        if as_json:
            print_json("schedule", facts(name, pp, microbatches, vpp))
        else:
            typer.echo(text(name, pp, microbatches, vpp))


def check_size(stages: int, microbatches: int, chunks: int) -> None:
    """Raise InputError if a schedule is too large to draw."""
    if stages * microbatches * chunks > MOST_PASSES:
        raise InputError(
            f"{stages} stages × {microbatches} microbatches × {chunks} chunks are too many to draw; lower one"
        )


def text(name: str, stages: int, microbatches: int, chunks: int) -> str:
    """Return the drawing of a schedule. Raises InputError if it cannot be built."""
    from clustersim.schedules.draw import schedule_text

    return schedule_text(name, stages, microbatches, chunks)


def facts(name: str, stages: int, microbatches: int, chunks: int) -> dict[str, Any]:
    """Return the figures of a schedule as JSON data. Raises InputError if it cannot be built."""
    from clustersim.schedules.draw import schedule_facts

    return {"schedule": schedule_facts(name, stages, microbatches, chunks)}
