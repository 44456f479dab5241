"""Writes files and folders completely or not at all, even if the process is killed.

An unfinished file or folder is called `.clustersim-PROCESS-RANDOM`, next to its destination, and is locked while its process
lives. If a process is killed its lock ends, and the next process that writes in the folder removes what is left.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from clustersim.errors import ClustersimError, DiskFullError, InputError

try:
    import fcntl
except ImportError:  # without POSIX nothing is locked, and nothing counts as a leftover
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Name of the lock file in a folder, which contains the process that writes there."""
ASIDE = "old"
"""Name of the folder inside an unfinished one that holds the replaced result until the new one is in place."""
_PREFIX = ".clustersim-"
_UNFINISHED = re.compile(re.escape(_PREFIX) + r"\d+-\w{8}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")


class LockedError(Exception):
    """Another process holds the lock; the text names the process."""


def unwritable(path: Path | str, error: OSError, remedy: str = "choose another place") -> ClustersimError:
    """Return the error for a path that cannot be written; a full disk gives DiskFullError, which is not an input error."""
    what = f"{path}: cannot be written ({error.strerror or error})"
    if error.errno in _FULL:
        return DiskFullError(f"{what}; make room, or {remedy}")
    return InputError(f"{what}; {remedy}")


def unfinished(name: str) -> bool:
    """Return whether the name of a file or folder is that of unfinished work of this program."""
    return _UNFINISHED.fullmatch(name) is not None


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock file `path`, which is removed afterwards.

    Raises LockedError if another process holds it, unless `wait`, and OSError if the file cannot be created.
    """
    handle = _take(path, wait)
    try:
        with suppress(OSError):  # the lock holds even if a full disk keeps the text from being written
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def holder(folder: Path) -> str | None:
    """Return the process that holds the lock of a folder, as text; None if it is not locked."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        _lock(handle, wait=False)
    except LockedError as error:
        return str(error)
    finally:
        os.close(handle)
    return None


def _take(path: Path, wait: bool, flags: int = os.O_CREAT) -> int:
    """Return a handle that holds the lock of a file, which is created again if it was removed meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | flags, 0o644)
        try:
            _lock(handle, wait)
            if _is_there(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool:
    """Lock an open file. Return whether its file system supports locks. Raises LockedError with the content of the file."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise LockedError(os.pread(handle, 200, 0).decode(errors="replace") or "another process") from None
    except OSError:
        return False
    return True


def _is_there(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`, and not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent` for unfinished work and remove it afterwards; leftovers of others are removed before."""
    clear(parent)
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        try:
            handle = _take(place / LOCK, wait=True)
        except FileNotFoundError:
            continue  # removed as a leftover before it was locked
        break
    try:
        yield place
    finally:
        _restore(place)
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder whose files are moved to `target` after all of them are written.

    target: an empty or missing folder. If writing fails, nothing is left behind. Raises OSError.
    """
    there = target.exists()
    home = target if there else target.parent
    home.mkdir(parents=True, exist_ok=True)
    with workplace(home) as work:
        (work / "new").mkdir()
        yield work / "new"
        if there:  # it may be the working folder, or a mount
            move_files(work / "new", target)
        else:
            (work / "new").rename(target)


def move_files(source: Path, target: Path, first: str = "") -> None:
    """Move the files of a folder to another one on the same file system; the file called `first` goes first."""
    for path in sorted(source.iterdir(), key=lambda path: (path.name != first, path.name)):
        path.replace(target / path.name)


def clear(parent: Path) -> None:
    """Remove the unfinished work of processes that have ended, and restore what they had set aside to replace."""
    try:
        left = [path for path in parent.iterdir() if unfinished(path.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):
            _clear(path)


def _clear(path: Path) -> None:
    """Remove one unfinished file or folder, unless the process that writes it still holds its lock."""
    folder = stat.S_ISDIR(path.lstat().st_mode)
    flags = os.O_RDWR | (os.O_CREAT if folder else os.O_NOFOLLOW)
    handle = os.open(path / LOCK if folder else path, flags, 0o644)
    try:
        if not _lock(handle, wait=False):
            return
        if folder:
            _restore(path)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except LockedError:
        pass  # its process lives
    finally:
        os.close(handle)


def _restore(place: Path) -> None:
    """Restore the folder that was set aside but not replaced."""
    aside = place / ASIDE
    if not aside.exists():
        return
    with settled(place.parent):
        for old in aside.iterdir():
            if not os.path.lexists(place.parent / old.name):
                old.rename(place.parent / old.name)


@contextmanager
def settled(parent: Path) -> Iterator[None]:
    """Keep other processes from replacing a folder in `parent` while the context is open."""
    with locked(parent / f".clustersim{LOCK}", wait=True):
        yield


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is replaced when complete. Links are followed; a device or FIFO receives the bytes directly.

    Raises OSError if the file cannot be written.
    """
    if streams(path):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
            yield stream
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    clear(path.parent)
    temporary = Path(tempfile.mktemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=path.parent))
    handle = _take(temporary, wait=True, flags=os.O_CREAT | os.O_EXCL)
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, as `writing` does. Raises OSError."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def saving(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as `writing` does. Raises InputError if it cannot be written, and DiskFullError if the disk is full."""
    try:
        with writing(path) as file:
            yield file
    except OSError as error:
        raise unwritable(path, error) from error


def save(path: Path, content: bytes | str) -> None:
    """Write a file as `saving` does, text as UTF-8."""
    with saving(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def streams(path: Path) -> bool:
    """Return whether a path is not a regular file (a device, a FIFO, a stream of this process), and is written directly."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or (str(path.parent) in _STREAMS and stat.S_ISREG(mode))


def check_output(option: str, path: Path, endings: Collection[str], inputs: Iterable[Path] = ()) -> None:
    """Raise InputError, before any work is done, if the option `option` cannot write to `path`.

    endings: allowed suffixes, lower case with the dot; devices and FIFOs may have any name. inputs: files that are read, which
    must not be overwritten.
    """
    if streams(path):
        return
    if not str(path).isprintable():
        raise InputError(f"{option} {str(path)!r}: not a valid file name; choose another")
    if path.suffix.lower() not in endings:
        named = [f"that ends in {' or '.join(filter(None, endings))}"] if any(endings) else []
        kinds = " or ".join([*named, "without an ending"] if "" in endings else named)
        raise InputError(f"{option} {path}: the ending says what is written; write a name {kinds}")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{option} {path}: not a file; choose another path")
        for source in inputs:
            if path.exists() and source.exists() and path.samefile(source):
                raise InputError(f"{option} {path}: is read as an input ({source}); choose another name")
        check_parent(path.resolve(), f"{option} {path}", "choose another place")
    except OSError as error:
        raise unwritable(f"{option} {path}", error) from error


def check_parent(path: Path, what: str, remedy: str) -> None:
    """Raise InputError, which names `what`, if nothing can be created in the folder of `path` or its nearest existing parent."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"{what}: cannot be written ({above} is a file); {remedy}")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{what}: cannot be written ({above} is read-only); {remedy}")
