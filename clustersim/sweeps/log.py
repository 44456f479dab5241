"""The folder of a sweep: every row is on disk as soon as it is known, and a later sweep of the same question resumes from it.

manifest.json has the inputs, all points and whether the sweep is complete; points.jsonl one line per point, with its overrides
and its row; points.parquet, written at the end, the ranked table. `.lock` exists while a sweep writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clustersim.config.results import Manifest, SweepLine, parsed
from clustersim.errors import DiskFullError, InputError
from clustersim.files import exists, read_bytes
from clustersim.report import store
from clustersim.sweeps.evaluate import Row, SweepInputs, named
from clustersim.sweeps.space import Point
from clustersim.sweeps.table import frame
from clustersim.writing import LOCK, LockedError, clear, locked, settled, write

Command = Callable[[Point], str | None]
LOG = "points.jsonl"
TABLE = "points.parquet"
_LARGEST = 2**30
"""Largest size of a log in bytes: several times that of the largest sweep."""
_FINAL = ("ok", "illegal", "does not fit")
"""Statuses that are final for a question; failed points are simulated again."""


class SweepLog:
    """Rows in the folder `target`, which messages call `shown`. `known`: rows found when opened; `damaged`: skipped lines."""

    def __init__(self, target: Path, question: Manifest, shown: Path) -> None:
        self.target, self.question, self.shown = target, question, shown
        self.points, self.known, self.damaged = read(target)

    def begin(self, space: Sequence[Point]) -> None:
        """Write the list of points, and the log without damaged lines and rows to repeat. Raises OSError if that fails."""
        self._write_manifest(space, complete=False)
        lines = "".join(SweepLine.written(self.points[name], row) for name, row in self.known.items())
        if lines.encode() != _log(self.target):
            write(self.target / LOG, lines.encode())

    def take(self, folder: Path) -> None:
        """Add the rows of another folder with the same inputs and options. Raises InputError otherwise, and OSError."""
        if (theirs := store.question_digest(folder)) != self.question.question:
            what = (
                "is a result of other inputs, fixed options or another version" if theirs else "is no folder of a sweep"
            )
            raise InputError(f"--merge {folder}: {what}; give folders of this very sweep, such as those of its shards")
        points, known, damaged = read(folder)
        new = {name: row for name, row in known.items() if name not in self.known}
        self.points |= {name: points[name] for name in new}
        self.known |= new
        self.damaged += damaged

    def known_rows(self, case: SweepInputs, space: Sequence[Point]) -> dict[int, Row]:
        """Return {index in `space`: row} of known points, also of those written without a new key that has its former default."""
        rows = {i: self.known[name] for i, point in enumerate(space) if (name := key(point)) in self.known}
        left = [i for i in range(len(space)) if i not in rows]
        key_sets = {frozenset(space[i]) for i in left}
        others: dict[str | None, Row] = {}
        for name, row in self.known.items():
            # points of the same keys have other values
            if row["status"] == "ok" and key_sets - {frozenset(self.points[name])}:
                others[case.resolved(self.points[name])] = row
        for i in left if others else ():
            if (same := others.get(case.resolved(space[i]))) is not None:
                rows[i] = named(space[i]) | same
        return rows

    def append(self, point: Point, row: Row) -> None:
        """Add one row, so that a crash loses at most the row being written. Raises OSError if it cannot be written."""
        with (self.target / LOG).open("a", encoding="utf-8") as file:
            file.write(SweepLine.written(point, row))

    def finish(self, space: Sequence[Point], rows: Sequence[Row], command: Command = lambda _: None) -> list[Row]:
        """Write the table of all points, and sort the log, rows of earlier sweeps last. Return the rows of `space`.

        command: command line for a single point, added to the rows as column `run`; None for none. Illegal points have none,
        because their reason says all; that of a point that does not fit shows a remedy.
        """
        entries = {key(point): (point, row) for point, row in zip(space, rows, strict=True)}
        entries |= {name: (self.points[name], row) for name, row in self.known.items() if name not in entries}
        write(self.target / LOG, "".join(SweepLine.written(point, row) for point, row in entries.values()).encode())
        table = {
            name: row | ({"run": run} if row["status"] != "illegal" and (run := command(point)) else {})
            for name, (point, row) in entries.items()
        }
        store.write_table(self.target / TABLE, frame(list(table.values())))
        self._write_manifest(space, complete=True)
        return [table[key(point)] for point in space]

    def _write_manifest(self, space: Sequence[Point], complete: bool) -> None:
        """Write the manifest with the points of `space` and earlier ones. complete: whether the sweep is finished."""
        points = {key(point): point for point in space}
        every = points | {name: point for name, point in self.points.items() if name not in points}
        store.write_manifest(self.target, self.question, points=list(every.values()), complete=complete)


@contextmanager
def opened(target: Path, question: Manifest, force: bool = False) -> Iterator[SweepLog]:
    """Yield the log of the folder `target`, under the rules of `kept`."""

    def empty(place: Path) -> None:
        """Write a manifest and a log without points."""
        store.write_manifest(place, question, points=[], complete=False)
        (place / LOG).touch()

    with kept(target, question, empty, force) as (real, shown):
        yield SweepLog(real, question, shown)


@contextmanager
def kept(
    target: Path, question: Manifest, empty: Callable[[Path], None], force: bool = False
) -> Iterator[tuple[Path, Path]]:
    """Yield (real path, path as written) of the folder `target`; `empty` fills it if it is new or replaced.

    Other processes cannot write it meanwhile. If `target` has another result, the folder is the next free one, as `target-2`,
    or with `force` replaces that result. Raises InputError if it cannot be written, has files that are not of a result, or is
    being written by another process, and DiskFullError. A disk that is full before the first line leaves no folder.
    """
    real, created = target.resolve(), False
    if store.question_digest(real) != question.question:
        target, created = store.put(target, question, empty, force), True
        real = target.resolve()
    with _locked(target, real):
        if store.question_digest(real) != question.question:
            raise InputError(f"{target}: has just been replaced by another result; {store.ELSEWHERE}")
        clear(real)
        try:
            yield real, target
        except DiskFullError:
            if created:
                _discard(real)
            raise


def _discard(folder: Path) -> None:
    """Remove a folder whose logs have no lines, because the disk was full from the start."""
    with suppress(OSError):
        if not any(b"\n" in path.read_bytes() for path in folder.glob("*.jsonl")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()


@contextmanager
def _locked(target: Path, real: Path) -> Iterator[None]:
    """Hold the lock of an existing folder. Raises InputError that names the process that holds it."""
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


def read(target: Path) -> tuple[dict[str, Point], dict[str, Row], int]:
    """Return (points by `key`, rows by `key`, number of damaged lines) of the log in the folder `target`, without failed points.

    A last line truncated by a crash is skipped and not counted; a missing log is empty. Raises InputError if it cannot be read.
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
    """Return the content of a log, b"" if it is missing."""
    path = target / LOG
    return read_bytes(path, "the log of a sweep", _LARGEST) if exists(path) else b""


def _entry(text: bytes) -> tuple[Point, Row] | None:
    """Return the point and the row of a line; None if it is damaged."""
    try:
        entry = parsed(text)
        SweepLine.model_validate(entry)
    except ValueError:
        return None
    return entry["point"], entry["row"]


def key(point: Point) -> str:
    """Return the overrides of a point as text that does not depend on their order."""
    return json.dumps(point, sort_keys=True)
