"""The rows of a sweep on disk and in order of speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.sweep.evaluate import Row

if TYPE_CHECKING:
    import polars as pl


def append(path: Path, row: Row) -> None:
    """Add one row to the log of a sweep, so that a crash loses at most the row being written."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a result, fastest per token first; ties keep their order."""
    done = [row for row in rows if row["status"] == "ok"]
    return sorted(done, key=lambda row: -row["tokens_per_s"])


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Return all rows as a polars table, those without a result last; columns in order of appearance."""
    import polars as pl

    rest = [row for row in rows if row["status"] != "ok"]
    ordered = [*ranked(rows), *rest]
    columns = dict.fromkeys(key for row in ordered for key in row)
    return pl.DataFrame([{key: row.get(key) for key in columns} for row in ordered], infer_schema_length=None)
