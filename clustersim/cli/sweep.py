"""`clustersim sweep TOPOLOGY WORKLOAD --tp 1,2,4,8 --pp 1,2,4`: try many splits and rank them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.options import Json, Quiet, Setting, TopologyFile, WorkloadFile, overrides
from clustersim.errors import InputError
from clustersim.units import gibibytes, seconds

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
    vpp: Values = None,
    micro_batch: Values = None,
    global_batch: Values = None,
    schedule: Annotated[str | None, typer.Option(metavar="1f1b,gpipe")] = None,
    recompute: Annotated[str | None, typer.Option(metavar="none,full")] = None,
    settings: Setting = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; default: one a core.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; default results/sweep-TOPOLOGY-WORKLOAD.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = SHOWN,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate every legal combination of the given values and rank them by throughput."""
    from clustersim.sweep.space import numbers, points, words

    counts = {"tp": tp, "pp": pp, "dp": dp, "vpp": vpp, "micro_batch": micro_batch, "global_batch": global_batch}
    axes: dict[str, list[Any]] = {name: list(numbers(name.replace("_", "-"), text)) for name, text in counts.items()}
    axes |= {"schedule": words(schedule), "recompute": words(recompute)}
    fixed = overrides({}, settings)
    space: list[Point] = [{**fixed, **point} for point in points(axes)]
    _check(topology, workload, axes)
    target = out or Path("results") / f"sweep-{topology.stem}-{workload.stem}"
    rows = _run(topology, workload, space, workers or os.cpu_count() or 1, target, quiet or as_json)
    _print(rows, target, top, as_json, quiet)


def _check(topology: Path, workload: Path, axes: dict[str, list[Any]]) -> None:
    """Fail early on what would make every point fail."""
    from clustersim.sweep.evaluate import cluster
    from clustersim.workload.load import load

    if not any(axes.values()):
        raise InputError("nothing to sweep; give at least one axis, such as --tp 1,2,4,8")
    cluster(str(topology))
    load(workload)


def _run(topology: Path, workload: Path, space: list[Point], workers: int, target: Path, silent: bool) -> list[Row]:
    from clustersim.output.store import folder, manifest, write_json
    from clustersim.sweep.runner import rows as simulate
    from clustersim.sweep.table import append, frame

    found: dict[int, Row] = {}
    inputs = {"topology": topology, "workload": workload}
    with folder(target) as place:
        for index, row in _tracked(simulate(str(topology), str(workload), space, workers), len(space), silent):
            found[index] = row
            append(place / "points.jsonl", row)
        ordered = [found[index] for index in sorted(found)]
        write_json(place / "manifest.json", manifest(inputs, {"points": space}))
        frame(ordered).write_parquet(place / "points.parquet")
    return ordered


def _tracked(rows: Iterable[tuple[int, Row]], count: int, silent: bool) -> Iterator[tuple[int, Row]]:
    """Show a progress bar while standard error is a terminal."""
    if silent or not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(rows, "simulate", total=count, console=Console(stderr=True))


def _print(rows: list[Row], target: Path, top: int, as_json: bool, quiet: bool) -> None:
    from clustersim.sweep.table import ranked

    best = ranked(rows)
    if as_json:
        rest = [row for row in rows if row["status"] != "ok"]
        typer.echo(json.dumps([*best, *rest], indent=2))
        return
    if quiet:
        return
    typer.echo(_table(best[:top]))
    skipped = Counter(row["status"] for row in rows if row["status"] != "ok")
    also = "".join(f", {count} {status}" for status, count in sorted(skipped.items()))
    typer.echo(
        f"{len(best)} of {len(rows)} points simulated{also}; all of them with reasons in {target}/points.parquet"
    )


def _table(rows: list[Row]) -> str:
    head = ("", "tp", "pp", "dp", "vpp", "mbs", "m", "schedule", "step", "tokens/s/GPU", "MFU", "bubble", "memory")
    lines = [head, *(_cells(i, row) for i, row in enumerate(rows, 1))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cells(place: int, row: Row) -> tuple[str, ...]:
    split = (str(row[key]) for key in ("tp", "pp", "dp", "vpp", "micro_batch", "microbatches", "schedule"))
    bubble = row["bubble_s"] / row["step_time_s"]
    return (
        f"{place}.",
        *split,
        seconds(row["step_time_s"]),
        f"{row['tokens_per_s_per_gpu']:.1f}",
        f"{row['mfu']:.1%}",
        f"{bubble:.1%}",
        gibibytes(row["peak_memory_bytes"]),
    )
