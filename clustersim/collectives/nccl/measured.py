"""Measured times of nccl-tests: what it printed, or a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from clustersim.collectives.nccl.log import head, lines_of, read
from clustersim.errors import InputError

_SPELT = {"alltoall": "all_to_all", "sendrecv": "send"}


def measured(path: Path, op: str, gpus: int, source: str | None = None, in_place: bool = False) -> dict[int, float]:
    """Return {size in bytes: seconds} of nccl-tests' own output, or of a CSV with the columns size_bytes and time_us.

    Of a CSV that has the columns op, gpus and source, the rows that match. Raises InputError when nothing is left, when
    rows of several sources are, and for the output of another operation or number of ranks.
    """
    lines = lines_of(_text(path))
    if any(map(head, lines)):
        return _logged(path, lines, op, gpus, in_place)
    return _tabled(path, op, gpus, source)


def _logged(path: Path, lines: list[str], op: str, gpus: int, in_place: bool) -> dict[int, float]:
    log = read(path, lines, in_place)
    if log.op not in (None, op):
        raise InputError(f"{path} is a run of {log.op}, not of {op}; ask for {log.op}")
    if log.ranks not in (0, gpus):
        raise InputError(f"{path} is a run of {log.ranks} GPUs, not of {gpus}; name those with --gpus or --ranks")
    return log.seconds


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file, or what nccl-tests printed") from None


def _tabled(path: Path, op: str, gpus: int, source: str | None) -> dict[int, float]:
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
            f"{path} lacks the columns size_bytes and time_us, and is no output of nccl-tests; "
            f"its columns are {', '.join(map(str, rows[0]))[:200]}"
        )
    return rows


def _matches(row: Mapping[str, str], op: str, gpus: int, source: str | None) -> bool:
    own = row.get("op") or op
    text = " ".join((row.get("source") or "", row.get("gpu") or ""))
    return _SPELT.get(own, own) == op and int(row.get("gpus") or gpus) == gpus and (source is None or source in text)
