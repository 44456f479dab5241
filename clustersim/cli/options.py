"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from clustersim.config.shipped import Room, files, find, renamed
from clustersim.errors import InputError


def topology_file(given: str) -> Path:
    """Return the file of a topology, and say so on standard error when it was called by an old name."""
    path, new = find("topologies", given), renamed("topologies", given)
    if new:
        typer.echo(
            f"clustersim: {given} is now called {new}, as the number counts nodes; the old name still works", err=True
        )
    return path


def workload_file(given: str) -> Path:
    """Return the file of a workload, or of several jobs."""
    return find("workloads", given)


def completing(room: Room) -> Callable[[str], list[str]]:
    """Return the shell completion of shipped names; where no name begins so, shells complete paths."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in files(room) if name.startswith(incomplete)]

    return complete


TopologyFile = Annotated[
    Path,
    typer.Argument(
        metavar="TOPOLOGY",
        help="A topology file, or the name of a shipped one, such as fattree_3840.",
        parser=topology_file,
        autocompletion=completing("topologies"),
    ),
]
WorkloadFile = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file, or the name of a shipped one, such as gpt3.",
        parser=workload_file,
        autocompletion=completing("workloads"),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a workload key, such as training.recompute=full.", metavar="KEY=VALUE"),
]


def overrides(named: Mapping[str, object | None], settings: Sequence[str] | None) -> dict[str, object]:
    """Return the overrides of a command line: options that were given, then every `--set key=value`."""
    result = {key: value for key, value in named.items() if value is not None}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {setting!r} has no value; write key=value, such as training.recompute=full")
        result[key.strip()] = value.strip()
    return result
