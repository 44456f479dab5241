"""`clustersim sweep TOPOLOGY WORKLOAD --tp 1,2,4,8 --pp 1,2,4`: try many splits and rank them; tables of the best splits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli import options
from clustersim.cli.progress import cores, tracked
from clustersim.errors import ClustersimError, InputError, suggest
from clustersim.parallel.options import KEYS, RUN_OPTIONS
from clustersim.report.table import table
from clustersim.units import duration, gibibytes, plural
from clustersim.writing import check_output, save

if TYPE_CHECKING:
    from clustersim.sweeps.evaluate import Row
    from clustersim.sweeps.run import Sweep
    from clustersim.sweeps.space import Point

SHOWN = 20
REASONS = 5
"""Largest number of kinds of reasons in the text."""
ALWAYS = ("tp", "pp", "dp")
DEGREES = ("cp", "ep")
"""Degrees shown only if they are not 1; other degrees of a split are always shown."""
NETWORK = ("fabric", "cluster.nic", "cluster.node.nics")
"""Prefixes of keys of a network, which costs its owner, but changes nothing in rents of GPUs."""
VERBS = {"does not fit": ("does not fit", "do not fit"), "illegal": ("is illegal", "are illegal")}
"""{status of a point without a result: what is said of one, and of several}, where that is not the status"""
FRONT = ("step", "memory", "gpus", "rent", "owned", "energy")
"""Objectives that a Pareto front can combine."""
_DETAIL = re.compile(r"\(.*?\)|[0-9]+(?:[.,][0-9]+)*")
"""Matches the details in which reasons of one kind may differ: numbers, and text in parentheses."""


BY_SPEED = ("tokens_per_s",)
"""Columns by which rows are sorted by default."""


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
        str, "Columns to sort by, most important first, such as owned; a leading - reverses one.", "COLUMN,…"
    ] = "tokens_per_s",
    pareto: Annotated[
        str | None, f"Show only what none beats in all of these: {', '.join(FRONT)}.", "step,memory,gpus,rent"
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

    points = space(changes, options.by_key(settings), axes)
    points = replace(points, fixed=options.on_machine(machine, topology, points.fixed, points.axes))
    order, front = words("sort", sort), words("pareto", pareto or None)
    if wrong := [name for name in front if name not in FRONT]:
        raise InputError(f"--pareto {wrong[0]}: not an objective; {suggest(wrong[0], FRONT)}")
    if out:
        check_target(out)
    if csv:
        check_output("--csv", csv, (".csv",), (topology, workload))

    words_of = StepQuestion(topology, workload, engine=engine, machine=machine).commands(points.by_set)
    result = run(
        topology,
        workload,
        points,
        workers or cores(),
        out,
        lambda rows, count: tracked(rows, count, output.silent),
        fixed=points.fixed,
        force=force,
        engine=engine,
        costs=prices.figures(),
        shard=Shard.read(shard) if shard else None,
        merge=merge or (),
        ray=ray,
        command=lambda point: shlex.join(words_of(point)),
    )
    shown = Shown(topology, workload, result, order, front)
    if csv:
        from clustersim.sweeps.table import frame

        save(csv, str(frame(result.rows).write_csv()))
    if result.damaged:
        typer.echo(f"{result.damaged} damaged lines of {result.folder}/points.jsonl were left out", err=True)
    if result.lost:
        typer.echo(f"{plural(result.lost, 'worker', 'workers')} died; others simulated the points again", err=True)
    output.show("sweep", lambda: shown.fields(top), lambda: [shown.text(top or SHOWN)])
    if (nothing := shown.nothing()) and not shard:  # other shards may have some
        raise nothing


@dataclass(frozen=True, slots=True)
class Shown:
    """A finished sweep, as text or as plain data."""

    topology: Path
    workload: Path
    sweep: Sweep
    sort: Sequence[str] = BY_SPEED
    """Columns to sort by."""
    pareto: Sequence[str] = ()
    """Objectives of the Pareto front that rows must be on; empty: all rows are shown."""

    def best(self) -> list[Row]:
        """Return the shown rows with a result, in order. Raises InputError for an unknown column."""
        from clustersim.sweeps.table import front, ranked

        return ranked(front(self.sweep.rows, self.pareto) if self.pareto else self.sweep.rows, self.sort)

    def fields(self, top: int | None) -> dict[str, Any]:
        """Return `counts`, `points_resumed`, `evaluation_cpu_s`, `reasons`, `best_run`, and `rows`, the `top` best; None: all."""
        from clustersim.sweeps.table import counts

        best = self.best()
        reasons = [{"status": s, "points": n, "reason": why} for s, n, why in self._reasons()]
        return {
            **counts(self.sweep.rows),
            "points_resumed": self.sweep.resumed,
            "evaluation_cpu_s": self.sweep.cpu,
            "reasons": reasons,
            "best_run": best[0]["run"] if best else None,
            "rows": best[:top],
        }

    def text(self, top: int) -> str:
        """Return the `top` best rows as a table, the command of the first, and the reasons of points without a result."""
        from clustersim.config.overrides import of_topology
        from clustersim.report.terminal import wrapped
        from clustersim.sweeps.space import varied

        best, many, lines = self.best(), len(self.sweep.rows), list[str]()
        if best:
            priced = (*self.sort, *self.pareto) != BY_SPEED or any(map(of_topology, varied(self.sweep.space)))
            lines += point_table(best[:top], self.sweep.space, priced, (*self.sort, *self.pareto))
            lines += [*best_lines(shlex.split(best[0]["run"])), *likely_lines(best)]
        places: dict[str, list[str]] = {}
        for place, row in enumerate(best[:top], 1):
            for warning in row.get("warnings", "").splitlines():
                places.setdefault(warning, []).append(str(place))
        for warning, rows in places.items():
            numbers = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(rows[:-1])} and {rows[-1]}"
            lines += wrapped(f"warning, {numbers}: {warning}")
        done = sum(row["status"] == "ok" for row in self.sweep.rows)
        verb = "was" if done == 1 else "were"
        resumed = f", {self.sweep.resumed} of them before" if self.sweep.resumed else ""
        if self.pareto:
            lines.append(f"{len(best)} of them are on the front of {', '.join(self.pareto)}")
        lines.append(f"{done} of {plural(many, 'point', 'points')} {verb} simulated{resumed}")
        kinds = self._reasons()
        for status, count, why in kinds[:REASONS]:
            singular, several = VERBS.get(status, (status, status))
            such = f"1 {singular}: " if count == 1 else f"{count} {several}, such as: "
            lines += wrapped(such + why, "  ")
        more = f", for {len(kinds) - REASONS} more reasons" if len(kinds) > REASONS else ""
        lines.append(f"every point{more}: {self.sweep.folder}/points.parquet")
        return "\n".join(lines)

    def nothing(self) -> ClustersimError | None:
        """Return the error for a sweep without any result, with the commonest reason; None if there is a result."""
        if not self.sweep.rows or any(row["status"] == "ok" for row in self.sweep.rows):
            return None
        status, _, why = self._reasons()[0]
        sentence = f"none of {plural(len(self.sweep.rows), 'point', 'points')} has a result: {why}"
        return ClustersimError(sentence) if status == "failed" else InputError(sentence)

    def _reasons(self) -> list[tuple[str, int, str]]:
        """Return (status, number of points, example) of each kind of reason, the commonest first."""
        files = "|".join(re.escape(str(file)) for file in (self.workload, self.topology))
        place = re.compile(rf"^({files})(:\d+:\d+| \(command line\))?: ")  # in an input, which all points share
        kinds: dict[tuple[str, str], list[str]] = {}
        for row in self.sweep.rows:
            if row["status"] != "ok":
                why = place.sub("", row["reason"])
                kinds.setdefault((row["status"], _DETAIL.sub("#", why)), []).append(why)
        by_kind = [(status, len(reasons), reasons[0]) for (status, _), reasons in kinds.items()]
        return sorted(by_kind, key=lambda entry: -entry[1])


def point_table(rows: Sequence[Row], space: Sequence[Point], priced: bool, goals: Collection[str] = ()) -> list[str]:
    """Return rows as a table with a column for each degree of their split and each key that varies in the space.

    priced: whether to include the cost of 10^12 tokens. goals: minimized objectives, which have a column too.
    """
    from clustersim.config.overrides import of_topology
    from clustersim.sweeps.evaluate import COLUMNS
    from clustersim.sweeps.space import varied

    keys = varied(space)
    split = [*ALWAYS, *(name for name in DEGREES if KEYS[name] in keys or any(row[name] != 1 for row in rows))]
    names = [*(COLUMNS.get(key, key) for key in keys if of_topology(key)), *split]
    names += [name for key in keys if not of_topology(key) and (name := COLUMNS.get(key, key)) not in split]
    dashed = {option.name: option.dashed for option in RUN_OPTIONS}
    owned = {row["gpus"] for row in rows}
    gpus = f"GPUs of {max(owned)}" if len(owned) == 1 else "GPUs"
    head = ["", "tokens/s", "step", gpus, *(dashed.get(n, n) for n in names), "MFU", "bubble", "memory"]
    priced_by = {"USD/1T tokens": "usd_per_1t_tokens"} if priced else {}
    if "owned" in goals or (priced and any(key.startswith(NETWORK) for key in keys)):
        priced_by["owned"] = "usd_owned_per_1t_tokens"
    if "energy" in goals:
        priced_by["kWh/1T tokens"] = "kwh_per_1t_tokens"
    cells = [[*head, *priced_by]]
    for place, row in enumerate(rows, 1):
        used = f"{row['ranks']} of {row['gpus']}" if len(owned) > 1 and row["idle_gpus"] else str(row["ranks"])
        speed = [f"{place}.", f"{row['tokens_per_s']:,.0f}", duration(row["expected_step_time_s"]), used]
        shares = [f"{row['mfu']:.1%}", f"{row['bubble_s'] / row['step_time_s']:.1%}"]
        memory = ("! " if is_doubtful(row) else "") + gibibytes(row["peak_memory_bytes"])
        prices = ["-" if row[price] is None else f"{row[price]:,.0f}" for price in priced_by.values()]
        cells.append([*speed, *(str(row[name]) for name in names), *shares, memory, *prices])
    return [*table(cells), *doubt_lines(rows), ""]


def is_doubtful(row: Row) -> bool:
    """Return whether a row is unlikely to fit into memory."""
    return row.get("memory_verdict") == "unlikely"


def doubt_lines(rows: Sequence[Row]) -> list[str]:
    """Return the legend of the mark for rows that are unlikely to fit; empty if there are none."""
    from clustersim.report.verdicts import band

    levels = {band(row["peak_memory_bytes"], row["gpu_memory_bytes"]) for row in rows if is_doubtful(row)}
    return [f"! unlikely to fit: {' or '.join(level.text for level in sorted(levels))}"] if levels else []


def likely_lines(best: Sequence[Row]) -> list[str]:
    """Return the lines on the best point that likely fits; [] if the best of all does."""
    if not is_doubtful(best[0]):
        return []
    place = next((place for place, row in enumerate(best) if not is_doubtful(row)), None)
    if place is None:
        return ["it is unlikely to fit, as all others are", ""]
    head = f"it is unlikely to fit; the best that likely fits, row {place + 1}:"
    return best_lines(shlex.split(best[place]["run"]), head)


def best_lines(words: Sequence[str], head: str = "the best one alone:") -> list[str]:
    """Return a heading and a command in lines that a shell reads as one. words: four, then options, each with its value."""
    from clustersim.report.terminal import columns

    lines = [f"  {shlex.join(words[:4])}"]
    for option in zip(words[4::2], words[5::2], strict=True):
        if len(lines[-1]) + len(text := f" {shlex.join(option)}") > columns() - 2:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += text
    return [head, *lines, ""]
