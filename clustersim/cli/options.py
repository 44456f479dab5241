"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from clustersim.errors import InputError

TopologyFile = Annotated[Path, typer.Argument(help="A topology file, such as topologies/fattree_3840.yaml.")]
WorkloadFile = Annotated[Path, typer.Argument(help="A workload file, such as workloads/gpt3.yaml.")]
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
