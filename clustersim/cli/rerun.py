"""`clustersim rerun RESULT`: simulate a result again from its manifest and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clustersim.cli.answer import print_json, read_back
from clustersim.cli.options import Json, Plugins, Quiet
from clustersim.cli.progress import progressing
from clustersim.units import seconds


def rerun(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder that `clustersim run` wrote.")],
    plugins: Plugins = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a result again from its manifest, and compare the results.

    Files that it was made of and that are gone are taken from the result; the others must be as they were, and what has changed
    is named. The exit code is 1 where another result comes out, as of another version. Nothing is written.
    """
    from clustersim.question import StoredRun
    from clustersim.report.store import read_summary

    with progressing(quiet or as_json) as progress:
        run = StoredRun.of(result)
        found = read_back(run.again(progress).summary)
    stored = read_summary(result)
    other = [key for key, value in found.items() if stored.get(key) != value]
    facts = {"question": run.command, "same": not other, "step_time_s": found["step_time_s"], "differs": other}
    if as_json:
        print_json("rerun", facts)
    elif not quiet:
        typer.echo(f"{run.command}\n{_said(found, stored, other, run.manifest.clustersim)}")
    if other:
        raise typer.Exit(1)


def _said(found: dict[str, Any], stored: dict[str, Any], other: list[str], version: str) -> str:
    now = seconds(found["step_time_s"])
    if not other:
        return f"the same comes out: {now}, and all else in summary.json"
    was = stored.get("step_time_s")
    before = f"{seconds(was)} as {version} had it" if isinstance(was, int | float) else "nothing there before"
    return f"another result comes out: {now}, {before}; other than in summary.json: {', '.join(other)}"
