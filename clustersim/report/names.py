"""The default folder of a result, named after what was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.files import digest
from clustersim.version import __version__

STEM, ALL = 80, 160
"""Bytes of one part of a name, and of the whole."""
_UNSAFE = re.compile(r"[^\w.+=-]+")


def default(parts: Sequence[str | Path], overrides: Mapping[str, object], flags: Mapping[str, bool]) -> str:
    """Return a name such as `hgx_h100_8-gpt3_xl-tp4-schedule-1f1b`: any file system takes it, whatever the inputs' names are.

    parts: words, and inputs by their path. overrides: by dotted key. flags: words that stand there when true. What is too
    long is cut and ends in a digest.
    """
    words = [_short(_stem(part) if isinstance(part, Path) else part, STEM) for part in parts]
    changes = [_short(_change(key, value), STEM) for key, value in overrides.items()]
    return _short("-".join([*words, *changes, *(word for word, said in flags.items() if said)]), ALL)


def _stem(path: Path) -> str:
    """Return the name of a file without its ending; all models are called config.json, so those go by their folder."""
    return path.resolve().parent.name or path.stem if path.name == "config.json" else path.stem


def _change(key: str, value: object) -> str:
    text = str(value)
    return f"{key.rpartition('.')[2]}{'' if text.isdecimal() else '-'}{text}"


def _short(text: str, most: int) -> str:
    """Return text as part of a file's name: other characters become `_`, and what is too long ends in a digest."""
    safe = _UNSAFE.sub("_", text)
    if len(safe.encode()) <= most:
        return safe
    kept = safe.encode()[: most - 9].decode(errors="ignore")
    return f"{kept}-{digest(text.encode('utf-8', 'surrogatepass'))[:8]}"


SCHEMA_VERSION = 1
"""Raised by one when a key is removed or means something else; new keys do not raise it."""


def document(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a command under the common top: `schema_version`, `clustersim` (its version) and `command`."""
    return {"schema_version": SCHEMA_VERSION, "clustersim": __version__, "command": command, **fields}
