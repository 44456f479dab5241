"""A result as a page for a browser: `clustersim report RESULT`, and `clustersim explore SWEEP`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.options import Plugins, Quiet
from clustersim.cli.progress import progressing

PAGE = "report.html"


def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder of a run, such as one in results/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help=f"Where to write it; default: {PAGE} in that folder.")
    ] = None,
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Write the result of a run as one HTML file: where the step goes, what would change it, timeline, memory, links, kernels.

    The run and each what-if are simulated again from its manifest, with equal numbers. The page makes no requests.
    """
    from clustersim.explain.explanation import explained
    from clustersim.pages.run import run_page
    from clustersim.question import StoredRun
    from clustersim.writing import check_output, save

    stored = StoredRun.of(result)
    target = out or result / PAGE
    if out:
        check_output("--out", out, (".html", ".htm"), [path for path, _ in stored.inputs.values()])
    with progressing(quiet) as progress, stored.holding():
        found = stored.again(progress)
        why = explained(stored.question, progress, found).facts()
        progress("draw")
        text = run_page(found, stored.command, stored.manifest, why)
    save(target, text)
    if not quiet:
        typer.echo(f"written to {target} (open it in a browser)")


SWEEP_PAGE = "report.html"


def explore(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="The folder of a sweep, such as one in results/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help=f"Where to write it; default: {PAGE} in that folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a sweep as one HTML file: Pareto front, heat map, parallel coordinates, filter, and each point with its command.

    Points that do not fit or are illegal are included, with the reason. The page makes no requests.
    """
    from clustersim.pages.sweep import sweep_page
    from clustersim.writing import check_output, save

    target = out or sweep / SWEEP_PAGE
    if out:
        check_output("--out", out, (".html", ".htm"))
    save(target, sweep_page(sweep))
    if not quiet:
        typer.echo(f"written to {target} (open it in a browser)")
