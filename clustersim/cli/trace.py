"""`clustersim trace RESULT`: the trace of a result with all ranks, every kernel, and the load of links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.cli.commands import option
from clustersim.cli.options import ResultFolder, TextOutput
from clustersim.errors import InputError

if TYPE_CHECKING:
    from clustersim.report.step_trace import TraceSize


NAME = "trace-detailed.json.gz"


def trace(
    result: ResultFolder,
    *,
    out: Annotated[
        Path | None, option(f"Where to write it; default: {NAME} in that folder.", "FILE.json.gz", flags="-o")
    ] = None,
    ranks: Annotated[str, option("kinds: one rank of each kind; all; or a list, such as 0,8-15.", "RANKS")] = "kinds",
    kernels: Annotated[bool, option("Draw every kernel inside its pass.")] = False,
    output: TextOutput,
) -> None:
    """Write the trace of a result for Perfetto: for the given ranks, with the load of links and the power state.

    Nothing is cut. The trace.json.gz of a result shows one rank of each kind without kernels.
    """
    from clustersim.engine.compile import families_of
    from clustersim.question import StoredRun
    from clustersim.report.result import detailed_trace, write_trace
    from clustersim.writing import check_output

    stored, target = StoredRun.of(result), out or result / NAME
    check_output("--out", target, (".gz",))
    with output.progress() as progress:
        found = stored.again(progress)
        wanted = None if ranks == "kinds" else numbers(ranks, found.job.mesh.size)
        progress("draw")
        seconds = found.work.seconds if kernels else ()
        parts = found.summary, found.plan, found.record, found.facts.memory
        drawn = detailed_trace(*parts, wanted, families_of(found.work, found.topology), seconds)
        if not output.quiet and (large := _large(drawn.size())):
            typer.echo(large, err=True)
        events = write_trace(target, drawn, found.summary, stored.manifest.question or "", progress)
    output.say(f"{events:,} events written to {target} (open it at https://ui.perfetto.dev)")


def _large(size: TraceSize) -> str:
    """Return the warning for a trace too large for smooth scrolling in a browser."""
    from clustersim.report.trace import MAX_EVENTS

    if size.events <= MAX_EVENTS:
        return ""
    about = f"about {float(f'{size.events:.2g}'):,.0f} events, {size.packed / 1e6:,.1f} MB packed"
    return f"{about}: a browser moves {MAX_EVENTS:,} smoothly; --ranks 0,8-15 draws fewer ranks"


def numbers(text: str, ranks: int) -> list[int]:
    """Return the ranks in `all` or a list such as `0,8-15`. Raises InputError for ranks that the job does not have."""
    if text == "all":
        return list(range(ranks))
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--ranks {text}: write kinds, all, or numbers such as 0,8-15")
        low, high = int(first), int(last or first)
        if not low <= high < ranks:
            raise InputError(f"--ranks {text}: the job has the ranks 0 to {ranks - 1}; write some of them")
        found |= dict.fromkeys(range(low, high + 1))
    return sorted(found)
