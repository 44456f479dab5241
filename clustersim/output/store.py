"""`results/<name>/`: a result on disk. Everything is written to a temporary folder which is then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from clustersim import __version__
from clustersim.errors import InputError


def check_target(target: Path) -> None:
    """Raise InputError when a result cannot be written to `target`, before any work is done.

    A folder that is there must be empty or an older result: everything in it will be replaced.
    """
    if not str(target).isprintable():
        raise InputError(f"{str(target)!r}: is no name of a folder; choose another place with --out")
    try:
        if _is_file(target):
            raise InputError(f"{target}: is a file, not a folder; choose another place with --out")
        if all(_foreign(target) for _ in range(3)):
            raise InputError(f"{target}: holds files that are no result; choose an empty or new folder with --out")
        above = next(parent for parent in target.absolute().parents if parent.exists())
        if not above.is_dir():
            raise InputError(f"{target}: cannot be written ({above} is a file); choose another place with --out")
        if not os.access(above, os.W_OK | os.X_OK):
            raise InputError(f"{target}: cannot be written ({above} is read-only); choose another place with --out")
    except OSError as error:
        raise unwritable(target, error) from error


def _is_file(target: Path) -> bool:
    """Return whether something other than a folder is there, in one look: another process may just replace it."""
    try:
        return not stat.S_ISDIR(target.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return target.is_symlink()


def _foreign(target: Path) -> bool:
    """Return whether a folder holds something, but no result; asked again, as another process may just replace it."""
    try:
        names = [path.name for path in target.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(names) and "manifest.json" not in names


def unwritable(target: Path, error: OSError) -> InputError:
    """Return the error of a place that cannot be written."""
    return InputError(f"{target}: cannot be written ({error.strerror or error}); choose another place with --out")


@contextmanager
def folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that replaces it when all went well, and vanishes when not.

    Raises InputError when the place cannot be written.
    """
    check_target(target)
    made = [parent for parent in target.absolute().parents if not parent.exists()]
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield temporary
        temporary.chmod(0o755)
        _replace(temporary, target)
        made = []
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def _replace(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of `target`, which comes back when that fails; of two at once, the later one stays."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    try:
        for number in count():
            if target.exists():
                with suppress(FileNotFoundError):  # another process has just moved it
                    target.rename(aside / str(number))
            try:
                temporary.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or number > 100:
                    raise
            else:
                return
    except BaseException:
        kept = sorted(aside.iterdir(), key=lambda path: int(path.name))
        if kept and not target.exists():
            kept[-1].rename(target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
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
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def manifest(inputs: dict[str, Path], options: dict[str, Any]) -> dict[str, Any]:
    """Return what is needed to run it again: the inputs with their SHA-256, the options and the versions."""
    import numpy
    import simpy

    return {
        "clustersim": __version__,
        "inputs": {name: {"path": str(path), "sha256": _digest(path)} for name, path in inputs.items()},
        "options": options,
        "seed": 0,
        "versions": {"numpy": numpy.__version__, "simpy": simpy.__version__},
    }


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a file; None for a pipe, which cannot be read again."""
    if path.exists() and not path.is_file():
        return None
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: has changed while it was simulated ({error.strerror}); run it again") from error
