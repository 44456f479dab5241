"""`clustersim` and its commands. A command line imports only the command that it names; `--help` imports all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from clustersim.cli.commands import CommandGroup
from clustersim.version import __version__

COMMANDS = (
    *("run", "explain", "compare", "trace", "rerun", "jobs", "show", "schedule", "kernels", "collective"),
    *("sweep", "optimize", "plan", "goodput", "validate", "calibrate", "report", "explore", "plot", "serve"),
    *("predict", "import", "export", "list", "init", "schema", "lab"),
)
"""Commands in the order of `--help`. Each is a function of the same name in the file of the same name, unless `PLACES` has it."""
OLD = ("share", "predictor")
"""Former names of commands; `--help` omits them."""
PLACES = {
    **{name: f"results:{name}" for name in ("explain", "compare", "trace", "rerun", "report", "explore", "plot")},
    "schedule": "show:schedule",
    "init": "schema:init",
    "goodput": "plan:goodput",
    "predict": "kernels:predict",
    "import": "importing:app",
    "export": "importing:export_app",
    "list": "listing:show_list",
    "lab": "lab:app",
    "share": "jobs:jobs",
    "predictor": "lab:app",
}
"""{command: file and name of its function, or of an app with subcommands} where the command's own name is not both."""
Abort = typer.Abort
UsageError: type[BaseException] = typer.BadParameter.__bases__[0]  # typer has moved the class between modules


def needed_commands(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that a command line may need: the one that it starts with, or all."""
    known = (*COMMANDS, *OLD)
    return tuple(arguments[:1]) if arguments and arguments[0] in known else known


def app(names: Iterable[str] = needed_commands(())) -> typer.Typer:
    """Return the program with the commands `names`."""
    program = CommandGroup(
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="How long is one training step on this cluster, why, and does it fit?",
    )
    program.callback()(_root)
    for name in names:
        module, _, attribute = PLACES.get(name, f"{name}:{name}").partition(":")
        command = getattr(import_module(f"clustersim.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name, hidden=name in OLD)
        else:
            program.command(name=name, hidden=name in OLD)(command)
    return program


def _version(wanted: bool) -> None:
    """Print the version and end the program if `--version` is given."""
    if wanted:
        typer.echo(f"clustersim {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Take the options of `clustersim` itself."""
