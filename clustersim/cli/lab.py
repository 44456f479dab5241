"""`clustersim lab`: train the predictors on measured kernels, evaluate them, show what ships."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.commands import CommandGroup
from clustersim.cli.options import CommandOutput, JsonOutput, Plugins, naming
from clustersim.errors import InputError
from clustersim.report.table import table
from clustersim.writing import check_output

if TYPE_CHECKING:
    from clustersim.lab.model_card import WeightsTable
    from clustersim.lab.whole_models import Mean, ModelRun
    from clustersim.predictors.weights_file import Weights

SHIPPED = ("linear", "habitat", "neusight")
CARD = "neusight"
DataOption = Annotated[
    list[Path] | None,
    "Measured kernels: a folder of tables, a checkout of NeuSight or aiconfigurator, or a CSV file; may be "
    "given several times; default: $CLUSTERSIM_DATA.",
    "PATH",
]
LeaveOut = Annotated[list[str] | None, "A GPU that nothing is learned from; may be given several times.", "GPU"]
WeightsFile = Annotated[Path | None, "Weights file for the one predictor named."]
Names = Annotated[list[str] | None, "A predictor; default: all of them.", "-p"]

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
    name: Annotated[str, "linear, habitat or neusight."],
    *,
    data: DataOption = None,
    leave_out: LeaveOut = None,
    seed: Annotated[int, "Seed of all random choices.", {"min": 0}] = 0,
    out: Annotated[Path | None, "Weights file; default: NAME.safetensors here."] = None,
    permits: Plugins = None,
    install: Annotated[bool, "Replace the weights that runs use."] = False,
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

    if name == "roofline":
        raise InputError(f"the roofline has nothing to learn; train one of {', '.join(SHIPPED)}")
    if install and out:
        raise InputError("--install and --out name two places; give one of them")
    if install and leave_out:
        raise InputError("--leave-out and --install do not go together: the weights that runs use learn from all GPUs")
    if out:
        check_output("--out", out, (".safetensors",), data or ())
    with naming("NAME"):
        learn = plugins.load(ROOM, name, "train")
    measured = sources.named_data(data, leave_out or ())
    path = weights_file.shipped(name) if install else out or Path(f"{name}.safetensors")
    scratch = path.with_name(f".{path.name}.parts")
    with plugins.blaming(ROOM, name), progressing(silent=False) as progress:

        def report(task: str, done: int, total: int) -> None:
            """Show the progress of a training task."""
            progress(f"{name}: {task}, {done} of {total}")

        weights = learn(measured, seed, report, scratch)
        weights_file.save(path, weights)
    training.discard(scratch)
    typer.echo("\n".join([f"wrote {path}", *_table_lines(model_card.errors(weights.meta))]))


@app.command()
def evaluate(
    *,
    data: DataOption = None,
    predictor: Names = None,
    split: Annotated[str, "Split of the FP32 kernels: test or train."] = "test",
    weights: WeightsFile = None,
    by: Annotated[
        str,
        "What to tell errors apart by, one or several of class, dtype, gpu, decile (of measured time) and "
        "flop-decile; deciles are of a class each.",
        "LIST",
    ] = "class,gpu",
    scalar: Annotated[bool, "Also judge after 64 kernels set the speed of each GPU and data type."] = False,
    plots: Annotated[Path | None, "Write plots of the errors to this folder, as one page.", "FOLDER"] = None,
    png: Annotated[bool, "With --plots: also as PNG files; needs matplotlib."] = False,
    models: Annotated[bool, "Whole models instead of kernels."] = False,
    output: JsonOutput,
) -> None:
    """Print the errors of predictors on measured kernels, with the weights as they are, and how many the interval holds.

    `new` says what training had not seen: the GPU, the kernels only, or nothing (errors of tensor-core classes with their
    generation left out: `clustersim lab show`).
    """
    from clustersim.lab import evaluate as errors
    from clustersim.lab import plots as drawings
    from clustersim.lab.data import sources
    from clustersim.lab.data.tables import test_samples
    from clustersim.predictors.load import get

    if split not in ("test", "train"):
        raise InputError(f"--split {split!r} is not known; write test or train")
    if png and plots is None:
        raise InputError("--png says how to draw plots; name their folder with --plots FOLDER")
    if plots is not None:
        check_output("--plots", plots / drawings.PAGE, (".html",), data or ())
    keys = errors.groups(by)
    with naming("--predictor"):
        opened = [get(name, weights) for name in _predictor_names(predictor, weights, ("roofline", *SHIPPED))]
    if models:
        from clustersim.lab.whole_models import TABLE
        from clustersim.lab.whole_models import runs as model_runs

        places = sources.places(sources.named_data(data))
        folder = next((place for place in places if (place / TABLE).is_file()), places[0])
        runs = {model.name: list(model_runs(folder, model)) for model in opened}
        records = {
            name: [{**run._asdict(), "error": run.error, "their_error": run.their_error} for run in part]
            for name, part in runs.items()
        }
        lines = [line for name, part in runs.items() for line in _model_lines(name, part)]
        output.show("lab evaluate", lambda: {"models": records}, lambda: lines)
        return
    samples = test_samples(sources.named_data(data), split)
    with naming("--predictor"):
        frames = [errors.judge(model, samples, split, scalar) for model in opened]
    rows = [row for frame in frames for row in errors.errors(frame, keys)]
    data_of = {"split": split, "by": keys, "errors": rows}
    output.show("lab evaluate", lambda: data_of, lambda: _table_lines(_judged(rows, keys, split)))
    if scalar and not output.as_json and all(row["scalar_mean"] is None for row in rows):
        typer.echo("no scalar: it needs products of tensor cores, more than 64 of a GPU and data type", err=True)
    if plots is not None:
        if png:
            drawings.png_available()
        written = [drawings.write(plots, frames, split), *(drawings.write_png(plots, frames) if png else [])]
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)


@app.command()
def profile(
    *,
    suite: Annotated[str | None, "Suites, such as gemm,attention; default: all.", "LIST"] = None,
    out: Annotated[Path, "CSV of kernels; layers and steps go to *_steps.csv."] = Path("kernels.csv"),
    minutes: Annotated[float | None, "Minutes after which nothing new starts."] = None,
    quick: Annotated[bool, "Only the most valuable cases."] = False,
    gpu: Annotated[str | None, "Name or YAML file of this GPU where it is not known."] = None,
) -> None:
    """Measure kernels, layers and training steps on this machine's CUDA GPU, row by row, the most valuable first.

    Suites: gemm, attention, vector, grouped, launch, models, mixtures. Rows that the files hold already are not measured again.
    """
    from clustersim.lab.measure import device
    from clustersim.lab.measure.profile import Bench, MeasurementPlan, wholes_file

    plan = MeasurementPlan.of(suite, minutes, quick)
    check_output("--out", out, (".csv",))
    count = Bench(device.cuda(gpu), out, typer.echo).run(plan)
    typer.echo(f"{count} new rows in {out} and {wholes_file(out)}")


@app.command()
def show(
    *,
    predictor: Names = None,
    weights: WeightsFile = None,
    full: Annotated[bool, "Every GPU, intervals, constants and data."] = False,
    card: Annotated[Path | None, "Write the model card of neusight instead.", "FILE"] = None,
    output: Annotated[CommandOutput, ("as_json",)],
) -> None:
    """Print what weights learned from, and their errors on what they had not seen.

    `unseen GPUs`: mean over GPUs that training had not seen; `with a scalar`: after one measured number for each of them;
    `own GPU`: held-out shapes of GPUs that were measured; `coverage`: of the 80 % interval on generations left out, as the
    others' errors give it, and `widened` as forecasts carry it.
    """
    from clustersim.lab import model_card
    from clustersim.predictors import weights_file

    if card:
        check_output("--card", card, (".md",), [weights] if weights else ())
    named = _predictor_names(predictor, weights, SHIPPED)
    if card and named != [CARD]:
        raise InputError(f"--card: {CARD} alone has a model card; write --predictor {CARD} --card FILE")
    if weights is None and (missing := [name for name in named if name not in SHIPPED]):
        raise InputError(f"{missing[0]!r} ships no weights; those that do: {', '.join(SHIPPED)}")
    read = {name: weights_file.read(weights or weights_file.shipped(name), name) for name in named}
    if card is not None:
        model_card.write(card, read[CARD])
        typer.echo(f"wrote {card}")
        return
    fields = {"predictors": {name: file.meta for name, file in read.items()}}
    output.show(
        "lab show", lambda: fields, lambda: [line for file in read.values() for line in _weights_lines(file, full)]
    )


def _predictor_names(names: list[str] | None, weights: Path | None, known: Sequence[str]) -> list[str]:
    """Return the named predictors, by default all `known` ones. Raises InputError if `weights` are given for several."""
    chosen = list(names or known)
    if weights is not None and len(chosen) != 1:
        raise InputError("--weights belongs to one predictor; name it with --predictor")
    return chosen


def _weights_lines(weights: Weights, full: bool) -> Iterator[str]:
    """Yield the training data of one predictor's weights, and tables of their errors: an overview, or all if `full`."""
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
    for weights_table in tables:
        yield from _table_lines(weights_table)


