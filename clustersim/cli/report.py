"""A result as a page for a browser: `clustersim report RESULT`, and `clustersim explore SWEEP`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from clustersim.cli.commands import argument, option, option_group
from clustersim.cli.options import CommandOutput, TextOutput

PAGE = "report.html"
PageFile = Annotated[Path | None, option(f"Where to write it; default: {PAGE} in that folder.", "FILE.html")]


def report(
    result: Annotated[Path, argument("The folder of a run, such as one in results/.", "RESULT")],
    *,
    out: PageFile = None,
    output: TextOutput,
) -> None:
    """Write the result of a run as one HTML file: where the step goes, what would change it, timeline, memory, links, kernels.

    The run and each what-if are simulated again from its manifest, with equal numbers. The page makes no requests.
    """
    from clustersim.explain.explanation import explained
    from clustersim.pages.run import run_page
    from clustersim.question import StoredRun

    stored = StoredRun.of(result)
    target = _page_file(out, result, [path for path, _ in stored.inputs.values()])
    with output.progress() as progress, stored.holding():
        found = stored.again(progress)
        why = explained(stored.question, progress, found).facts()
        progress("draw")
        text = run_page(found, stored.command, stored.manifest, why)
    _save(target, text, output)


def explore(
    sweep: Annotated[Path, argument("The folder of a sweep, such as one in results/.", "SWEEP")],
    *,
    out: PageFile = None,
    output: Annotated[CommandOutput, option_group(CommandOutput, "quiet")],
) -> None:
    """Write a sweep as one HTML file: Pareto front, heat map, parallel coordinates, filter, and each point with its command.

    Points that do not fit or are illegal are included, with the reason. The page makes no requests.
    """
    from clustersim.pages.sweep import sweep_page

    target = _page_file(out, sweep)
    _save(target, sweep_page(sweep), output)


def _page_file(out: Path | None, folder: Path, inputs: Sequence[Path] = ()) -> Path:
    """Return the file of a page: `--out`, or the page in the result's folder. Raises InputError if it cannot be written."""
    if out:
        from clustersim.writing import check_output

        check_output("--out", out, (".html", ".htm"), inputs)
    return out or folder / PAGE


def _save(target: Path, text: str, output: CommandOutput) -> None:
    """Write a page and print where it is."""
    from clustersim.writing import save

    save(target, text)
    output.say(f"written to {target} (open it in a browser)")
