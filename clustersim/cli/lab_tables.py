"""Tables of `clustersim lab`: errors and weights of predictors, and whole models compared with measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustersim.lab.model_card import WeightsTable
    from clustersim.lab.whole_models import Mean, ModelRun
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.weights_file import Weights


def lines(weights: Weights, full: bool) -> Iterator[str]:
    """Yield the training data of one predictor's weights, and tables of their errors: an overview, or all of them."""
    from clustersim.lab import model_card

    meta = weights.meta
    out = f"\n  left out of training: {', '.join(meta['left_out'])}" if meta.get("left_out") else ""
    more = "" if full else "\n  every GPU, intervals, constants and data: --full; all figures: --json"
    yield f"{meta['predictor']}: seed {meta['seed']}; {meta['split']}{out}{more}"
    tables = [model_card.overview(meta)]
    if full:
        tables += [model_card.errors(meta), model_card.wide(meta), model_card.own(meta), model_card.intervals(meta)]
        tables += [model_card.learned(weights), model_card.boards(weights)]
        tables += [model_card.rows(meta), model_card.sources(meta)]
    for made in tables:
        yield from text(made)


def text(made: WeightsTable) -> list[str]:
    """Return a table as lines with its title, without empty columns; nothing if it has no rows."""
    from clustersim.report.terminal import table

    if not made.rows:
        return []
    kept = [i for i, _ in enumerate(made.header) if any(row[i] for row in made.rows)]
    sides = "".join("<" if i < made.names else ">" for i in kept)
    return [made.title, *table([[row[i] for i in kept] for row in (made.header, *made.rows)], sides)]


def judged(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], split: str) -> WeightsTable:
    """Return errors on measured kernels as a table, one row per group."""
    from clustersim.lab.model_card import WeightsTable

    figures = ("mean", "median", "90th", ">20 GFLOP", "bias", "kernels", "in 80 %", "scalar", "median", "90th")
    cells = [(*_names(row, keys), *_figures(row)) for row in rows]
    return WeightsTable(f"absolute errors, split {split}", ("predictor", *keys, *figures, "new"), cells, 1 + len(keys))


def _names(row: Mapping[str, Any], keys: Sequence[str]) -> Iterator[str]:
    """Yield the predictor and the keys of a group of kernels, as cells."""
    from clustersim.lab.evaluate import KEYS
    from clustersim.units import seconds

    yield str(row["predictor"])
    for key in keys:
        value = row[KEYS[key]]
        yield f"{value} (about {seconds(row['seconds'])})" if KEYS[key] == "decile" else str(value)


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of a group of kernels, as cells."""
    from clustersim.lab.model_card import percent

    yield from (percent(row[key]) for key in ("mean", "median", "p90", "large"))
    yield from (f"{row['bias']:.2f}", f"{row['samples']:,}", percent(row["coverage"]))
    yield from (percent(row[f"scalar_{key}"]) for key in ("mean", "median", "p90"))
    yield row["new"]


def models(places: Sequence[Path], predictors: Sequence[Predictor]) -> dict[str, list[ModelRun]]:
    """Return {predictor: every measured run with its forecast}. Raises DataError for a folder without the table."""
    from clustersim.lab.whole_models import TABLE, runs

    data = next((place for place in places if (place / TABLE).is_file()), places[0])
    return {predictor.name: list(runs(data, predictor)) for predictor in predictors}


def model_record(run: ModelRun) -> dict[str, Any]:
    """Return a measured run with its forecast and the errors of it and of NeuSight's, as JSON data."""
    return run._asdict() | {"error": run.error, "their_error": run.their_error}


def model_lines(name: str, found: list[ModelRun]) -> list[str]:
    """Return two tables of a predictor: every run, those with contradictory labels last, and the mean absolute errors."""
    from clustersim.lab.whole_models import means
    from clustersim.report.terminal import table

    each = ["model", "GPU", "mode", "option", "seq", "batch", "measured", name, "error", "NeuSight", "label"]
    mean = ["GPU", "mode", "option", "runs", name, "NeuSight", "label"]
    return [
        *(f"{name}: whole models", *table([each, *map(_cells, found)], "<<<<>")),
        *(f"{name}: mean absolute errors", *table([mean, *map(_mean, means(found))], "<<<>")),
    ]


def _cells(run: ModelRun) -> tuple[str, ...]:
    """Return the row of a measured run and its forecast."""
    theirs = "" if run.their_error is None else f"{100 * run.their_error:+.1f} %"
    times = (f"{1e3 * run.measured:.1f} ms", f"{1e3 * run.ours:.1f} ms", f"{100 * run.error:+.1f} %")
    label = "" if run.trusted else "doubtful"
    return (run.model, run.gpu, run.mode, run.option, str(run.seq), str(run.batch), *times, theirs, label)


def _mean(mean: Mean) -> tuple[str, ...]:
    """Return the row of mean errors over runs of one kind."""
    theirs = "" if mean.theirs is None else f"{100 * mean.theirs:.1f} %"
    label = "" if mean.trusted else "doubtful"
    return (mean.gpu, mean.mode, mean.option, str(mean.runs), f"{100 * mean.ours:.1f} %", theirs, label)
