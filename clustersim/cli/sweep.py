"""`clustersim sweep TOPOLOGY WORKLOAD --tp 1,2,4,8 --pp 1,2,4`: try many splits and rank them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.cli.answer import print_json
from clustersim.cli.options import (
    Changes,
    EngineName,
    Force,
    Json,
    Plugins,
    Quiet,
    TopologyFile,
    WorkloadFile,
    setting,
    workload_options,
)
from clustersim.cli.progress import cores, tracked
from clustersim.cli.sweep_table import SHOWN, Shown
from clustersim.config.options import Option
from clustersim.errors import InputError
from clustersim.parallel.options import OPTIONS

if TYPE_CHECKING:
    from clustersim.sweeps.evaluate import Row
    from clustersim.sweeps.space import SweepSpace


@workload_options(lists=True)
def sweep(
    topology: TopologyFile,
    workload: WorkloadFile,
    changes: Changes,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a workload key; several values with commas between are an axis.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; default: one a core.")] = None,
    engine: EngineName = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; default results/sweep-TOPOLOGY-WORKLOAD-OPTIONS.")
    ] = None,
    force: Force = False,
    top: Annotated[int | None, typer.Option(min=1, help=f"Rows to print; default: {SHOWN}, with --json all.")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate every legal combination of the given values and rank them by throughput.

    Values stand with commas between, whole numbers also as a range: --tp 1,2,4 --micro-batch 1-4. The best one is printed as
    the command that runs it alone.
    """
    from clustersim.report.store import check_target
    from clustersim.sweeps.run import run

    asked = _asked(changes, settings)
    if out:
        check_target(out)
    silent = quiet or as_json

    def show(rows: Iterator[tuple[int, Row]], count: int) -> Iterator[tuple[int, Row]]:
        return tracked(rows, count, silent)

    found = run(
        topology, workload, asked.space(), workers or cores(), out, show, fixed=asked.fixed, force=force, engine=engine
    )
    shown = Shown(topology, workload, asked, found)
    if found.damaged:
        typer.echo(f"{found.damaged} damaged lines of {found.folder}/points.jsonl were left out", err=True)
    if as_json:
        print_json("sweep", shown.fields(top))
    elif not quiet:
        typer.echo(shown.text(top or SHOWN))


def _asked(changes: Changes, settings: list[str] | None) -> SweepSpace:
    """Return what a command line sweeps and what it fixes. Raises InputError."""
    from clustersim.sweeps.space import SweepSpace, listed

    given = {option.key: _values(option, changes[option.key]) for option in OPTIONS if changes[option.key] is not None}
    single = {option.key for option in OPTIONS if not option.swept}
    fixed: dict[str, object] = {key: values[0] for key, values in given.items() if key in single}
    axes = {key: values for key, values in given.items() if key not in single}
    if not axes and not any(len(listed(setting(text)[1])) > 1 for text in settings or ()):
        raise InputError("nothing to sweep; give at least one axis, such as --tp 1,2,4,8")
    by_set = dict(map(setting, settings or ()))
    for key, value in by_set.items():
        if key in given:
            raise InputError(f"--set {key} is also an axis of the sweep; give one of the two")
        parts = listed(value)
        if len(parts) > 1:
            axes[key] = list(parts)
        else:
            fixed[key] = value
    return SweepSpace(axes, fixed, frozenset(by_set))


def _values(option: Option, text: str) -> list[object]:
    """Return the values of an option in their order. Raises InputError."""
    from clustersim.sweeps.space import degrees, numbers, words

    if not option.swept:
        return [text]
    if option.form == "word":
        return list(words(option.dashed, text))
    if option.form == "degree":
        return list(degrees(option.dashed, text))
    return list(numbers(option.dashed, text, least=0 if option.form == "number" else 1))
