"""The rows of a sweep on disk and in order of speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clustersim.sweeps.evaluate import Row

if TYPE_CHECKING:
    import polars as pl

COUNTED = {
    "points_simulated": "ok",
    "points_not_fitting": "does not fit",
    "points_illegal": "illegal",
    "points_failed": "failed",
}
"""Name of a count → the `status` of the rows that it counts."""


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a result, fastest per token first; ties keep their order."""
    done = [row for row in rows if row["status"] == "ok"]
    return sorted(done, key=lambda row: -row["tokens_per_s"])


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many points were asked for, and how many of them came to each end."""
    ends = Counter(row["status"] for row in rows)
    return {"points": len(rows), **{name: ends[status] for name, status in COUNTED.items()}}


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Return all rows as a polars table, those without a result last; columns in order of appearance.

    Words among numbers, such as `auto` for a degree that an illegal point leaves open, become null.
    """
    import polars as pl

    ordered = [*ranked(rows), *(row for row in rows if row["status"] != "ok")]
    names = dict.fromkeys(key for row in ordered for key in row)
    return pl.DataFrame({name: _one_type([row.get(name) for row in ordered]) for name in names}, strict=False)


def _one_type(values: list[Any]) -> list[Any]:
    numeric = any(isinstance(value, int | float) for value in values)
    return [None if numeric and isinstance(value, str) else value for value in values]
