"""`clustersim plot RESULT --kind timeline --out fig.svg`: a figure of a result for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clustersim.cli.commands import argument, option
from clustersim.cli.options import CommandOutput, TextOutput
from clustersim.errors import InputError, suggest

if TYPE_CHECKING:
    from clustersim.simulation import StepResult


def plot(
    result: Annotated[Path, argument("The folder of a run, for scaling and splits that of a sweep.", "RESULT")],
    kind: Annotated[str, option("timeline, breakdown, memory or roofline of a run, scaling or splits of a sweep.")],
    out: Annotated[Path, option("An .svg, .png or .pdf file; the last two need matplotlib.", "FILE")],
    output: TextOutput,
) -> None:
    """Draw a result as a figure: its timeline, where the step goes, memory, kernels under the roof, or how a sweep scales."""
    from clustersim.figures import kinds
    from clustersim.figures.files import check, write
    from clustersim.pages.sweep import sweep_rows

    if kind not in (known := [*kinds.RUN, *kinds.SWEEP]):
        raise InputError(f"--kind {kind}: no such figure; {suggest(kind, known)}")
    check("--out", out)
    if kind in kinds.SWEEP:
        write(out, kinds.SWEEP[kind]([row for _, row in sweep_rows(result)]))
    else:
        write(out, kinds.RUN[kind](_run(result, output)))
    output.say(f"written to {out}")


def _run(folder: Path, output: CommandOutput) -> StepResult:
    """Simulate the run of a result folder again and return its result."""
    from clustersim.question import StoredRun

    with output.progress() as progress:
        return StoredRun.of(folder).again(progress)