def _table_lines(weights: WeightsTable) -> list[str]:
    """Return a table as lines with its title, without empty columns; nothing if it has no rows."""
    if not weights.rows:
        return []
    kept = [i for i, _ in enumerate(weights.header) if any(row[i] for row in weights.rows)]
    sides = "".join("<" if i < weights.names else ">" for i in kept)
    return [weights.title, *table([[row[i] for i in kept] for row in (weights.header, *weights.rows)], sides)]


def _judged(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], split: str) -> WeightsTable:
    """Return errors on measured kernels as a table, a row per group by `keys`. split: of the FP32 kernels, for the title."""
    from clustersim.lab.evaluate import KEYS
    from clustersim.lab.model_card import WeightsTable, percent
    from clustersim.units import seconds

    def cells(row: Mapping[str, Any]) -> Iterator[str]:
        """Yield the cells of a group of errors."""
        yield str(row["predictor"])
        for column in (KEYS[key] for key in keys):
            yield f"{row[column]} (about {seconds(row['seconds'])})" if column == "decile" else str(row[column])
        yield from (percent(row[key]) for key in ("mean", "median", "p90", "large"))
        yield from (f"{row['bias']:.2f}", f"{row['samples']:,}", percent(row["coverage"]))
        yield from (percent(row[f"scalar_{key}"]) for key in ("mean", "median", "p90"))
        yield row["new"]

    figures = ("mean", "median", "90th", ">20 GFLOP", "bias", "kernels", "in 80 %", "scalar", "median", "90th")
    head = ("predictor", *keys, *figures, "new")
    return WeightsTable(f"absolute errors, split {split}", head, [tuple(cells(row)) for row in rows], 1 + len(keys))


