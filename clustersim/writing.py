"""Files and folders that appear whole or not at all, however their writer ends.

What is unfinished has a name of its own, `.clustersim-PROCESS-RANDOM`, beside the place where it will be, and is locked
while its writer lives. A writer that was killed loses the lock: the next one in that folder removes what is left.
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
except ImportError:  # no POSIX: nothing is locked, and nothing is taken for left over
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file in a folder by which its writer keeps others away; it names that process."""
ASIDE = "old"
"""The folder in an unfinished one where what is being replaced lies, under its own name, until the new one is in its place."""
_PREFIX = ".clustersim-"
_UNFINISHED = re.compile(re.escape(_PREFIX) + r"\d+-\w{8}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")


class LockedError(Exception):
    """A lock that another process holds; the text says which."""


def unwritable(path: Path | str, error: OSError, remedy: str = "choose another place") -> ClustersimError:
    """Return the error of a place that cannot be written: a full disk is not an input error."""
    what = f"{path}: cannot be written ({error.strerror or error})"
    if error.errno in _FULL:
        return DiskFullError(f"{what}; make room, or {remedy}")
    return InputError(f"{what}; {remedy}")


def unfinished(name: str) -> bool:
    """Return whether a file or folder of that name is unfinished work of this program."""
    return _UNFINISHED.fullmatch(name) is not None


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock file `path`, which is removed afterwards.

    Raises LockedError when another process holds it, unless `wait`, and OSError where no file can be made.
    """
    handle = _take(path, wait)
    try:
        with suppress(OSError):  # a lock on a full disk is one as well
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def holder(folder: Path) -> str | None:
    """Return the process that holds the lock of a folder; None when it is free."""
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
    """Return a handle that holds the lock of a file; one that vanished while it was locked is made anew."""
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
    """Lock an open file, and return whether its file system can. Raises LockedError with what stands in the file."""
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
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent` for unfinished work, which is removed afterwards; left ones are removed before."""
    clear(parent)
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        try:
            handle = _take(place / LOCK, wait=True)
        except FileNotFoundError:
            continue  # removed as a left one before it was locked
        break
    try:
        yield place
    finally:
        _restore(place)
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder whose files are in `target` once all of them are written, and none of them before.

    target: an empty folder, or none. Nothing is left where they are not written. Raises OSError.
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
    """Move the files of a folder into another one on the same file system, that of a name first."""
    for path in sorted(source.iterdir(), key=lambda one: (one.name != first, one.name)):
        path.replace(target / path.name)


def clear(parent: Path) -> None:
    """Remove the unfinished work of processes that are gone; what one had put aside to replace it comes back."""
    try:
        left = [path for path in parent.iterdir() if unfinished(path.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):
            _clear(path)


def _clear(path: Path) -> None:
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
        pass  # its writer lives
    finally:
        os.close(handle)


def _restore(place: Path) -> None:
    """Bring back what was put aside and not replaced."""
    aside = place / ASIDE
    if not aside.exists():
        return
    with settled(place.parent):
        for old in aside.iterdir():
            if not os.path.lexists(place.parent / old.name):
                old.rename(place.parent / old.name)


@contextmanager
def settled(parent: Path) -> Iterator[None]:
    """Keep other processes from replacing a folder in `parent`, for a moment."""
    with locked(parent / f".clustersim{LOCK}", wait=True):
        yield


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears whole or not at all; a link is followed, and a device or FIFO gets the bytes as they come.

    Raises OSError.
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
    """Write a file as `writing` does."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def saving(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as `writing` does. Raises InputError when the place cannot be written, DiskFullError."""
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
    """Return whether a path is written through, as it is no plain file: a device, a FIFO, or a stream of this process."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or (str(path.parent) in _STREAMS and stat.S_ISREG(mode))


def check_output(option: str, path: Path, endings: Collection[str], inputs: Iterable[Path] = ()) -> None:
    """Raise InputError when a file cannot be what an option writes, before any work is done.

    endings: what its name may end in, lower case with the dot; devices and FIFOs may have any name. inputs: files that
    are read, and so are never written.
    """
    if streams(path):
        return
    if not str(path).isprintable():
        raise InputError(f"{option} {str(path)!r}: is no name of a file; choose another")
    if path.suffix.lower() not in endings:
        named = [f"that ends in {' or '.join(filter(None, endings))}"] if any(endings) else []
        kinds = " or ".join([*named, "without an ending"] if "" in endings else named)
        raise InputError(f"{option} {path}: the ending says what is written; write a name {kinds}")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{option} {path}: is no file; choose another name")
        for other in inputs:
            if path.exists() and other.exists() and path.samefile(other):
                raise InputError(f"{option} {path}: is read as an input ({other}); choose another name")
        check_parent(path.resolve(), f"{option} {path}", "choose another place")
    except OSError as error:
        raise unwritable(f"{option} {path}", error) from error


def check_parent(path: Path, what: str, remedy: str) -> None:
    """Raise InputError, which names `what`, when nothing can be made in the folder of `path`, or the nearest that is there."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"{what}: cannot be written ({above} is a file); {remedy}")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{what}: cannot be written ({above} is read-only); {remedy}")
