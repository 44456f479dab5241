"""Output of a command: JSON with a common header, or text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clustersim.report.names import document
from clustersim.writing import save

if TYPE_CHECKING:
    from clustersim.report.terminal import Look

PointCommand = Callable[[Mapping[str, object]], list[str]]
"""Function from a point's overrides to the words of the command that runs it."""
NO_COLOR = "NO_COLOR"
"""Environment variable that switches emphasis in a terminal off (https://no-color.org)."""


def emphasis() -> Look:
    """Return the emphasis of text: bold and colours in a terminal unless NO_COLOR is set, otherwise none."""
    from clustersim.report.terminal import PLAIN, Look

    if not sys.stdout.isatty() or os.environ.get(NO_COLOR) or os.environ.get("TERM") == "dumb":
        return PLAIN
    bold = partial(typer.style, bold=True)
    return Look(bold, *(partial(typer.style, fg=colour) for colour in ("green", "yellow", "red")))


def amount_text(value: float, decimals: int) -> str:
    """Return a number with some decimals, one below 1 with two digits; never with a power of ten."""
    two = Decimal(f"{value:.2g}")
    return f"{value:,.{decimals}f}" if two >= 1 else f"{two:f}"


def print_json(command: str, fields: Mapping[str, Any], out: Path | None = None, shown: bool = True) -> None:
    """Print a command's JSON object, which begins with `schema_version`, if `shown`. out: file to write it to as well."""
    text = json.dumps(document(command, fields), indent=2)
    if out:
        save(out, f"{text}\n")
    if shown:
        typer.echo(text)
