"""Text and parquet tables of checkouts, column by column, with errors that name the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.errors import DataError
from clustersim.files import read_table
from clustersim.lab.data import frames

if TYPE_CHECKING:
    import polars as pl

POINTER = b"version https://git-lfs"


def read(path: Path, texts: Sequence[str], numbers: Sequence[str], optional: Mapping[str, str]) -> pl.DataFrame:
    """Return columns of one file: `texts` as they are, `numbers` as floats, `optional` texts with a default.

    Raises DataError for a file that is a Git LFS pointer, cannot be read, lacks a column, or holds a cell that is no number.
    """
    import polars as pl

    frame = _whole(path)
    missing = [name for name in (*texts, *numbers) if name not in frame.columns]
    if missing:
        raise DataError(f"{path}: has no column {', '.join(missing)}; check out a release that has it")
    frame = frame.with_columns(pl.lit(text).alias(name) for name, text in optional.items() if name not in frame.columns)
    floats = frame.select(pl.col(name).cast(pl.Float64, strict=False) for name in numbers)
    for name in numbers:
        wrong = floats[name].is_null().arg_max() if floats[name].has_nulls() else None
        if wrong is not None:
            raise DataError(f"{path}: row {wrong + 1}: {name} is {frame[name][wrong]!r}; it should be a number")
    return pl.concat([frame.select(pl.col(*texts, *optional).cast(pl.String)), floats], how="horizontal")


def _whole(path: Path) -> pl.DataFrame:
    if read_table(path).startswith(POINTER):
        raise DataError(f"{path}: is a Git LFS pointer; run `git lfs pull` in the checkout")
    return frames.parquet(path) if path.suffix == ".parquet" else frames.csv(path, infer_schema=False)
