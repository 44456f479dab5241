"""`clustersim lab evaluate --models`: whole models against measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.cli.answer import print_json
from clustersim.cli.listing import show_table

if TYPE_CHECKING:
    from clustersim.lab.whole_models import Mean, ModelRun
    from clustersim.predictors.base import Predictor


def show(places: Sequence[Path], predictors: Sequence[Predictor], as_json: bool) -> None:
    """Print every measured run with its forecast, and the mean errors; runs with labels that disagree with themselves last.

    Raises DataError for a folder without the table.
    """
    from clustersim.lab.whole_models import TABLE, runs

    data = next((place for place in places if (place / TABLE).is_file()), places[0])
    found = {predictor.name: list(runs(data, predictor)) for predictor in predictors}
    if as_json:
        records = {name: [_record(run) for run in part] for name, part in found.items()}
        print_json("lab evaluate", {"models": records})
        return
    for name, part in found.items():
        _print(name, part)


def _record(run: ModelRun) -> dict[str, Any]:
    return run._asdict() | {"error": run.error, "their_error": run.their_error}


def _print(name: str, found: list[ModelRun]) -> None:
    from rich.console import Console
    from rich.table import Table

    from clustersim.lab.whole_models import means

    console = Console(width=max(Console().width, 120))
    rows = Table("model", "GPU", "mode", "option", title=f"{name}: whole models", title_justify="left", box=None)
    for column in ("seq", "batch", "measured", name, "error", "NeuSight", "label"):
        rows.add_column(column, justify="right")
    for run in found:
        rows.add_row(*_cells(run))
    show_table(console, rows)
    table = Table("GPU", "mode", "option", title=f"{name}: mean absolute errors", title_justify="left", box=None)
    for column in ("runs", name, "NeuSight", "label"):
        table.add_column(column, justify="right")
    for mean in means(found):
        table.add_row(*_mean(mean))
    show_table(console, table)


def _cells(run: ModelRun) -> tuple[str, ...]:
    theirs = "" if run.their_error is None else f"{100 * run.their_error:+.1f} %"
    times = (f"{1e3 * run.measured:.1f} ms", f"{1e3 * run.ours:.1f} ms", f"{100 * run.error:+.1f} %")
    label = "" if run.trusted else "doubtful"
    return (run.model, run.gpu, run.mode, run.option, str(run.seq), str(run.batch), *times, theirs, label)


def _mean(mean: Mean) -> tuple[str, ...]:
    theirs = "" if mean.theirs is None else f"{100 * mean.theirs:.1f} %"
    label = "" if mean.trusted else "doubtful"
    return (mean.gpu, mean.mode, mean.option, str(mean.runs), f"{100 * mean.ours:.1f} %", theirs, label)
