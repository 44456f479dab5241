"""`clustersim lab`: train the predictors on measured kernels, evaluate them, show what ships."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli import lab_tables
from clustersim.cli.commands import CommandGroup, argument, option, option_group
from clustersim.cli.options import CommandOutput, JsonOutput, Plugins, naming
from clustersim.errors import InputError

if TYPE_CHECKING:
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.weights_file import Weights

SHIPPED = ("linear", "habitat", "neusight")
CARD = "neusight"
LEARNED = (*SHIPPED, "neusight-paper")
DataOption = Annotated[
    list[Path] | None,
    option(
        "Measured kernels: a folder of tables, a checkout of NeuSight or aiconfigurator, or a CSV file; may be "
        "given several times; default: $CLUSTERSIM_DATA.",
        "PATH",
    ),
]
LeaveOut = Annotated[list[str] | None, option("A GPU that nothing is learned from; may be given several times.", "GPU")]
WeightsFile = Annotated[Path | None, option("Weights file for the one predictor named.")]
Names = Annotated[list[str] | None, option("A predictor; default: all of them.", flags="-p")]

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
    name: Annotated[str, argument("linear, habitat, neusight or neusight-paper.")],
    data: DataOption = None,
    leave_out: LeaveOut = None,
    seed: Annotated[int, option("Seed of all random choices.", min=0)] = 0,
    out: Annotated[Path | None, option("Weights file; default: NAME.safetensors here.")] = None,
    permits: Plugins = None,
    install: Annotated[bool, option("Replace the weights that runs use.")] = False,
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
    typer.echo("\n".join([f"wrote {path}", *lab_tables.text(model_card.errors(weights.meta))]))


@app.command()
def evaluate(
    *,
    data: DataOption = None,
    predictor: Names = None,
    split: Annotated[str, option("Split of the FP32 kernels: test or train.")] = "test",
    weights: WeightsFile = None,
    by: Annotated[
        str,
        option(
            "What to tell errors apart by, one or several of class, dtype, gpu, decile (of measured time) and "
            "flop-decile; deciles are of a class each.",
            "LIST",
        ),
    ] = "class,gpu",
    scalar: Annotated[bool, option("Also judge after 64 kernels set the speed of each GPU and data type.")] = False,
    plots: Annotated[Path | None, option("Write plots of the errors to this folder, as one page.", "FOLDER")] = None,
    png: Annotated[bool, option("With --plots: also as PNG files; needs matplotlib.")] = False,
    models: Annotated[bool, option("Whole models instead of kernels.")] = False,
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
    from clustersim.writing import check_output

    if split not in ("test", "train"):
        raise InputError(f"--split {split!r} is not known; write test or train")
    if png and plots is None:
        raise InputError("--png says how to draw plots; name their folder with --plots FOLDER")
    if plots is not None:
        check_output("--plots", plots / page.PAGE, (".html",), data or ())
    keys = errors.groups(by)
    with naming("--predictor"):
        opened = _opened(predictor, weights)
    if models:
        runs = lab_tables.models(sources.places(sources.given(data)), opened)
        output.show(
            "lab evaluate",
            lambda: {"models": {name: list(map(lab_tables.model_record, part)) for name, part in runs.items()}},
            lambda: [line for name, part in runs.items() for line in lab_tables.model_lines(name, part)],
        )
        return
    samples = test_samples(sources.given(data), split)
    with naming("--predictor"):
        frames = [errors.judge(one, samples, split, scalar) for one in opened]
    rows = [row for frame in frames for row in errors.errors(frame, keys)]
    output.show(
        "lab evaluate",
        lambda: {"split": split, "by": keys, "errors": rows},
        lambda: lab_tables.text(lab_tables.judged(rows, keys, split)),
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
    suite: Annotated[str | None, option("Suites, such as gemm,attention; default: all.", "LIST")] = None,
    out: Annotated[Path, option("CSV of kernels; layers and steps go to *_steps.csv.")] = Path("kernels.csv"),
    minutes: Annotated[float | None, option("Minutes after which nothing new starts.")] = None,
    quick: Annotated[bool, option("Only the most valuable cases.")] = False,
    gpu: Annotated[str | None, option("Name or YAML file of this GPU where it is not known.")] = None,
    device: Annotated[str, option("cpu: tiny shapes, to test that all cases run.", hidden=True)] = "cuda",
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
    full: Annotated[bool, option("Every GPU, intervals, constants and data.")] = False,
    card: Annotated[Path | None, option("Write the model card of neusight instead.", "FILE")] = None,
    output: Annotated[CommandOutput, option_group(CommandOutput, "as_json")],
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
    named = list(predictor or SHIPPED)
    if weights and len(named) != 1:
        raise InputError("--weights belongs to one predictor; name it with --predictor")
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
        lambda: [line for one in found.values() for line in lab_tables.lines(one, full)],
    )


def _opened(names: list[str] | None, weights: Path | None) -> list[Predictor]:
    """Return the named predictors, or all shipped ones. Raises InputError if `weights` are given for several."""
    from clustersim.predictors.load import get

    if weights is not None and (names is None or len(names) != 1):
        raise InputError("--weights belongs to one predictor; name it with --predictor")
    return [get(name, weights) for name in names or ("roofline", *SHIPPED)]


def _weights(name: str, path: Path | None) -> Weights:
    """Return the weights of a predictor, from a file or as shipped. Raises InputError if none are shipped."""
    from clustersim.predictors import weights_file

    if name not in SHIPPED and path is None:
        raise InputError(f"{name!r} ships no weights; those that do: {', '.join(SHIPPED)}")
    return weights_file.read(path or weights_file.shipped(name), name)
