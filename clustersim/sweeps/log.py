"""The folder of a sweep: every row is on disk as soon as it is known, and a later sweep of the same question goes on from it.

manifest.json has the inputs, all points and whether the sweep is complete; points.jsonl one line a point, with its
overrides and its row; points.parquet, written at the end, the ranked table. `.lock` is there while a sweep writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clustersim.config.results import SweepLine, parsed
from clustersim.errors import DiskFullError, InputError
from clustersim.files import exists, read_bytes
from clustersim.report import store
from clustersim.report.store import Question
from clustersim.sweeps.evaluate import Row, SweepInputs, named
from clustersim.sweeps.space import Point
from clustersim.sweeps.table import frame
from clustersim.writing import LOCK, LockedError, clear, locked, settled, write

Command = Callable[[Point], str | None]
LOG = "points.jsonl"
TABLE = "points.parquet"
_LARGEST = 2**30
"""Bytes of a log that is read: several times those of the most points of a sweep."""
_FINAL = ("ok", "illegal", "does not fit")
"""Statuses that the same question has again; what failed is tried anew."""


class SweepLog:
    """The rows of a folder: `known` by key of their points as it was opened; `damaged` lines of it are left out.

    target: where the folder is. shown: as the user wrote it.
    """

    def __init__(self, target: Path, asked: Question, shown: Path) -> None:
        self.target, self.asked, self.shown = target, asked, shown
        self.points, self.known, self.damaged = read(target)

    def begin(self, space: Sequence[Point]) -> None:
        """Write what is to be simulated, and the log without what was damaged or is tried anew. Raises OSError."""
        self._write_manifest(space, complete=False)
        lines = "".join(line(self.points[name], row) for name, row in self.known.items())
        if lines.encode() != _log(self.target):
            write(self.target / LOG, lines.encode())

    def take(self, folder: Path) -> None:
        """Take over the rows of another folder of the same inputs and options. Raises InputError when it is none, and OSError."""
        if (theirs := store.question(folder)) != self.asked.digest:
            what = (
                "is a result of other inputs, fixed options or another version" if theirs else "is no folder of a sweep"
            )
            raise InputError(f"--merge {folder}: {what}; give folders of this very sweep, such as those of its shards")
        points, known, damaged = read(folder)
        new = {name: row for name, row in known.items() if name not in self.known}
        self.points |= {name: points[name] for name in new}
        self.known |= new
        self.damaged += damaged

    def found(self, case: SweepInputs, space: Sequence[Point]) -> dict[int, Row]:
        """Return the rows of points that are known, by place in `space`; also of those that other keys have said before.

        A key that is new, at the value that it had unsaid, asks for nothing new.
        """
        found = {i: self.known[name] for i, point in enumerate(space) if (name := key(point)) in self.known}
        left = [i for i in range(len(space)) if i not in found]
        said = {frozenset(space[i]) for i in left}
        others: dict[str | None, Row] = {}
        for name, row in self.known.items():
            if row["status"] == "ok" and said - {
                frozenset(self.points[name])
            }:  # those of the same keys have other values
                others[case.resolved(self.points[name])] = row
        for i in left if others else ():
            if (same := others.get(case.resolved(space[i]))) is not None:
                found[i] = named(space[i]) | same
        return found

    def append(self, point: Point, row: Row) -> None:
        """Add one row, so that a crash loses at most the row being written. Raises OSError."""
        with (self.target / LOG).open("a", encoding="utf-8") as file:
            file.write(line(point, row))

    def finish(self, space: Sequence[Point], rows: Sequence[Row], command: Command = lambda _: None) -> list[Row]:
        """Write the table of all points, put the log into order, those of earlier sweeps last, and return the rows of `space`.

        command: the line that simulates a point alone, for the column `run`, which they then have too; None for none. A point
        that is illegal has none, as its reason says all; that of one that does not fit says what would.
        """
        found = {key(point): (point, row) for point, row in zip(space, rows, strict=True)}
        found |= {name: (self.points[name], row) for name, row in self.known.items() if name not in found}
        write(self.target / LOG, "".join(line(point, row) for point, row in found.values()).encode())
        table = {
            name: row | ({"run": run} if row["status"] != "illegal" and (run := command(point)) else {})
            for name, (point, row) in found.items()
        }
        store.write_table(self.target / TABLE, frame(list(table.values())))
        self._write_manifest(space, complete=True)
        return [table[key(point)] for point in space]

    def _write_manifest(self, space: Sequence[Point], complete: bool) -> None:
        asked = {key(point): point for point in space}
        every = asked | {name: point for name, point in self.points.items() if name not in asked}
        store.write_manifest(self.target, self.asked.manifest(list(every.values()), complete))


@contextmanager
def opened(target: Path, asked: Question, force: bool = False) -> Iterator[SweepLog]:
    """Yield the log of the folder `target`, as `kept` keeps it."""
    with kept(target, asked, lambda place: _empty(place, asked), force) as (real, shown):
        yield SweepLog(real, asked, shown)


@contextmanager
def kept(
    target: Path, asked: Question, empty: Callable[[Path], None], force: bool = False
) -> Iterator[tuple[Path, Path]]:
    """Yield where the folder `target` is and as it is written; `empty` fills it where it is not there or is replaced.

    Other processes are kept out of it meanwhile. Raises InputError when the folder cannot be written, holds something else
    (another result is replaced by `force`), or another process writes it. A disk that is full before there is a line leaves no
    folder.
    """
    real, made = target.resolve(), False
    if store.question(real) != asked.digest:
        target, made = store.put(target, asked, empty, force), True
        real = target.resolve()
    with _alone(target, real):
        if store.question(real) != asked.digest:
            raise InputError(f"{target}: has just been replaced by another result; {store.ELSEWHERE}")
        clear(real)
        try:
            yield real, target
        except DiskFullError:
            if made:
                _discard(real)
            raise


def _discard(folder: Path) -> None:
    """Remove a folder none of whose logs has a line: the disk was full before anything was known."""
    with suppress(OSError):
        if not any(b"\n" in path.read_bytes() for path in folder.glob("*.jsonl")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()


@contextmanager
def _alone(target: Path, real: Path) -> Iterator[None]:
    """Hold the lock of a folder that is there. Raises InputError, which says who holds it."""
    lock = locked(real / LOCK)
    try:
        with settled(real.parent):
            lock.__enter__()
    except LockedError as error:
        raise store.in_use(target, str(error)) from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _empty(place: Path, asked: Question) -> None:
    store.write_manifest(place, asked.manifest([], complete=False))
    (place / LOG).touch()


def read(target: Path) -> tuple[dict[str, Point], dict[str, Row], int]:
    """Return the points of a log and their rows, by `key`, and how many lines are damaged.

    A last line that a crash has torn is left out and not counted; no log is one without lines. Raises InputError where it
    cannot be read.
    """
    points: dict[str, Point] = {}
    rows: dict[str, Row] = {}
    *lines, _ = _log(target).split(b"\n")
    damaged = 0
    for text in lines:
        entry = _entry(text)
        if entry is None:
            damaged += 1
        elif entry[1]["status"] in _FINAL:
            name = key(entry[0])
            points[name], rows[name] = entry
    return points, rows, damaged


def _log(target: Path) -> bytes:
    """Return the bytes of a log, none where there is none."""
    path = target / LOG
    return read_bytes(path, "the log of a sweep", _LARGEST) if exists(path) else b""


def _entry(text: bytes) -> tuple[Point, Row] | None:
    """Return the point and the row of a line; None when it is damaged."""
    try:
        found = parsed(text)
        SweepLine.model_validate(found)
    except ValueError:
        return None
    return found["point"], found["row"]


def key(point: Point) -> str:
    """Return the overrides of a point as text that does not depend on their order."""
    return json.dumps(point, sort_keys=True)


def line(point: Point, row: Row) -> str:
    """Return a line of the log."""
    return SweepLine.written(point, row)
