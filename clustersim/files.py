"""Reads every input file once, up to a maximum size; text is UTF-8 with or without a byte-order mark."""

from __future__ import annotations

import csv
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from clustersim.errors import ConfigError, DataError, InputError

DESCRIPTION = 16 * 2**20
"""Largest size in bytes of a description that people write: YAML, XML, config.json, a log."""
TABLE = 256 * 2**20
"""Largest size in bytes of a table of measurements."""
_WRITER = 3.0
"""Seconds within which a writer must open a FIFO."""
_CHUNK = 1 << 22
Inputs = dict[str, bytes]
"""{path as written: content in bytes} of descriptions that were read."""
_inputs: ContextVar[Inputs | None] = ContextVar("_held", default=None)


def read_bytes(path: str | Path, what: str = "a YAML file", most: int = DESCRIPTION) -> bytes:
    """Return the bytes of a file, pipe or device, at most `most` of them.

    what: the expected kind of file in messages, such as `a YAML file`. Raises InputError for a file that is missing, unreadable
    or too large (such as `/dev/zero`, which never ends), or a FIFO without a writer.
    """
    with explained(path, what):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            raw = b"".join(_chunks(descriptor, most + 1))
        finally:
            os.close(descriptor)
    if len(raw) > most:
        raise InputError(f"{path}: too large, at most {most // 2**20} MiB are read; give {what}")
    return raw


def read_text(path: str | Path, what: str = "a YAML file", most: int = DESCRIPTION) -> str:
    """Return the text of a file. Raises InputError as `read_bytes`, and ConfigError with the position if it is not UTF-8."""
    kept = _inputs.get()
    raw = read_bytes(path, what, most) if kept is None or str(path) not in kept else kept[str(path)]
    if kept is not None:
        kept[str(path)] = raw
    return decoded(raw, path, what)


@contextmanager
def keeping_inputs(inputs: Inputs | None = None) -> Iterator[Inputs]:
    """Record what `read_text` reads in the context, so that each description is read once; those in `inputs` are not read at all.

    So the content that is parsed is also the content that is hashed and sent to other processes, even if the file changes.
    """
    kept: Inputs = {} if inputs is None else inputs
    token = _inputs.set(kept)
    try:
        yield kept
    finally:
        _inputs.reset(token)


@contextmanager
def holding(inputs: Inputs) -> Iterator[Inputs]:
    """Record what is read in the context, and take deleted files and pipes from `inputs`."""
    known = _inputs.get()
    gone = {path: raw for path, raw in inputs.items() if not os.path.isfile(path)}  # noqa: PTH113 - as in `exists`
    with keeping_inputs({} if known is None else known) as kept:
        added = gone.keys() - kept.keys()
        kept |= {path: gone[path] for path in added}
        try:
            yield kept
        finally:
            for path in added:
                del kept[path]


def digest(raw: bytes) -> str:
    """Return the SHA-256 of `raw` as hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def read_table(path: str | Path, what: str = "a CSV table") -> bytes:
    """Return the bytes of a table of measurements without byte-order mark. Raises DataError if `read_bytes` raises."""
    try:
        return read_bytes(path, what, TABLE).removeprefix(b"\xef\xbb\xbf")
    except InputError as error:
        raise DataError(str(error)) from error


def packaged_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV table of the package, each {column: text}."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def decoded(raw: bytes, path: str | Path, what: str) -> str:
    """Return bytes as text without byte-order mark. Raises ConfigError with the position of bytes that are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        wrong = f"not a text file (byte {error.start} is not UTF-8); give {what}"
        raise ConfigError(str(path), line, column, wrong) from error


def exists(path: str | Path) -> bool:
    """Return whether a path exists or its content was recorded; False for an invalid name (too long, a zero byte)."""
    return str(path) in (_inputs.get() or {}) or os.path.exists(path)  # noqa: PTH110 - Path.exists raises for such names before Python 3.12


@contextmanager
def explained(path: str | Path, what: str) -> Iterator[None]:
    """Raise InputError with one sentence instead of an OSError about a file, or of an error about an invalid name."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; `ls {Path(path).parent}` shows what is there, give {what}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; give the path of {what}") from error
    except (ValueError, MemoryError) as error:  # a name with a zero byte
        raise InputError(f"{str(path)[:60]!r}: cannot be read: {error}; give the path of {what}") from error


def _chunks(descriptor: int, most: int) -> Iterator[bytes]:
    """Yield the bytes of a descriptor up to its end, in total slightly more than `most` at most, with a time limit for a FIFO."""
    chunk = _first(descriptor) if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else b""
    if hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
    while most > 0 and (chunk := chunk or os.read(descriptor, min(most, _CHUNK))):
        yield chunk
        most, chunk = most - len(chunk), b""


def _first(descriptor: int) -> bytes:
    """Return the first bytes in a FIFO, b"" if its writer has written none yet. Raises OSError without a writer."""
    end = time.monotonic() + _WRITER
    while time.monotonic() < end:
        try:
            if chunk := os.read(descriptor, _CHUNK):
                return chunk
        except BlockingIOError:
            return b""
        time.sleep(0.02)
    raise OSError(0, "no process writes into this pipe")
