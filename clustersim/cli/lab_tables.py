"""Tables of `clustersim lab`: errors and weights of predictors, and whole models compared with measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.cli.answer import print_json
from clustersim.cli.listing import show_table

if TYPE_CHECKING:
    from clustersim.lab.model_card import WeightsTable
    from clustersim.lab.whole_models import Mean, ModelRun
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.weights_file import Weights

WIDEST = 1000


def tables(weights: Weights, full: bool) -> Iterator[WeightsTable]:
    """Yield the tables of one predictor's weights: an overview, or all of them."""
    from clustersim.lab import model_card

    yield model_card.overview(weights.meta)
    if full:
        yield from (
            model_card.errors(weights.meta),
            model_card.wide(weights.meta),
            model_card.own(weights.meta),
        )
        yield from (
            model_card.intervals(weights.meta),
            model_card.learned(weights),
            model_card.boards(weights),
        )
        yield from (model_card.rows(weights.meta), model_card.sources(weights.meta))


def heading(meta: Mapping[str, Any], full: bool) -> str:
    """Return the lines above the tables: seed, split, GPUs left out of training, and where to find more."""
    out = f"\n  left out of training: {', '.join(meta['left_out'])}" if meta.get("left_out") else ""
    more = "" if full else "\n  every GPU, intervals, constants and data: --full; all figures: --json"
    return f"{meta['predictor']}: seed {meta['seed']}; {meta['split']}{out}{more}"


def show(table: WeightsTable) -> None:
    """Print a table without empty columns; nothing if it has no rows."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    if not table.rows:
        return
    kept = [i for i, _ in enumerate(table.header) if any(row[i] for row in table.rows)]
    drawn = Table(title=table.title, title_justify="left", box=None)
    for i in kept:
        drawn.add_column(table.header[i], justify="left" if i < table.names else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(row[i] for i in kept))
    whole = Measurement.get(Console(width=WIDEST), Console(width=WIDEST).options, drawn).maximum
    show_table(Console(width=max(Console().width, whole), highlight=False), drawn)


def judged(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], split: str) -> WeightsTable:
    """Return errors on measured kernels as a table, one row per group."""
    from clustersim.lab.model_card import WeightsTable

    figures = ("mean", "median", "90th", ">20 GFLOP", "bias", "kernels", "in 80 %", "scalar", "median", "90th")
    cells = [(*_names(row, keys), *_figures(row)) for row in rows]
    return WeightsTable(f"absolute errors, split {split}", ("predictor", *keys, *figures, "new"), cells, 1 + len(keys))


def _names(row: Mapping[str, Any], keys: Sequence[str]) -> Iterator[str]:
    from clustersim.lab.evaluate import KEYS
    from clustersim.units import seconds

    yield str(row["predictor"])
    for key in keys:
        value = row[KEYS[key]]
        yield f"{value} (about {seconds(row['seconds'])})" if KEYS[key] == "decile" else str(value)


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    from clustersim.lab.model_card import percent

    yield from (percent(row[key]) for key in ("mean", "median", "p90", "large"))
    yield from (f"{row['bias']:.2f}", f"{row['samples']:,}", percent(row["coverage"]))
    yield from (percent(row[f"scalar_{key}"]) for key in ("mean", "median", "p90"))
    yield row["new"]


def show_models(places: Sequence[Path], predictors: Sequence[Predictor], as_json: bool) -> None:
    """Print every measured run with its forecast, and the mean errors; runs with contradictory labels last.

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
