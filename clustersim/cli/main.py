"""`clustersim`: the commands, and how errors leave the program."""

from __future__ import annotations

import os
import sys

import typer

from clustersim import __version__
from clustersim.cli.kernels import kernels
from clustersim.cli.run import run
from clustersim.cli.show import show
from clustersim.cli.sweep import sweep
from clustersim.errors import ClustersimError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="How long is one training step on this cluster, why, and does it fit?",
)
app.command()(run)
app.command()(show)
app.command()(kernels)
app.command()(sweep)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clustersim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; errors raised on purpose become one sentence and their exit code."""
    try:
        app()
    except ClustersimError as error:
        print(f"clustersim: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("clustersim: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
