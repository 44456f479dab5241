"""`clustersim sweep TOPOLOGY WORKLOAD --tp 1,2,4,8 --pp 1,2,4`: try many splits and rank them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.answer import print_json
from clustersim.cli.options import Json, Quiet, Setting, TopologyFile, WorkloadFile, overrides
from clustersim.errors import InputError
from clustersim.units import duration, gibibytes

if TYPE_CHECKING:
    from clustersim.sweep.space import Point

Row = dict[str, Any]
Values = Annotated[str | None, typer.Option(metavar="1,2,4")]
SHOWN = 20


def sweep(
    topology: TopologyFile,
    workload: WorkloadFile,
    tp: Values = None,
    pp: Values = None,
    dp: Values = None,
    ep: Values = None,
    vpp: Values = None,
    micro_batch: Values = None,
    global_batch: Values = None,
    schedule: Annotated[str | None, typer.Option(metavar="1f1b,gpipe")] = None,
    recompute: Annotated[str | None, typer.Option(metavar="none,full")] = None,
    predictor: Annotated[str | None, typer.Option(help="Kernel predictor, such as neusight or roofline.")] = None,
    settings: Setting = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; default: one a core.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; default results/sweep-TOPOLOGY-WORKLOAD.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help=f"Rows to print; default: {SHOWN}, with --json all.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate every legal combination of the given values and rank them by throughput."""
    from clustersim.output.store import check_target

    axes = _axes(locals())
    space = _space(axes, settings, predictor)
    target = out or Path("results") / f"sweep-{topology.stem}-{workload.stem}"
    check_target(target)
    rows = _run(topology, workload, space, workers or _cores(), target, quiet or as_json)
    _print(rows, target, top, as_json, quiet)


def _axes(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    from clustersim.sweep.space import numbers, words

    counts = ("tp", "pp", "dp", "ep", "vpp", "micro_batch", "global_batch")
    axes: dict[str, list[Any]] = {name: list(numbers(name.replace("_", "-"), given[name])) for name in counts}
    axes |= {name: list(words(name, given[name])) for name in ("schedule", "recompute")}
    if not any(axes.values()):
        raise InputError("nothing to sweep; give at least one axis, such as --tp 1,2,4,8")
    return axes


def _space(axes: Mapping[str, list[Any]], settings: list[str] | None, predictor: str | None) -> list[Point]:
    from clustersim.sweep.space import points

    fixed = overrides({"predictor": predictor}, settings)
    space: list[Point] = []
    for point in points(axes):
        for key in point.keys() & fixed.keys():
            raise InputError(f"--set {key} is also an axis of the sweep; give one of the two")
        space.append({**fixed, **point})
    return space


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(topology: Path, workload: Path, space: list[Point], workers: int, target: Path, silent: bool) -> list[Row]:
    from clustersim.sweep.run import run

    def show(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        return _tracked(rows, len(space), silent)

    return run(topology, workload, space, workers, target, show)


def _tracked(rows: Iterator[tuple[int, Row]], count: int, silent: bool) -> Iterator[tuple[int, Row]]:
    """Show a progress bar while standard error is a terminal."""
    if silent or not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(rows, "simulate", total=count, console=Console(stderr=True))


def _print(rows: list[Row], target: Path, top: int | None, as_json: bool, quiet: bool) -> None:
    from clustersim.sweep.table import counts, ranked

    best = ranked(rows)
    if as_json:
        print_json("sweep", {**counts(rows), "rows": best[:top]})
        return
    if quiet:
        return
    if best:
        typer.echo(_table(best[: top or SHOWN]))
    typer.echo(f"{len(best)} of {len(rows)} points simulated; all of them with reasons in {target}/points.parquet")
    for status, count in sorted(Counter(row["status"] for row in rows if row["status"] != "ok").items()):
        reason = next(row["reason"] for row in rows if row["status"] == status)
        typer.echo(f"{count} {status}, such as {reason}")


def _table(rows: list[Row]) -> str:
    head = (
        "",
        "tp",
        "pp",
        "dp",
        "ep",
        "vpp",
        "mbs",
        "m",
        "schedule",
        "step",
        "tokens/s/GPU",
        "MFU",
        "bubble",
        "memory",
    )
    lines = [head, *(_cells(i, row) for i, row in enumerate(rows, 1))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cells(place: int, row: Row) -> tuple[str, ...]:
    split = (str(row[key]) for key in ("tp", "pp", "dp", "ep", "vpp", "micro_batch", "microbatches", "schedule"))
    bubble = row["bubble_s"] / row["step_time_s"]
    return (
        f"{place}.",
        *split,
        duration(row["step_time_s"]),
        f"{row['tokens_per_s_per_gpu']:.1f}",
        f"{row['mfu']:.1%}",
        f"{bubble:.1%}",
        gibibytes(row["peak_memory_bytes"]),
    )
