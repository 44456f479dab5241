"""`clustersim predictor`: train the predictors on measured kernels, evaluate them, show what ships."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli import whole_models
from clustersim.errors import InputError

if TYPE_CHECKING:
    from clustersim.predictors.evaluate import Row
    from clustersim.predictors.model import Predictor

SHIPPED = ("linear", "habitat", "neusight")
LEARNED = (*SHIPPED, "neusight-paper")
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help="Measured kernels: a folder of tables, a checkout of NeuSight or aiconfigurator, or a CSV file; may be "
        "given several times; default: $CLUSTERSIM_DATA.",
        metavar="PATH",
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option("--leave-out", help="A GPU that nothing is learned from; may be given several times.", metavar="GPU"),
]
Names = Annotated[list[str] | None, typer.Option("--predictor", "-p", help="A predictor; default: all of them.")]

app = typer.Typer(help="Train, evaluate and describe the predictors of kernel times.", no_args_is_help=True)


@app.command()
def train(
    name: Annotated[str, typer.Argument(help="linear, habitat, neusight or neusight-paper.")],
    data: Data = None,
    leave_out: LeaveOut = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Weights file; default: NAME.safetensors here.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Replace the weights that runs use.")] = False,
) -> None:
    """Train a predictor on measured kernels and write its weights, with their held-out errors inside.

    Finished classes are kept beside the weights until these are written: an interrupted training goes on from there.
    """
    from clustersim import plugins
    from clustersim.predictors import resume, sources, store
    from clustersim.predictors.model import ROOM

    if name == "roofline":
        raise InputError(f"the roofline has nothing to learn; train one of {', '.join(LEARNED)}")
    if install and out:
        raise InputError("--install and --out name two places; give one of them")
    if install and leave_out:
        raise InputError("--leave-out and --install do not go together: the weights that runs use learn from all GPUs")
    learn, given = plugins.load(ROOM, name, "train"), sources.given(data, leave_out or ())
    path = store.shipped(name) if install else out or Path(f"{name}.safetensors")
    scratch = path.with_name(f".{path.name}.parts")
    weights = _with_progress(name, lambda report: learn(given, seed, report, scratch))
    store.save(path, weights)
    resume.discard(scratch)
    typer.echo(f"wrote {path}")
    _print(f"{name}: errors on kernels left out of training", _entries(name, weights.meta))


@app.command()
def evaluate(
    data: Data = None,
    predictor: Names = None,
    split: Annotated[str, typer.Option(help="Split of the FP32 kernels: test or train.")] = "test",
    weights: Annotated[Path | None, typer.Option(help="Weights file for the one predictor named.")] = None,
    models: Annotated[bool, typer.Option("--models", help="Whole models instead of kernels.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the errors of predictors on measured kernels, by class and GPU, with the weights as they are.

    `new` says what training had not seen: the GPU, the kernels only, or nothing (errors of tensor-core classes with their
    generation left out: `clustersim predictor show`).
    """
    from clustersim.predictors import sources
    from clustersim.predictors.evaluate import measure, test_samples

    if split not in ("test", "train"):
        raise InputError(f"--split {split!r} is not known; write test or train")
    opened = _opened(predictor, weights)
    if models:
        whole_models.show(sources.places(sources.given(data)), opened, as_json)
        return
    samples = test_samples(sources.given(data), split)
    rows = (
        _row(row, _news(one, row, split))
        for one in opened
        for kind, some in samples.items()
        if _learned(one, kind)
        for row in measure(one, kind, some)
    )
    if as_json:
        typer.echo(json.dumps({"split": split, "errors": list(rows)}, indent=1))
    else:
        _print(f"absolute errors, split {split}", rows)


