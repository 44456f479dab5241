"""`clustersim plot RESULT --kind timeline --out fig.svg`: a result as a figure for a paper."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.options import Plugins, Quiet
from clustersim.cli.progress import progressing
from clustersim.errors import InputError, suggest

if TYPE_CHECKING:
    from clustersim.drawing.canvas import Canvas


def plot(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder of a run, for scaling that of a sweep.")],
    kind: Annotated[str, typer.Option(help="timeline, breakdown, memory or roofline of a run, scaling of a sweep.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="An .svg, .png or .pdf file; the last two need matplotlib.")
    ],
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Draw a result as a figure: its timeline, where the step goes, memory, kernels under the roof, or how a sweep scales."""
    from clustersim.drawing.picture import check, write

    drawn = _figure(kind)
    check("--out", out)
    write(out, _of_sweep(result, drawn) if drawn.of == "sweep" else _of_run(result, drawn, quiet))
    if not quiet:
        typer.echo(f"written to {out}")


def _figure(kind: str) -> Any:
    """Return the figure of a kind: a file in `pages/figures/`. Raises InputError when there is none."""
    from clustersim.pages import figures

    known = [module.name for module in iter_modules(figures.__path__)]
    if kind not in known:
        raise InputError(f"--kind {kind}: no such figure; {suggest(kind, known)}")
    return import_module(f"clustersim.pages.figures.{kind}")


def _of_run(folder: Path, drawn: Any, quiet: bool) -> Canvas:
    from clustersim.rerun import RunQuestion

    with progressing(quiet) as progress:
        found: Canvas = drawn.draw(RunQuestion.of(folder).again(progress))
    return found


def _of_sweep(folder: Path, drawn: Any) -> Canvas:
    from clustersim.pages.sweep import sweep_rows

    found: Canvas = drawn.draw([row for _, row in sweep_rows(folder)])
    return found
