"""Rows that are appended one by one to a CSV: a killed run keeps them, a new one goes on after them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustersim.errors import DataError, InputError
from clustersim.files import TABLE, exists, read_text
from clustersim.writing import unwritable


class MeasurementLog:
    """A CSV of fixed columns; `key` names those that tell rows apart."""

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path, self.columns, self.key = path, tuple(columns), tuple(key)
        self.known = {self._key(row) for row in self._begin()}

    def __contains__(self, row: Mapping[str, object]) -> bool:
        """Return whether a row of the same key is there already."""
        return self._key(row) in self.known

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row so that it survives the end of the process. Raises DataError."""
        self._write(_line([_text(row.get(name, "")) for name in self.columns]), "a")
        self.known.add(self._key(row))

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(_text(row.get(name, "")) for name in self.key)

    def _begin(self) -> list[dict[str, str]]:
        """Return the rows of an earlier run, without a last line that was cut off; begin the file where there is none."""
        if not exists(self.path) or not self.path.stat().st_size:
            self._write(_line(list(self.columns)), "w")
            return []
        try:
            text = read_text(self.path, "a CSV table of this profiler with --out", TABLE)
        except InputError as error:
            raise DataError(str(error)) from error
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole))
        if tuple(reader.fieldnames or ()) != self.columns:
            raise DataError(f"{self.path}:1: is no table of this profiler; name another file with --out")
        if whole != text:
            self._write(whole, "w")
        return list(reader)

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error, "name another file with --out") from error


def _line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _text(value: object) -> str:
    """Return a cell: blank for NaN and nothing, seven digits of a float, 1 and 0 for truth."""
    if value is None or value != value:  # noqa: PLR0124
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.7g}" if isinstance(value, float) else str(value)
