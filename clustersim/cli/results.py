"""Commands that read a stored result: `explain`, `compare`, `trace`, `rerun`, `report`, `explore` and `plot`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.answer import emphasis
from clustersim.cli.options import CommandOutput, MachineOption, ResultFolder, StandardOutput, TextOutput, on_machine
from clustersim.errors import InputError, suggest
from clustersim.units import seconds
from clustersim.writing import check_output, save

TRACES = (".json", ".json.gz", ".pt.trace.json", ".gz")
"""Suffixes of traces of torch.profiler."""
DETAILED = "trace-detailed.json.gz"
PAGE = "report.html"
PageFile = Annotated[Path | None, f"Where to write it; default: {PAGE} in that folder.", "FILE.html"]


def explain(result: ResultFolder, *, machine: MachineOption = None, output: StandardOutput) -> None:
    """Say where the critical path of a result goes, which link is its bottleneck, and what would make the step shorter.

    Every what-if is simulated: its step is that of `run` with the flags next to it.
    """
    from clustersim.explain.explanation import explained
    from clustersim.explain.text import lines
    from clustersim.question import StoredRun

    stored = StoredRun.of(result)
    with output.progress() as progress, stored.holding():
        step, question = stored.again(progress), stored.question
        if machine:
            changed = on_machine(machine, question.parts["topology"], question.overrides)
            question = replace(question, overrides=changed, machine=machine)
        explanation = explained(question, progress, None if machine else step)
    output.show("explain", explanation.facts, lambda: lines(explanation, emphasis()))


def compare(
    results: Annotated[
        list[Path],
        "Folders that `clustersim run` wrote; or one, and a trace of torch.profiler (.json, .json.gz).",
        "RESULT …",
    ],
    *,
    rank: Annotated[int | None, "Rank of the trace; default: the rank that it names, else 0."] = None,
    output: StandardOutput,
) -> None:
    """Print the differences between the inputs of results and where time goes; or compare a profiler's trace with a result."""
    traces = [path for path in results if path.name.endswith(TRACES) and not path.is_dir()]
    if len(results) < 2:
        raise InputError(f"{results[0]}: a single result cannot be compared; give two or more, or one and a trace")
    if traces and (len(results) > 2 or len(traces) > 1):
        raise InputError(f"{traces[0]}: a trace is compared with one result; give only that and the trace")
    if rank is not None and not traces:
        raise InputError(f"--rank {rank}: is for a trace; give one behind the result")
    if traces:
        from clustersim.explain.gpu_trace import measured
        from clustersim.explain.text import trace_lines
        from clustersim.explain.trace_comparison import comparison
        from clustersim.question import StoredRun

        with output.progress() as progress:
            stored = StoredRun.of(next(path for path in results if path != traces[0]))
            progress("read the trace")
            times = comparison(stored.again(progress), measured(traces[0]), rank)
        output.show("compare", times.facts, lambda: trace_lines(times, emphasis().strong))
        return
    from clustersim.explain.differences import compared
    from clustersim.explain.text import compared as lines

    differences = compared(results)
    output.show("compare", differences.facts, lambda: lines(differences, emphasis().strong))


def trace(
    result: ResultFolder,
    *,
    out: Annotated[Path | None, f"Where to write it; default: {DETAILED} in that folder.", "FILE.json.gz", "-o"] = None,
    ranks: Annotated[str, "kinds: one rank of each kind; all; or a list, such as 0,8-15.", "RANKS"] = "kinds",
    kernels: Annotated[bool, "Draw every kernel inside its pass."] = False,
    output: TextOutput,
) -> None:
    """Write the trace of a result for Perfetto: for the given ranks, with the load of links and the power state.

    Nothing is cut. The trace.json.gz of a result shows one rank of each kind without kernels.
    """
    from clustersim.engine.compile import families_of
    from clustersim.question import StoredRun
    from clustersim.report.result import detailed_trace, write_trace
    from clustersim.report.trace import MAX_EVENTS

    stored, target = StoredRun.of(result), out or result / DETAILED
    check_output("--out", target, (".gz",))
    with output.progress() as progress:
        run = stored.again(progress)
        wanted = None if ranks == "kinds" else rank_numbers(ranks, run.job.mesh.size)
        progress("draw")
        times = run.work.seconds if kernels else ()
        parts = run.summary, run.record, run.facts.memory
        drawn = detailed_trace(*parts, wanted, families_of(run.work, run.topology), times)
        size = drawn.size()
        if size.events > MAX_EVENTS and not output.quiet:
            about = f"about {float(f'{size.events:.2g}'):,.0f} events, {size.packed / 1e6:,.1f} MB packed"
            advice = f"a browser moves {MAX_EVENTS:,} smoothly; --ranks 0,8-15 draws fewer ranks"
            typer.echo(f"{about}: {advice}", err=True)
        events = write_trace(target, drawn, run.summary, stored.manifest.question or "", progress)
    output.say(f"{events:,} events written to {target} (open it at https://ui.perfetto.dev)")


