"""`clustersim export chakra RESULT`: a step as execution traces that ASTRA-sim and other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.commands import CommandGroup
from clustersim.cli.options import Plugins, Quiet
from clustersim.cli.progress import progressing
from clustersim.cli.trace import numbers
from clustersim.errors import InputError

app = CommandGroup(help="Write a result in the format of another tool.")


@app.callback()
def _room() -> None:
    pass


@app.command()
def chakra(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder that `clustersim run` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new or empty folder.", metavar="FOLDER")],
    ranks: Annotated[str, typer.Option(help="all, or numbers such as 0,8-15.", metavar="RANKS")] = "all",
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Write the step of a result as Chakra execution traces: NAME.RANK.et for each rank, and comm_groups.json.

    Kernels between two collectives are one node with the seconds that are forecast for them.
    """
    from clustersim.convert.chakra import GROUPS, encoded
    from clustersim.engine.compile import families_of
    from clustersim.report.chakra import RankTrace, groups
    from clustersim.report.store import write_json
    from clustersim.rerun import RunQuestion
    from clustersim.writing import new_folder, unwritable, write

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is there and not an empty folder; choose a new one")
    with progressing(quiet) as progress:
        found = RunQuestion.of(result).again(progress)
        wanted = numbers(ranks, found.job.mesh.size)
        families = families_of(found.work, found.topology)
        try:
            with new_folder(out) as place:
                for rank in wanted:
                    progress(f"rank {rank}")
                    write(place / f"step.{rank}.et", encoded(RankTrace(found.plan, rank, families).written()))
                write_json(place / GROUPS, groups(families))
        except OSError as error:
            raise unwritable(out, error) from error
    if not quiet:
        typer.echo(f"{len(wanted)} execution traces written to {out}/")
