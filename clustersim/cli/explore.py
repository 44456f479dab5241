"""`clustersim explore SWEEP`: a sweep as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.options import Quiet

PAGE = "report.html"


def explore(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="The folder of a sweep, such as one in results/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help=f"Where to write it; default: {PAGE} in that folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a sweep as one HTML file: Pareto front, heat map, parallel coordinates, filter, and each point with its command.

    Points that do not fit or are illegal are in it, with the reason. The page asks no other computer for anything.
    """
    from clustersim.pages.sweep import sweep_page
    from clustersim.writing import check_output, save

    target = out or sweep / PAGE
    if out:
        check_output("--out", out, (".html", ".htm"))
    save(target, sweep_page(sweep))
    if not quiet:
        typer.echo(f"written to {target} (open it in a browser)")