def rank_numbers(text: str, ranks: int) -> list[int]:
    """Return the ranks in `all` or a list such as `0,8-15`, ascending. Raises InputError for ranks beyond the job's `ranks`."""
    if text == "all":
        return list(range(ranks))
    chosen: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--ranks {text}: write kinds, all, or numbers such as 0,8-15")
        low, high = int(first), int(last or first)
        if not low <= high < ranks:
            raise InputError(f"--ranks {text}: the job has the ranks 0 to {ranks - 1}; write some of them")
        chosen |= dict.fromkeys(range(low, high + 1))
    return sorted(chosen)


def rerun(result: ResultFolder, output: StandardOutput) -> None:
    """Simulate a result again from its manifest, and compare the results.

    Files that it was made of and that are gone are taken from the result; the others must be as they were, and what has changed
    is named. The exit code is 1 where another result comes out, as of another version. Nothing is written.
    """
    from clustersim.question import StoredRun
    from clustersim.report.store import read_summary

    with output.progress() as progress:
        run = StoredRun.of(result)
        summary = json.loads(json.dumps(run.again(progress).summary))  # tuples are lists, as in the stored file
    stored = read_summary(result)
    differing = [key for key, value in summary.items() if stored.get(key) != value]
    step, was = summary["step_time_s"], stored.get("step_time_s")
    facts = {"question": run.command, "same": not differing, "step_time_s": step, "differs": differing}
    now = f"a simulated step of {seconds(step)}"
    sentence = f"the same comes out: {now}, and all else in summary.json"
    if differing:
        before = f"{seconds(was)} as {run.manifest.clustersim} had it" if isinstance(was, int | float) else ""
        differ = f"other than in summary.json: {', '.join(differing)}"
        sentence = f"another result comes out: {now}, {before or 'nothing there before'}; {differ}"
    output.show("rerun", lambda: facts, lambda: [run.command, sentence])
    if differing:
        raise typer.Exit(1)


def report(
    result: Annotated[Path, "The folder of a run, such as one in results/.", "RESULT"],
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
    from clustersim.report.store import read_summary

    stored = StoredRun.of(result)

    def draw() -> str:
        with output.progress() as progress, stored.holding():
            step = stored.again(progress)
            if costs := read_summary(result).get("costs"):
                step.summary["costs"] = costs
            why = explained(stored.question, progress, step).facts()
            progress("draw")
            return run_page(step, stored.command, stored.manifest, why)

    _write_page(out, result, [path for path, _ in stored.inputs.values()], draw, output)


def explore(
    sweep: Annotated[Path, "The folder of a sweep, such as one in results/.", "SWEEP"],
    *,
    why: Annotated[bool, "Also say what would make the fastest point faster; each what-if is simulated."] = False,
    out: PageFile = None,
    output: Annotated[CommandOutput, ("quiet",)],
) -> None:
    """Write a sweep as one HTML file: Pareto front, heat map, parallel coordinates, filter, and each point with its command.

    Points that do not fit or are illegal are included, with the reason. The page makes no requests.
    """
    from clustersim.pages.sweep import sweep_page

    with output.progress() as progress:
        _write_page(out, sweep, (), lambda: sweep_page(sweep, why, progress), output)


def _write_page(
    out: Path | None, folder: Path, inputs: Sequence[Path], draw: Callable[[], str], output: CommandOutput
) -> None:
    """Write the page of `draw` to `out`, default: to `folder`. Raises InputError if it cannot, or if `out` is in `inputs`."""
    if out:
        check_output("--out", out, (".html", ".htm"), inputs)
    save(target := out or folder / PAGE, draw())
    output.say(f"written to {target} (open it in a browser)")


def plot(
    result: Annotated[Path, "The folder of a run, for scaling and splits that of a sweep.", "RESULT"],
    *,
    kind: Annotated[str, "timeline, breakdown, memory or roofline of a run, scaling or splits of a sweep."],
    out: Annotated[Path, "An .svg, .png or .pdf file; the last two need matplotlib.", "FILE"],
    output: TextOutput,
) -> None:
    """Draw a result as a figure: its timeline, where the step goes, memory, kernels under the roof, or how a sweep scales."""
    from clustersim.figures import charts
    from clustersim.figures.files import check, write

    if kind not in (known := [*charts.RUN, *charts.SWEEP]):
        raise InputError(f"--kind {kind}: no such figure; {suggest(kind, known)}")
    check("--out", out)
    if kind in charts.SWEEP:
        from clustersim.pages.sweep import sweep_rows

        write(out, charts.SWEEP[kind]([row for _, row in sweep_rows(result)]))
    else:
        from clustersim.question import StoredRun

        with output.progress() as progress:
            run = StoredRun.of(result).again(progress)
        write(out, charts.RUN[kind](run))
    output.say(f"written to {out}")
