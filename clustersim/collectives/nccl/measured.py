"""Measured times of nccl-tests: what it printed, or a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from clustersim.collectives.nccl.log import checked, head, lines_of, read
from clustersim.errors import InputError, shown
from clustersim.files import read_text

_SPELT = {"alltoall": "all_to_all", "sendrecv": "send"}
_LINE = "line of the file"


def measured(path: Path, op: str, gpus: int, source: str | None = None, in_place: bool = False) -> dict[int, float]:
    """Return {size in bytes: seconds} of nccl-tests' own output, or of a CSV with the columns size_bytes and time_us.

    Of a CSV that has the columns op, gpus and source, the rows that match. Raises InputError when nothing is left, when
    rows of several sources are, for a size or a time that is none, and for the output of another operation or number of ranks.
    """
    text = read_text(path, "a CSV file, or what nccl-tests printed")
    lines = lines_of(text)
    if any(map(head, lines)):
        return _logged(path, lines, op, gpus, in_place)
    return _tabled(path, text, op, gpus, source)


def _logged(path: Path, lines: list[str], op: str, gpus: int, in_place: bool) -> dict[int, float]:
    log = read(path, lines, in_place)
    if log.op not in (None, op):
        raise InputError(f"{path} is a run of {log.op}, not of {op}; ask for {log.op}")
    if log.ranks not in (0, gpus):
        raise InputError(f"{path} is a run of {log.ranks} GPUs, not of {gpus}; name those with --gpus or --ranks")
    return log.seconds


def _tabled(path: Path, text: str, op: str, gpus: int, source: str | None) -> dict[int, float]:
    rows = [row for row in _rows(path, text) if _matches(path, row, op, gpus, source) and _filled(row)]
    if not rows:
        raise InputError(f"{path} has no row for {op} on {gpus} GPUs; it needs the columns size_bytes and time_us")
    sources = sorted({" ".join((row.get("source") or "", row.get("gpu") or "")).strip() for row in rows})
    if len(sources) > 1:
        raise InputError(
            f"{path} has rows of {len(sources)} sources for {op} on {gpus} GPUs; name one with --source: {sources[0]!r}"
        )
    return dict(_point(path, row) for row in rows)


def _filled(row: Mapping[str, str]) -> bool:
    return bool(row["size_bytes"] and row["time_us"])


def _point(path: Path, row: Mapping[str, str]) -> tuple[int, float]:
    """Return the bytes and the seconds in a row."""
    where, size, time = f"{path}:{row[_LINE]}", row["size_bytes"], row["time_us"]
    try:
        point = int(size), float(time) * 1e-6
    except ValueError as error:
        raise InputError(f"{where}: {error}; size_bytes must be whole, time_us a number") from None
    return checked(where, *point, f"{size} bytes in {time} us")


def _rows(path: Path, text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [{**row, _LINE: str(reader.line_num)} for row in reader]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file") from None
    if rows and not {"size_bytes", "time_us"} <= rows[0].keys():
        raise InputError(
            f"{path} lacks the columns size_bytes and time_us, and is no output of nccl-tests; "
            f"its columns are {', '.join(str(name) for name in rows[0] if name != _LINE)[:200]}"
        )
    return rows


def _matches(path: Path, row: Mapping[str, str], op: str, gpus: int, source: str | None) -> bool:
    own, count = row.get("op") or op, row.get("gpus") or str(gpus)
    if not count.strip().isdecimal():
        raise InputError(f"{path}:{row[_LINE]}: {shown(count)} is no number of GPUs; gpus must be whole")
    text = " ".join((row.get("source") or "", row.get("gpu") or ""))
    return _SPELT.get(own, own) == op and int(count) == gpus and (source is None or source in text)
