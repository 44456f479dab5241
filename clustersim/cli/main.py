"""`clustersim`: the commands, and how errors leave the program."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import NoReturn

import typer

from clustersim import __version__, plugins
from clustersim.cli.collective import collective
from clustersim.cli.kernels import kernels
from clustersim.cli.lab import app as lab
from clustersim.cli.listing import show_list
from clustersim.cli.predict import predict
from clustersim.cli.run import run
from clustersim.cli.share import share
from clustersim.cli.show import show
from clustersim.cli.sweep import sweep
from clustersim.cli.usage import sentence
from clustersim.cli.validate import validate
from clustersim.errors import ClustersimError

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="How long is one training step on this cluster, why, and does it fit?",
)
app.command()(run)
app.command()(share)
app.command()(show)
app.command()(kernels)
app.command()(collective)
app.command()(sweep)
app.command()(validate)
app.command()(predict)
app.command(name="list")(show_list)
app.add_typer(lab, name="lab")
app.add_typer(lab, name="predictor", hidden=True)  # as it was called
_UsageError: type[BaseException] = typer.BadParameter.__bases__[0]  # typer has moved it between modules


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be Unicode, terminals not UTF-8
    try:
        plugins.forget()
        with plugins.answering():
            code = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="clustersim")
        sys.stdout.flush()
        if code == 130:
            raise KeyboardInterrupt  # typer has swallowed it
        sys.exit(code)
    except ClustersimError as error:
        _leave(str(error), error.exit_code)
    except _UsageError as error:
        _leave(sentence(error, sys.argv[1:]), 2)
    except (KeyboardInterrupt, typer.Abort):
        _leave("interrupted", 130)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        _leave(f"standard output cannot be written ({error.strerror}); send it elsewhere", 1)


def _leave(sentence: str, code: int) -> NoReturn:
    print(f"clustersim: {' '.join(sentence.splitlines())}", file=sys.stderr)
    sys.exit(code)
