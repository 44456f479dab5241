"""The object that every `--json` prints and every `summary.json` is: one top, which says who wrote it and in what form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.version import __version__

SCHEMA_VERSION = 1
"""Raised by one when a key is removed or means something else; new keys do not raise it."""


def document(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command found under the common top: `schema_version`, `clustersim` (its version) and `command`."""
    return {"schema_version": SCHEMA_VERSION, "clustersim": __version__, "command": command, **fields}
