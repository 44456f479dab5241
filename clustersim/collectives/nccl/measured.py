"""Measured times of nccl-tests from a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from clustersim.errors import InputError

_SPELT = {"alltoall": "all_to_all", "sendrecv": "send"}


def measured(path: Path, op: str, gpus: int, source: str | None = None) -> dict[int, float]:
    """Return {size in bytes: seconds} of a CSV with the columns size_bytes and time_us.

    Of a file that has the columns op, gpus and source, the rows that match. Raises InputError when nothing is left, or
    when rows of several sources are.
    """
    rows = [row for row in _rows(path) if _matches(row, op, gpus, source) and row["size_bytes"] and row["time_us"]]
    if not rows:
        raise InputError(f"{path} has no row for {op} on {gpus} GPUs; it needs the columns size_bytes and time_us")
    sources = sorted({" ".join((row.get("source") or "", row.get("gpu") or "")).strip() for row in rows})
    if len(sources) > 1:
        raise InputError(
            f"{path} has rows of {len(sources)} sources for {op} on {gpus} GPUs; name one with --source: {sources[0]!r}"
        )
    try:
        return {int(row["size_bytes"]): float(row["time_us"]) * 1e-6 for row in rows}
    except ValueError as error:
        raise InputError(f"{path}: {error}; size_bytes must be whole, time_us a number") from None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file") from None
    if rows and not {"size_bytes", "time_us"} <= rows[0].keys():
        raise InputError(
            f"{path} lacks the columns size_bytes and time_us; its columns are {', '.join(map(str, rows[0]))}"
        )
    return rows


def _matches(row: Mapping[str, str], op: str, gpus: int, source: str | None) -> bool:
    own = row.get("op") or op
    text = " ".join((row.get("source") or "", row.get("gpu") or ""))
    return _SPELT.get(own, own) == op and int(row.get("gpus") or gpus) == gpus and (source is None or source in text)
