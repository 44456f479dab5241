"""`clustersim schedule NAME`: a pipeline schedule as text."""

from __future__ import annotations

from typing import Annotated

from clustersim.cli.commands import argument, option
from clustersim.cli.options import JsonOutput, naming
from clustersim.errors import InputError

MOST_PASSES = 20_000


def schedule(
    name: Annotated[str, argument("The schedule, such as 1f1b.", "NAME")],
    *,
    pp: Annotated[int, option("Pipeline ranks.", min=1, max=512)] = 4,
    microbatches: Annotated[int, option("Microbatches per step.", min=1, max=4096)] = 8,
    vpp: Annotated[int, option("Model chunks per rank (interleaved).", min=1, max=64)] = 1,
    output: JsonOutput,
) -> None:
    """Draw a pipeline schedule as text: the passes of each rank over time, its bubble, and the activations each rank keeps."""
    from clustersim.schedules.draw import schedule_facts, schedule_text

    size = pp, microbatches, vpp
    check_size(*size)
    with naming("schedule"):
        output.show("schedule", lambda: {"schedule": schedule_facts(name, *size)}, lambda: [schedule_text(name, *size)])


def check_size(stages: int, microbatches: int, chunks: int) -> None:
    """Raise InputError if a schedule has too many passes to draw."""
    if stages * microbatches * chunks > MOST_PASSES:
        raise InputError(
            f"{stages} stages × {microbatches} microbatches × {chunks} chunks are too many to draw; lower one"
        )