@app.command()
def profile(
    suite: Annotated[
        str | None, typer.Option(help="Suites, such as gemm,attention; default: all.", metavar="LIST")
    ] = None,
    out: Annotated[Path, typer.Option(help="CSV of kernels; layers and steps go to *_steps.csv.")] = Path(
        "kernels.csv"
    ),
    minutes: Annotated[float | None, typer.Option(help="Start nothing new after so many minutes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the most valuable cases, in bursts.")] = False,
    gpu: Annotated[str | None, typer.Option(help="Name or YAML file of this GPU where it is not known.")] = None,
    device: Annotated[str, typer.Option(hidden=True, help="cpu: tiny shapes, to test that all cases run.")] = "cuda",
) -> None:
    """Measure kernels, layers and training steps on this machine's CUDA GPU, row by row, the most valuable first.

    Suites: gemm, attention, vector, grouped, launch, step. Rows that the files hold already are not measured again.
    """
    from clustersim.profiling import device as devices
    from clustersim.profiling.plan import Plan
    from clustersim.profiling.profile import Bench, wholes_file

    plan = Plan.of(suite, minutes, quick)
    place = devices.cpu(gpu) if device == "cpu" else devices.cuda(gpu)
    count = Bench(place, out, typer.echo).run(plan)
    typer.echo(f"{count} new rows in {out} and {wholes_file(out)}")


@app.command()
def show(predictor: Names = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print what the shipped weights learned from, and their errors on what they had not seen."""
    metas = {name: _meta(name) for name in predictor or SHIPPED}
    if as_json:
        typer.echo(json.dumps(metas, indent=1))
        return
    for name, meta in metas.items():
        typer.echo(f"{name}: seed {meta['seed']}; {meta['split']}")
        if meta.get("left_out"):
            typer.echo(f"  left out of training: {', '.join(meta['left_out'])}")
        for table, digest in sorted(meta["data"].items()):
            typer.echo(f"  learned from {table} (sha256 {digest}…)")
        for kind, facts in meta["learned"].items():
            typer.echo(f"  {kind}: {facts['rows']:,} kernels of {', '.join(facts['gpus'])}")
        _print(f"{name}: errors on kernels left out of training", _entries(name, meta))


def _with_progress(name: str, work: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bar.add_task(f"{name}: {task}", total=total)
            bar.update(tasks[task], completed=done)

        return work(report)


def _opened(names: list[str] | None, weights: Path | None) -> list[Predictor]:
    from clustersim import plugins
    from clustersim.predictors.model import ROOM

    if weights is not None and (names is None or len(names) != 1):
        raise InputError("--weights belongs to one predictor; name it with --predictor")
    return [plugins.load(ROOM, name, "load")(weights) for name in names or ("roofline", *SHIPPED)]


def _meta(name: str) -> dict[str, Any]:
    from clustersim.predictors import store

    if name not in SHIPPED:
        raise InputError(f"{name!r} ships no weights; those that do: {', '.join(SHIPPED)}")
    return dict(store.read(store.shipped(name), name).meta)


def _learned(predictor: Predictor, kind: str) -> bool:
    weights = getattr(predictor, "weights", None)
    return weights is None or kind in weights.meta["learned"]


def _news(predictor: Predictor, row: Row, split: str) -> str:
    """Return what of a row's kernels the predictor's training had not seen."""
    weights = getattr(predictor, "weights", None)
    if weights is None:
        return "GPU"
    if row.kind not in weights.meta["learned"]:
        return "nothing"  # published rates, which constants were chosen from
    if row.gpu not in weights.meta["learned"][row.kind]["gpus"]:
        return "GPU"
    return "kernels" if split == "test" and row.kind.startswith("fp32/") else "nothing"


def _row(row: Row, new: str) -> dict[str, Any]:
    figures = {key: value if value == value else None for key, value in row._asdict().items()}  # noqa: PLR0124
    return figures | {"new": new}


def _entries(name: str, meta: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, found in meta["errors"].items():
        for gpu, entry in found.items():
            figures = {key: entry.get(key) for key in ("mean", "median", "p90", "large", "bias")}
            new = "GPU" if entry["unseen"] else "kernels"
            yield {"predictor": name, "kind": kind, "gpu": gpu, **figures, "samples": entry["count"], "new": new}


def _print(title: str, rows: Iterable[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("predictor", "class", "GPU", title=title, title_justify="left", box=None)
    for name in ("mean", "median", "90th", ">20 GFLOP", "bias", "kernels"):
        table.add_column(name, justify="right")
    table.add_column("new")
    for row in rows:
        shares = ["" if row[key] is None else f"{100 * row[key]:.1f} %" for key in ("mean", "median", "p90", "large")]
        cells = (
            row["predictor"],
            row["kind"],
            row["gpu"],
            *shares,
            f"{row['bias']:.2f}",
            f"{row['samples']:,}",
            row["new"],
        )
        table.add_row(*cells)
    Console(width=max(Console().width, 120)).print(table)
