"""`clustersim`: the commands."""

from __future__ import annotations

import typer

from clustersim.cli.collective import collective
from clustersim.cli.jobs import jobs
from clustersim.cli.kernels import kernels
from clustersim.cli.lab import app as lab
from clustersim.cli.listing import show_list
from clustersim.cli.predict import predict
from clustersim.cli.run import run
from clustersim.cli.schedule import schedule
from clustersim.cli.show import show
from clustersim.cli.sweep import sweep
from clustersim.cli.validate import validate
from clustersim.version import __version__

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="How long is one training step on this cluster, why, and does it fit?",
)
app.command()(run)
app.command()(jobs)
app.command(name="share", hidden=True)(jobs)  # as it was called
app.command()(show)
app.command()(schedule)
app.command()(kernels)
app.command()(collective)
app.command()(sweep)
app.command()(validate)
app.command()(predict)
app.command(name="list")(show_list)
app.add_typer(lab, name="lab")
app.add_typer(lab, name="predictor", hidden=True)  # as it was called
Abort = typer.Abort
UsageError: type[BaseException] = typer.BadParameter.__bases__[0]  # typer has moved it between modules


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clustersim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass
