"""`clustersim sweep TOPOLOGY WORKLOAD --tp 1,2,4,8 --pp 1,2,4`: try many splits and rank them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli import options
from clustersim.cli.progress import cores, tracked
from clustersim.cli.sweep_table import FRONT, SHOWN, Shown, View
from clustersim.units import plural
from clustersim.writing import check_output, save


def sweep(
    topology: options.TopologyFile,
    workload: options.WorkloadOrModel,
    changes: options.SweptKeys,
    *,
    settings: options.Settings = None,
    machine: options.MachineOption = None,
    axes: Annotated[Path | None, "A YAML file of axes, such as tp: [4, 8] and nodes: 64..1024x2.", "FILE"] = None,
    workers: options.Workers = None,
    engine: options.EngineName = "auto",
    out: Annotated[Path | None, "Folder of the result; default results/sweep-TOPOLOGY-WORKLOAD-OPTIONS."] = None,
    force: options.Force = False,
    top: Annotated[int | None, f"Rows to print; default: {SHOWN}, with --json all.", {"min": 1}] = None,
    sort: Annotated[
        str, "Columns to sort by, most important first; a leading - reverses one.", "COLUMN,…"
    ] = "tokens_per_s",
    pareto: Annotated[
        str | None, f"Show only what none beats in all of these: {', '.join(FRONT)}.", "step,memory,gpus,cost"
    ] = None,
    csv: Annotated[Path | None, "Also write the table as CSV.", "FILE.csv"] = None,
    shard: Annotated[str | None, "Simulate part I of N equal parts, in its own folder.", "I/N"] = None,
    merge: Annotated[list[Path] | None, "Include this folder's rows, such as a shard's; repeatable."] = None,
    ray: Annotated[
        str | None, "Simulate on the Ray cluster there (extra ray): auto, HOST:PORT, ray://…", "ADDRESS"
    ] = None,
    prices: options.PriceOptions,
    output: options.StandardOutput,
) -> None:
    """Simulate every legal combination of the given values and rank them by throughput.

    Values stand with commas between, whole numbers also as a range: --tp 1,2,4 --micro-batch 1-4 --nodes 64..4096x2; `auto` is
    all legal values. The best one is printed as the command that runs it alone.
    """
    from clustersim.question import StepQuestion
    from clustersim.report.store import check_target
    from clustersim.sweeps.axes import space
    from clustersim.sweeps.run import Shard, run
    from clustersim.sweeps.space import words

    asked = space(changes, options.by_key(settings), axes)
    asked = replace(asked, fixed=options.on_machine(machine, topology, asked.fixed, asked.axes))
    view = View(tuple(words("sort", sort)), tuple(words("pareto", pareto or None)))
    if out:
        check_target(out)
    if csv:
        check_output("--csv", csv, (".csv",), (topology, workload))

    words_of = StepQuestion(topology, workload, engine=engine, machine=machine).commands(asked.by_set)
    found = run(
        topology,
        workload,
        asked,
        workers or cores(),
        out,
        lambda rows, count: tracked(rows, count, output.silent),
        fixed=asked.fixed,
        force=force,
        engine=engine,
        costs=prices.figures(),
        shard=Shard.read(shard) if shard else None,
        merge=merge or (),
        ray=ray,
        command=lambda point: shlex.join(words_of(point)),
    )
    shown = Shown(topology, workload, asked, found, view)
    if csv:
        from clustersim.sweeps.table import frame

        save(csv, str(frame(found.rows).write_csv()))
    if found.damaged:
        typer.echo(f"{found.damaged} damaged lines of {found.folder}/points.jsonl were left out", err=True)
    if found.lost:
        typer.echo(f"{plural(found.lost, 'worker', 'workers')} died; others simulated the points again", err=True)
    output.show("sweep", lambda: shown.fields(top), lambda: [shown.text(top or SHOWN)])
    if (nothing := shown.nothing()) and not shard:  # other shards may have some
        raise nothing
