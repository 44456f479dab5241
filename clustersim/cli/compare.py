"""`clustersim compare A B …`: differences between results, or between a result and a trace of PyTorch's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clustersim.cli.answer import look
from clustersim.cli.commands import argument, option
from clustersim.cli.options import CommandOutput, StandardOutput
from clustersim.errors import InputError

TRACES = (".json", ".json.gz", ".pt.trace.json", ".gz")


def compare(
    results: Annotated[
        list[Path],
        argument(
            "Folders that `clustersim run` wrote; or one, and a trace of torch.profiler (.json, .json.gz).", "RESULT …"
        ),
    ],
    *,
    rank: Annotated[int | None, option("Rank of the trace; default: the rank that it names, else 0.")] = None,
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
        folder = next(path for path in results if path != traces[0])
        _compare_with_trace(folder, traces[0], rank, output)
        return
    from clustersim.explain.differences import compared
    from clustersim.explain.text import compared as lines

    found = compared(results)
    output.show("compare", found.facts, lambda: lines(found, look().strong))


def _compare_with_trace(folder: Path, trace: Path, rank: int | None, output: CommandOutput) -> None:
    """Print where the time of a result and of a rank in a profiler's trace goes, next to each other."""
    from clustersim.explain.beside_trace import beside
    from clustersim.explain.gpu_trace import measured
    from clustersim.explain.text import trace_lines
    from clustersim.question import StoredRun

    with output.progress() as progress:
        stored = StoredRun.of(folder)
        progress("read the trace")
        found = beside(stored.again(progress), measured(trace), rank)
    output.show("compare", found.facts, lambda: trace_lines(found, look().strong))
