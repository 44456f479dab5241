"""`clustersim` and its commands. A command line imports only the command that it names; `--help` imports all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from clustersim.cli.commands import CommandGroup
from clustersim.version import __version__

COMMANDS = {
    "run": "run:run",
    "explain": "explain:explain",
    "compare": "compare:compare",
    "trace": "trace:trace",
    "rerun": "rerun:rerun",
    "jobs": "jobs:jobs",
    "show": "show:show",
    "schedule": "schedule:schedule",
    "kernels": "kernels:kernels",
    "collective": "collective:collective",
    "sweep": "sweep:sweep",
    "optimize": "optimize:optimize",
    "plan": "plan:plan",
    "goodput": "goodput:goodput",
    "validate": "validate:validate",
    "calibrate": "calibrate:calibrate",
    "report": "report:report",
    "explore": "report:explore",
    "plot": "plot:plot",
    "serve": "serve:serve",
    "predict": "predict:predict",
    "import": "importing:app",
    "export": "importing:export_app",
    "list": "listing:show_list",
    "init": "init:init",
    "schema": "schema:schema",
    "lab": "lab:app",
}
"""{command: its place in `cli/`, a function or an app with commands of its own}, in the order of `--help`."""
OLD = {"share": "jobs:jobs", "predictor": "lab:app"}
"""Former names of commands; `--help` omits them."""
Abort = typer.Abort
UsageError: type[BaseException] = typer.BadParameter.__bases__[0]  # typer has moved the class between modules


def named(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that a command line may need: the one that it starts with, or all."""
    known = (*COMMANDS, *OLD)
    return tuple(arguments[:1]) if arguments and arguments[0] in known else known


def app(names: Iterable[str] = named(())) -> typer.Typer:
    """Return the program with the commands `names`."""
    made = CommandGroup(
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="How long is one training step on this cluster, why, and does it fit?",
    )
    made.callback()(_root)
    for name in names:
        module, _, attribute = (COMMANDS | OLD)[name].partition(":")
        command = getattr(import_module(f"clustersim.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name, hidden=name in OLD)
        else:
            made.command(name=name, hidden=name in OLD)(command)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clustersim {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass
