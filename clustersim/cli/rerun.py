"""`clustersim rerun RESULT`: simulate a result again from its manifest and compare."""

from __future__ import annotations

import json
from typing import Any

import typer

from clustersim.cli.options import ResultFolder, StandardOutput
from clustersim.units import seconds


def rerun(result: ResultFolder, output: StandardOutput) -> None:
    """Simulate a result again from its manifest, and compare the results.

    Files that it was made of and that are gone are taken from the result; the others must be as they were, and what has changed
    is named. The exit code is 1 where another result comes out, as of another version. Nothing is written.
    """
    from clustersim.question import StoredRun
    from clustersim.report.store import read_summary

    with output.progress() as progress:
        run = StoredRun.of(result)
        found = json.loads(json.dumps(run.again(progress).summary))  # tuples become lists, keys become text
    stored = read_summary(result)
    other = [key for key, value in found.items() if stored.get(key) != value]
    facts = {"question": run.command, "same": not other, "step_time_s": found["step_time_s"], "differs": other}
    output.show("rerun", lambda: facts, lambda: [run.command, _said(found, stored, other, run.manifest.clustersim)])
    if other:
        raise typer.Exit(1)


def _said(found: dict[str, Any], stored: dict[str, Any], other: list[str], version: str) -> str:
    """Return the sentence that compares a repeated result with the stored one."""
    now = seconds(found["step_time_s"])
    if not other:
        return f"the same comes out: {now}, and all else in summary.json"
    was = stored.get("step_time_s")
    before = f"{seconds(was)} as {version} had it" if isinstance(was, int | float) else "nothing there before"
    return f"another result comes out: {now}, {before}; other than in summary.json: {', '.join(other)}"
