"""Reads tables of measurements as polars frames, with a size limit and errors that name file and column."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from clustersim.errors import DataError
from clustersim.files import read_table


def parquet(path: Path) -> pl.DataFrame:
    """Return a parquet file. Raises DataError if it cannot be read."""
    return _read(pl.read_parquet, path, "parquet")


def csv(path: Path, **options: Any) -> pl.DataFrame:
    """Return a CSV file, read with polars' options. Raises DataError if it cannot be read."""
    return _read(pl.read_csv, path, "CSV", **options)


def _read(reader: Callable[..., pl.DataFrame], path: Path, form: str, **options: Any) -> pl.DataFrame:
    """Return a file, read by a function of polars. form: name of its format. Raises DataError if it cannot be read."""
    raw = read_table(path, f"a {form} table")
    try:
        return reader(io.BytesIO(raw), **options)
    except pl.exceptions.PanicException as error:  # a fault of polars, and no Exception
        raise DataError(f"{path}: cannot be read as {form}: damaged; write it again") from error
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise DataError(f"{path}: cannot be read as {form}: {reason}; write it again") from error


def check_columns(path: Path, columns: Collection[str], wanted: Collection[str], remedy: str = "") -> None:
    """Raise DataError, with a `remedy`, if a table of some columns lacks one that is wanted."""
    if missing := [name for name in wanted if name not in columns]:
        expected = f"expected {', '.join(wanted)}"
        raise DataError(f"{path}: has no column {', '.join(missing)}; {remedy or expected}")


POINTER = b"version https://git-lfs"


def read(path: Path, texts: Sequence[str], numbers: Sequence[str], optional: Mapping[str, str]) -> pl.DataFrame:
    """Return columns of a file: `texts` as they are, `numbers` as floats, `optional` texts with a default.

    Raises DataError for a Git LFS pointer, an unreadable file, a missing column, and a cell that is not a number.
    """
    frame = _whole(path)
    check_columns(path, frame.columns, (*texts, *numbers), "check out a release that has it")
    frame = frame.with_columns(pl.lit(text).alias(name) for name, text in optional.items() if name not in frame.columns)
    floats = frame.select(pl.col(name).cast(pl.Float64, strict=False) for name in numbers)
    for name in numbers:
        wrong = floats[name].is_null().arg_max() if floats[name].has_nulls() else None
        if wrong is not None:
            raise DataError(f"{path}: row {wrong + 1}: {name} is {frame[name][wrong]!r}; it should be a number")
    return pl.concat([frame.select(pl.col(*texts, *optional).cast(pl.String)), floats], how="horizontal")


def _whole(path: Path) -> pl.DataFrame:
    """Return all columns of a parquet or CSV file, those of CSV as texts. Raises DataError."""
    if read_table(path).startswith(POINTER):
        raise DataError(f"{path}: is a Git LFS pointer; run `git lfs pull` in the checkout")
    return parquet(path) if path.suffix == ".parquet" else csv(path, infer_schema=False)
