"""Default names of results' folders, and the header of JSON documents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.files import digest
from clustersim.version import __version__

STEM, ALL = 80, 160
"""Largest number of bytes of one part of a name, and of the whole name."""
_UNSAFE = re.compile(r"[^\w.+=-]+")


def default(parts: Sequence[str | Path], overrides: Mapping[str, object], flags: Mapping[str, bool]) -> str:
    """Return a name such as `hgx_h100_8-gpt3_xl-tp4-schedule-1f1b` that every file system accepts.

    `parts` are words, and inputs by their path; `overrides` are by dotted key; `flags` are words that appear if true. Long names
    are cut and end in a digest.
    """
    words = [_short(_stem(part) if isinstance(part, Path) else part, STEM) for part in parts]
    pairs = ((key.rpartition(".")[2], str(value)) for key, value in overrides.items())
    changes = [_short(f"{key}{'' if text.isdecimal() else '-'}{text}", STEM) for key, text in pairs]
    return _short("-".join([*words, *changes, *(word for word, wanted in flags.items() if wanted)]), ALL)


def _stem(path: Path) -> str:
    """Return the name of a file without suffix; for config.json the name of its folder."""
    return path.resolve().parent.name or path.stem if path.name == "config.json" else path.stem


def _short(text: str, most: int) -> str:
    """Return text as part of a file's name of at most `most` bytes: unsafe characters become `_`, long text ends in a digest."""
    safe = _UNSAFE.sub("_", text)
    if len(safe.encode()) <= most:
        return safe
    kept = safe.encode()[: most - 9].decode(errors="ignore")
    return f"{kept}-{digest(text.encode('utf-8', 'surrogatepass'))[:8]}"


SCHEMA_VERSION = 1
"""Version of JSON documents. It rises by one if a key is removed or changes its meaning; new keys do not raise it."""


def document(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a command with the common header: `schema_version`, `clustersim` (its version) and `command`."""
    return {"schema_version": SCHEMA_VERSION, "clustersim": __version__, "command": command, **fields}
