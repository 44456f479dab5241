"""Rows of a sweep as a table, sorted by speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from operator import le
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError, suggest
from clustersim.parallel.options import RUN_OPTIONS
from clustersim.sweeps.evaluate import Row

if TYPE_CHECKING:
    import polars as pl

COUNTED = {
    "points_simulated": "ok",
    "points_not_fitting": "does not fit",
    "points_illegal": "illegal",
    "points_failed": "failed",
}
"""{name of a count: `status` of the rows that it counts}"""
WORDS = {option.name for option in RUN_OPTIONS if option.form == "word"}
"""Columns of options whose values are words."""

HIGHER = ("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu", "model_tflops_per_gpu", "mfu")
"""Columns where a higher value is better; in all others lower is better."""
FRONT = {
    "step": "step_time_s",
    "memory": "peak_memory_bytes",
    "gpus": "ranks",
    "rent": "usd_per_1t_tokens",
    "owned": "usd_owned_per_1t_tokens",
    "energy": "kwh_per_1t_tokens",
}
"""{short name: column} of the objectives of a Pareto front, by which rows are sorted too."""


def ranked(rows: Sequence[Row], sort: Sequence[str] = ("tokens_per_s",)) -> list[Row]:
    """Return the rows with a result, the best first by each column of `sort` in turn; ties keep their order.

    sort: columns or names in FRONT, `-` reverses: `-step_time_s`. Rows without a number are last. Raises InputError if unknown.
    """
    ordered = [row for row in rows if row["status"] == "ok"]
    for key in reversed(sort):
        wanted, turned = key.removeprefix("-"), key.startswith("-")
        known = {column for row in ordered for column in row}
        name = wanted if wanted in known else FRONT.get(wanted, wanted)
        if ordered and name not in known:
            names = known | {short for short, column in FRONT.items() if column in known}
            raise InputError(f"--sort {wanted}: no column has that name; {suggest(wanted, names)}")
        numbers = [row for row in ordered if isinstance(row.get(name), int | float)]
        words = [row for row in ordered if not isinstance(row.get(name), int | float)]
        sign = -1 if (name in HIGHER) != turned else 1
        order = sorted((sign * row[name], index) for index, row in enumerate(numbers))
        spoken = sorted(((str(row.get(name)), index) for index, row in enumerate(words)), reverse=turned)
        ordered = [*(numbers[index] for _, index in order), *(words[index] for _, index in spoken)]
    return ordered


def front(rows: Sequence[Row], what: Sequence[str]) -> list[Row]:
    """Return the Pareto front for `what` (of `FRONT`): rows that no other dominates, in order. Unknown amounts are largest."""
    simulated = [row for row in rows if row["status"] == "ok"]
    amounts = [[math.inf if (known := row.get(FRONT[name])) is None else known for name in what] for row in simulated]
    return [simulated[index] for index in undominated(amounts)]


def undominated(values: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the rows of values that no other row dominates: none is as low in all and lower in one."""
    kept: list[int] = []
    # a row that dominates another comes before it
    for index in sorted(range(len(values)), key=lambda index: [*values[index]]):
        row = values[index]
        if not any(values[other] != row and all(map(le, values[other], row)) for other in kept):
            kept.append(index)
    return sorted(kept)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of `points`, and of points with each status by the names in COUNTED."""
    ends = Counter(row["status"] for row in rows)
    return {"points": len(rows), **{name: ends[status] for name, status in COUNTED.items()}}


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Return all rows as a polars table, those without a result last; columns in order of appearance.

    Words among numbers, such as `auto` for an open degree of an illegal point, become null; in a column of words, such as clocks
    with `sustained` and 0.7, all values are text.
    """
    import polars as pl

    ordered = [*ranked(rows), *(row for row in rows if row["status"] != "ok")]
    names = dict.fromkeys(key for row in ordered for key in row)
    return pl.DataFrame({name: _one_type(name, [row.get(name) for row in ordered]) for name in names}, strict=False)


def _one_type(name: str, values: list[Any]) -> list[Any]:
    """Return values of a column with one type: numbers, with None for text, or all as text if `name` is in WORDS."""
    numeric = any(isinstance(value, int | float) for value in values)
    if numeric and name in WORDS and any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    return [None if numeric and isinstance(value, str) else value for value in values]
