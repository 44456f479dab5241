"""How a command prints its answer as JSON: every one through the same function, under the same top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer

from clustersim.report.document import document


def print_json(command: str, fields: Mapping[str, Any]) -> None:
    """Print what a command found as one JSON object with `schema_version`, `clustersim` and `command` on top."""
    typer.echo(json.dumps(document(command, fields), indent=2))
