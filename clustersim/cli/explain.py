"""`clustersim explain RESULT`: the causes of a step's time, and changes that would shorten it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.cli.answer import look, print_json
from clustersim.cli.options import Json, MachineOption, Plugins, Quiet, on_machine
from clustersim.cli.progress import progressing

if TYPE_CHECKING:
    pass


def explain(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder that `clustersim run` wrote.")],
    machine: MachineOption = None,
    plugins: Plugins = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say where the critical path of a result goes, which link is its bottleneck, and what would make the step shorter.

    Every what-if is simulated: its step is that of `run` with the flags next to it.
    """
    from clustersim.explain.explanation import explained
    from clustersim.explain.text import lines
    from clustersim.question import StoredRun

    stored = StoredRun.of(result)
    with progressing(quiet or as_json) as progress, stored.holding():
        again, question = stored.again(progress), stored.question
        if machine:
            changed = on_machine(machine, question.parts["topology"], question.overrides)
            question = replace(question, overrides=changed, machine=machine)
        found = explained(question, progress, None if machine else again)
    if as_json:
        print_json("explain", found.facts())
    elif not quiet:
        typer.echo("\n".join(lines(found, look())))
