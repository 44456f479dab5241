"""Tables that people write: every wrong cell is named by file, line and column, with what would be right."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import DataError, shown, suggest
from clustersim.files import read_table
from clustersim.lab.data.frames import parquet

YES, NO = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The cells of one file as text, by column; `places` says where each row stands, such as `own.csv:12`."""

    path: Path
    cells: dict[str, list[str]]
    places: list[str]

    def __len__(self) -> int:
        return len(self.places)

    def fail(self, row: int, column: str, remedy: str) -> NoReturn:
        """Raise DataError about one cell."""
        value = self.cells[column][row] if column in self.cells else ""
        raise DataError(f"{self.places[row]}: {column} is {shown(value) if value else 'missing'}; {remedy}")

    def texts(self, column: str, default: str = "") -> list[str]:
        """Return the cells of a column; blank ones, or those of an absent column, are `default`."""
        return [text or default for text in self.cells.get(column, [""] * len(self))]

    def words(self, column: str, known: Collection[str], default: str = "") -> list[str]:
        """Return the cells of a column, all among `known`. Raises DataError with the nearest match."""
        found = self.texts(column, default)
        for wrong in {*found} - {*known}:
            self.fail(found.index(wrong), column, suggest(wrong, filter(None, known)))
        return found

    def numbers(self, column: str, default: float | None, least: float = 0.0, whole: bool = False) -> Floats:
        """Return the cells of a column as finite numbers of at least `least`.

        Blank cells are `default`; None makes them an error. Raises DataError.
        """
        found = np.array([_number(text, default) for text in self.texts(column)], dtype=np.float64)
        optional = np.isnan(default) if default is not None else False
        blank = np.array([not text for text in self.texts(column)], dtype=bool)
        good = np.isfinite(found) & (found >= least) & ((found > 0) | (least > 0) | (default is not None))
        wrong = ~(good & ((found == np.floor(found)) | (not whole))) & ~(blank & optional)
        if wrong.any():
            kind = "whole number" if whole else "finite number"
            bound = f"of at least {least:g}" if least > 0 or default is not None else "above 0"
            self.fail(int(np.flatnonzero(wrong)[0]), column, f"write a {kind} {bound}")
        return found

    def flags(self, column: str) -> list[bool]:
        """Return the cells of a column as truth values; blank ones are false. Raises DataError."""
        texts = [text.lower() for text in self.texts(column, "0")]
        for wrong in {*texts} - {*YES, *NO}:
            self.fail(texts.index(wrong), column, "write 1 or 0")
        return [text in YES for text in texts]

    def each(self, column: str, convert: Callable[[str], str]) -> list[str]:
        """Return the cells of a column after `convert`, called once for each distinct text. Errors get their place."""
        texts, known = self.texts(column), dict[str, str]()
        for row, text in enumerate(texts):
            if text not in known:
                if not text:
                    self.fail(row, column, "every row needs one")
                try:
                    known[text] = convert(text)
                except Exception as error:
                    raise DataError(f"{self.places[row]}: {column}: {error}") from error
        return [known[text] for text in texts]


def _number(text: str, default: float | None) -> float:
    try:
        return float(text) if text else float("nan") if default is None else default
    except ValueError:
        return float("nan")


def open_table(path: Path, required: Collection[str], known: Collection[str]) -> CsvTable:
    """Return a CSV or parquet file as a table.

    Raises DataError when the file cannot be read, lacks a required column, has an unknown one, or a row of another length.
    """
    table = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    missing = [name for name in required if name not in table.cells]
    if missing:
        raise DataError(f"{path}: has no column {', '.join(missing)}; expected {', '.join(known)}")
    for name in table.cells:
        if name not in known:
            raise DataError(f"{path}: unknown column {shown(name)}; {suggest(name, known)}")
    return table


def _csv(path: Path) -> CsvTable:
    raw = read_table(path)
    try:
        reader = csv.reader(io.StringIO(raw.decode(), newline=""), strict=True)
        header = [name.strip() for name in next(reader, [])]
        rows, places = [], []
        for row in reader:
            if not any(row):
                continue
            if len(row) != len(header):
                raise DataError(f"{path}:{reader.line_num}: has {len(row)} cells; the header has {len(header)}")
            rows.append([cell.strip() for cell in row])
            places.append(f"{path}:{reader.line_num}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}; write UTF-8 text with commas") from error
    return _table(path, header, rows, places)


def _table(path: Path, header: list[str], rows: list[list[str]], places: list[str]) -> CsvTable:
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: column {shown(name)} stands there twice; keep one of them")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in header]
    return CsvTable(path, dict(zip(header, columns, strict=True)), places)


def _parquet(path: Path) -> CsvTable:
    frame = parquet(path)
    cells = {name: ["" if v is None else str(v) for v in frame[name].to_list()] for name in frame.columns}
    return CsvTable(path, cells, [f"{path}: row {row}" for row in range(1, len(frame) + 1)])
