"""`clustersim lab`: train the predictors on measured kernels, evaluate them, show what ships."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as Opt

import typer

from clustersim.cli.commands import CommandGroup, option_group
from clustersim.cli.options import CommandOutput, JsonOutput, Plugins, naming
from clustersim.errors import InputError

if TYPE_CHECKING:
    from clustersim.lab.model_card import WeightsTable
    from clustersim.lab.whole_models import Mean, ModelRun
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.weights_file import Weights

SHIPPED = ("linear", "habitat", "neusight")
CARD = "neusight"
LEARNED = (*SHIPPED, "neusight-paper")
DataOption = Opt[
    list[Path] | None,
    "Measured kernels: a folder of tables, a checkout of NeuSight or aiconfigurator, or a CSV file; may be "
    "given several times; default: $CLUSTERSIM_DATA.",
    "PATH",
]
LeaveOut = Opt[list[str] | None, "A GPU that nothing is learned from; may be given several times.", "GPU"]
WeightsFile = Opt[Path | None, "Weights file for the one predictor named."]
Names = Opt[list[str] | None, "A predictor; default: all of them.", "-p"]

app = CommandGroup(help="Train, evaluate and describe the predictors of kernel times.", no_args_is_help=True)


@app.callback()
def lab() -> None:
    """Raise InputError if the package that this needs is not installed."""
    if find_spec("clustersim.lab") is None:
        raise InputError(
            "clustersim lab is a distribution of its own, which is not installed; run pip install clustersim-lab, "
            "or pip install ./lab in a checkout"
        )


@app.command()
def train(
    name: Opt[str, "linear, habitat, neusight or neusight-paper."],
    *,
    data: DataOption = None,
    leave_out: LeaveOut = None,
    seed: Opt[int, "Seed of all random choices.", {"min": 0}] = 0,
    out: Opt[Path | None, "Weights file; default: NAME.safetensors here."] = None,
    permits: Plugins = None,
    install: Opt[bool, "Replace the weights that runs use."] = False,
) -> None:
    """Train a predictor on measured kernels and write its weights, with their held-out errors inside.

    Finished classes are kept beside the weights until these are written: an interrupted training goes on from there.
    """
    from clustersim import plugins
    from clustersim.cli.progress import progressing
    from clustersim.lab import model_card
    from clustersim.lab.data import sources
    from clustersim.lab.train import training
    from clustersim.lab.train.learner import ROOM
    from clustersim.predictors import weights_file
    from clustersim.writing import check_output

    if name == "roofline":
        raise InputError(f"the roofline has nothing to learn; train one of {', '.join(LEARNED)}")
    if install and out:
        raise InputError("--install and --out name two places; give one of them")
    if install and leave_out:
        raise InputError("--leave-out and --install do not go together: the weights that runs use learn from all GPUs")
    if out:
        check_output("--out", out, (".safetensors",), data or ())
    with naming("NAME"):
        learn = plugins.load(ROOM, name, "train")
    given = sources.given(data, leave_out or ())
    path = weights_file.shipped(name) if install else out or Path(f"{name}.safetensors")
    scratch = path.with_name(f".{path.name}.parts")
    with plugins.blaming(ROOM, name), progressing(silent=False) as progress:

        def report(task: str, done: int, total: int) -> None:
            progress(f"{name}: {task}, {done} of {total}")

        weights = learn(given, seed, report, scratch)
        weights_file.save(path, weights)
    training.discard(scratch)
    typer.echo("\n".join([f"wrote {path}", *_table_lines(model_card.errors(weights.meta))]))


@app.command()
def evaluate(
    *,
    data: DataOption = None,
    predictor: Names = None,
    split: Opt[str, "Split of the FP32 kernels: test or train."] = "test",
    weights: WeightsFile = None,
    by: Opt[
        str,
        "What to tell errors apart by, one or several of class, dtype, gpu, decile (of measured time) and "
        "flop-decile; deciles are of a class each.",
        "LIST",
    ] = "class,gpu",
    scalar: Opt[bool, "Also judge after 64 kernels set the speed of each GPU and data type."] = False,
    plots: Opt[Path | None, "Write plots of the errors to this folder, as one page.", "FOLDER"] = None,
    png: Opt[bool, "With --plots: also as PNG files; needs matplotlib."] = False,
    models: Opt[bool, "Whole models instead of kernels."] = False,
    output: JsonOutput,
) -> None:
    """Print the errors of predictors on measured kernels, with the weights as they are, and how many the interval holds.

    `new` says what training had not seen: the GPU, the kernels only, or nothing (errors of tensor-core classes with their
    generation left out: `clustersim lab show`).
    """
    from clustersim.lab import evaluate as errors
    from clustersim.lab.data import sources
    from clustersim.lab.data.tables import test_samples
    from clustersim.lab.plots import page
    from clustersim.predictors.load import get
    from clustersim.writing import check_output

    if split not in ("test", "train"):
        raise InputError(f"--split {split!r} is not known; write test or train")
    if png and plots is None:
        raise InputError("--png says how to draw plots; name their folder with --plots FOLDER")
    if plots is not None:
        check_output("--plots", plots / page.PAGE, (".html",), data or ())
    keys = errors.groups(by)
    with naming("--predictor"):
        opened = [get(name, weights) for name in _named(predictor, weights, ("roofline", *SHIPPED))]
    if models:
        runs = _model_runs(sources.places(sources.given(data)), opened)
        output.show(
            "lab evaluate",
            lambda: {"models": {name: list(map(_model_record, part)) for name, part in runs.items()}},
            lambda: [line for name, part in runs.items() for line in _model_lines(name, part)],
        )
        return
    samples = test_samples(sources.given(data), split)
    with naming("--predictor"):
        frames = [errors.judge(one, samples, split, scalar) for one in opened]
    rows = [row for frame in frames for row in errors.errors(frame, keys)]
    output.show(
        "lab evaluate",
        lambda: {"split": split, "by": keys, "errors": rows},
        lambda: _table_lines(_judged(rows, keys, split)),
    )
    if scalar and not output.as_json and all(row["scalar_mean"] is None for row in rows):
        typer.echo("no scalar: it needs products of tensor cores, more than 64 of a GPU and data type", err=True)
    if plots is not None:
        _draw(plots, frames, split, png)


def _draw(folder: Path, frames: list[Any], split: str, png: bool) -> None:
    """Write plots of the errors to a folder, also as PNG files if `png`, and print their paths on standard error."""
    from clustersim.lab.plots import page

    if png:
        page.png_available()
    written = [page.write(folder, frames, split)]
    written += page.write_png(folder, frames) if png else []
    typer.echo(f"wrote {', '.join(map(str, written))}", err=True)


@app.command()
def profile(
    *,
    suite: Opt[str | None, "Suites, such as gemm,attention; default: all.", "LIST"] = None,
    out: Opt[Path, "CSV of kernels; layers and steps go to *_steps.csv."] = Path("kernels.csv"),
    minutes: Opt[float | None, "Minutes after which nothing new starts."] = None,
    quick: Opt[bool, "Only the most valuable cases."] = False,
    gpu: Opt[str | None, "Name or YAML file of this GPU where it is not known."] = None,
    device: Opt[str, "cpu: tiny shapes, to test that all cases run.", {"hidden": True}] = "cuda",
) -> None:
    """Measure kernels, layers and training steps on this machine's CUDA GPU, row by row, the most valuable first.

    Suites: gemm, attention, vector, grouped, launch, models, mixtures. Rows that the files hold already are not measured again.
    """
    from clustersim.lab.measure import device as devices
    from clustersim.lab.measure.profile import Bench, MeasurementPlan, wholes_file
    from clustersim.writing import check_output

    plan = MeasurementPlan.of(suite, minutes, quick)
    check_output("--out", out, (".csv",))
    place = devices.cpu(gpu) if device == "cpu" else devices.cuda(gpu)
    count = Bench(place, out, typer.echo).run(plan)
    typer.echo(f"{count} new rows in {out} and {wholes_file(out)}")


@app.command()
def show(
    *,
    predictor: Names = None,
    weights: WeightsFile = None,
    full: Opt[bool, "Every GPU, intervals, constants and data."] = False,
    card: Opt[Path | None, "Write the model card of neusight instead.", "FILE"] = None,
    output: Opt[CommandOutput, option_group(CommandOutput, "as_json")],
) -> None:
    """Print what weights learned from, and their errors on what they had not seen.

    `unseen GPUs`: mean over GPUs that training had not seen; `with a scalar`: after one measured number for each of them;
    `own GPU`: held-out shapes of GPUs that were measured; `coverage`: of the 80 % interval on generations left out, as the
    others' errors give it, and `widened` as forecasts carry it.
    """
    from clustersim.lab import model_card
    from clustersim.writing import check_output

    if card:
        check_output("--card", card, (".md",), [weights] if weights else ())
    named = _named(predictor, weights, SHIPPED)
    if card and named != [CARD]:
        raise InputError(f"--card: {CARD} alone has a model card; write --predictor {CARD} --card FILE")
    found = {name: _weights(name, weights) for name in named}
    if card is not None:
        model_card.write(card, found[CARD])
        typer.echo(f"wrote {card}")
        return
    output.show(
        "lab show",
        lambda: {"predictors": {name: one.meta for name, one in found.items()}},
        lambda: [line for one in found.values() for line in _weights_lines(one, full)],
    )


def _named(names: list[str] | None, weights: Path | None, known: Sequence[str]) -> list[str]:
    """Return the named predictors, by default all `known` ones. Raises InputError if `weights` are given for several."""
    found = list(names or known)
    if weights is not None and len(found) != 1:
        raise InputError("--weights belongs to one predictor; name it with --predictor")
    return found


def _weights(name: str, path: Path | None) -> Weights:
    """Return the weights of a predictor, from a file or as shipped. Raises InputError if none are shipped."""
    from clustersim.predictors import weights_file

    if name not in SHIPPED and path is None:
        raise InputError(f"{name!r} ships no weights; those that do: {', '.join(SHIPPED)}")
    return weights_file.read(path or weights_file.shipped(name), name)


def _weights_lines(weights: Weights, full: bool) -> Iterator[str]:
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
        yield from _table_lines(made)


def _table_lines(made: WeightsTable) -> list[str]:
    """Return a table as lines with its title, without empty columns; nothing if it has no rows."""
    from clustersim.report.table import table

    if not made.rows:
        return []
    kept = [i for i, _ in enumerate(made.header) if any(row[i] for row in made.rows)]
    sides = "".join("<" if i < made.names else ">" for i in kept)
    return [made.title, *table([[row[i] for i in kept] for row in (made.header, *made.rows)], sides)]


def _judged(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], split: str) -> WeightsTable:
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


def _model_runs(places: Sequence[Path], predictors: Sequence[Predictor]) -> dict[str, list[ModelRun]]:
    """Return {predictor: every measured run with its forecast}. Raises DataError for a folder without the table."""
    from clustersim.lab.whole_models import TABLE, runs

    data = next((place for place in places if (place / TABLE).is_file()), places[0])
    return {predictor.name: list(runs(data, predictor)) for predictor in predictors}


def _model_record(run: ModelRun) -> dict[str, Any]:
    """Return a measured run with its forecast and the errors of it and of NeuSight's, as JSON data."""
    return run._asdict() | {"error": run.error, "their_error": run.their_error}


def _model_lines(name: str, found: list[ModelRun]) -> list[str]:
    """Return two tables of a predictor: every run, those with contradictory labels last, and the mean absolute errors."""
    from clustersim.lab.whole_models import means
    from clustersim.report.table import table

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
