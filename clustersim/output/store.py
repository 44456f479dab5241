"""`results/<name>/`: a result on disk. Everything is written to a temporary folder which is then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clustersim import __version__
from clustersim.errors import InputError


@contextmanager
def folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that replaces it when all went well, and vanishes when not.

    Raises InputError when the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); choose another place with --out") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
            target.rename(old / "old")
            temporary.rename(target)
            shutil.rmtree(old)
        else:
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as indented JSON."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def manifest(inputs: dict[str, Path], options: dict[str, Any]) -> dict[str, Any]:
    """Return what is needed to run it again: the inputs with their SHA-256, the options and the versions."""
    import numpy
    import simpy

    return {
        "clustersim": __version__,
        "inputs": {
            name: {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in inputs.items()
        },
        "options": options,
        "seed": 0,
        "versions": {"numpy": numpy.__version__, "simpy": simpy.__version__},
    }