def _model_lines(name: str, runs: list[ModelRun]) -> list[str]:
    """Return two tables of the predictor `name`: every run, those with doubtful labels last, and the mean absolute errors."""
    from clustersim.lab.whole_models import means

    def ends(row: ModelRun | Mean, errors: Sequence[float | None], sign: str) -> list[str]:
        """Return errors in percent, with a + if `sign` is that, and whether the label is doubtful, as cells."""
        shares = ["" if error is None else f"{100 * error:{sign}.1f} %" for error in errors]
        return [*shares, "" if row.trusted else "doubtful"]

    each = [["model", "GPU", "mode", "option", "seq", "batch", "measured", name, "error", "NeuSight", "label"]]
    for run in runs:
        case = [run.model, run.gpu, run.mode, run.option, str(run.seq), str(run.batch)]
        times = [f"{1e3 * run.measured:.1f} ms", f"{1e3 * run.ours:.1f} ms"]
        each.append([*case, *times, *ends(run, (run.error, run.their_error), "+")])
    mean = [["GPU", "mode", "option", "runs", name, "NeuSight", "label"]]
    mean += [[m.gpu, m.mode, m.option, str(m.runs), *ends(m, (m.ours, m.theirs), "")] for m in means(runs)]
    models, errors = f"{name}: whole models", f"{name}: mean absolute errors"
    return [models, *table(each, "<<<<>"), errors, *table(mean, "<<<>")]
