"""Reader for the output of nccl-tests and rccl-tests (`all_reduce_perf` and others; NVIDIA/nccl-tests, src/common.cu)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from clustersim.errors import InputError, shown
from clustersim.files import read_text

_TAG = re.compile(r"^\s*\[\d+,\d+\]<std\w+>:?")  # mpirun --tag-output
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+)_perf")
_HUGE = 1 << 1000  # largest size in bytes; far larger ones overflow a float
_OPS = {"alltoall": "all_to_all", "sendrecv": "send"}
_LINE = "line of the file"


class NcclTestsLog(NamedTuple):
    """Times of one nccl-tests run."""

    seconds: dict[int, float]
    """{size in bytes: seconds}"""
    op: str | None
    """Operation by clustersim's name; None if unknown."""
    ranks: int
    """Number of ranks; 0 if unknown."""


def head(line: str) -> list[str] | None:
    """Return the column names if `line` is the header of an nccl-tests table, else None."""
    words = line.lstrip().removeprefix("#").split()
    return words if line.lstrip().startswith("#") and {"size", "count", "time", "busbw"} <= set(words) else None


def lines_of(text: str) -> list[str]:
    """Return the lines of a log without the tags that mpirun adds in front of them."""
    return [_TAG.sub("", line) for line in text.splitlines()]


def read(path: Path, lines: list[str], in_place: bool = False) -> NcclTestsLog:
    """Return the times in the `lines` of a log, out of place or in place; the median for a size with several rows.

    `path` is the file that messages name. Raises InputError for a row that does not match the header, an invalid time, and a log
    without rows.
    """
    columns: list[str] = []
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        columns = head(line) or columns
        words = line.split()
        if columns and len(words) > 1 and words[0].isdigit() and words[1].isdigit() and int(words[0]):
            where, size = f"{path}:{number}", int(words[0])
            by_size[size].append(checked(where, size, *_time(where, words, columns, in_place))[1])
    if not by_size:
        why = "has the head of nccl-tests' table and no row below it; give the output of a whole run"
        raise InputError(f"{path} {why}")
    tests = [match[1] for match in map(_TEST.match, lines) if match]
    ranks = {int(match[1]) for match in map(_RANK.match, lines) if match}
    op = _OPS.get(tests[-1], tests[-1]) if tests else None
    return NcclTestsLog(
        {size: median(times) for size, times in by_size.items()},
        op,
        len(ranks) if ranks == set(range(len(ranks))) else 0,
    )


def checked(place: str, size: int, seconds: float, text: str) -> tuple[int, float]:
    """Return (bytes, seconds) of a row. Raises InputError with `place` and `text` unless both numbers are finite and above 0."""
    if 0 < size < _HUGE and 0 < seconds < math.inf:
        return size, seconds
    raise InputError(f"{place}: {text}; times and sizes must be finite and above 0")


def _time(place: str, words: list[str], columns: list[str], in_place: bool) -> tuple[float, str]:
    """Return (seconds, text for messages) of a row. The first column `time` is out of place, the second in place.

    Raises InputError, with the place `place`, if the row does not match the columns or has an invalid time.
    """
    times = [i for i, name in enumerate(columns) if name == "time"]
    if len(words) != len(columns):
        why = f"{len(words)} columns under a head of {len(columns)}; give the output as it was printed"
        raise InputError(f"{place}: {why}")
    text = words[times[-1 if in_place else 0]]
    try:
        return float(text) * 1e-6, f"{words[0]} bytes in {text} us"
    except ValueError:
        drop = f"drop the row{', or --in-place' if in_place else ''}"
        raise InputError(f"{place}: {text} is not a time in us; {drop}") from None


def measured(path: Path, op: str, gpus: int, source: str | None = None, in_place: bool = False) -> dict[int, float]:
    """Return {size in bytes: seconds} from nccl-tests' output or from a CSV with the columns size_bytes and time_us.

    If a CSV has the columns op, gpus, source and gpu, only rows with the same op and number of GPUs count, and with `source` in
    the text of source and gpu. Raises InputError if no row or rows of several sources remain, for invalid sizes and times, and
    for the output of another operation or number of ranks.
    """
    text = read_text(path, "a CSV file, or what nccl-tests printed")
    lines = lines_of(text)
    if not any(map(head, lines)):
        return _tabled(path, text, op, gpus, source)
    log = read(path, lines, in_place)
    if log.op not in (None, op):
        raise InputError(f"{path} is a run of {log.op}, not of {op}; request {log.op}")
    if log.ranks not in (0, gpus):
        raise InputError(f"{path} is a run of {log.ranks} GPUs, not of {gpus}; name those with --gpus or --ranks")
    return log.seconds


def _tabled(path: Path, text: str, op: str, gpus: int, source: str | None) -> dict[int, float]:
    """Return {bytes: seconds} of matching CSV rows, of a size the last. Raises InputError for no row and for several sources."""
    matching = (row for row in _rows(path, text) if _matches(path, row, op, gpus, source))
    rows = [row for row in matching if row["size_bytes"] and row["time_us"]]
    if not rows:
        raise InputError(f"{path} has no row for {op} on {gpus} GPUs; it needs the columns size_bytes and time_us")
    sources = sorted({" ".join((row.get("source") or "", row.get("gpu") or "")).strip() for row in rows})
    if len(sources) > 1:
        several = f"has rows of {len(sources)} sources for {op} on {gpus} GPUs"
        raise InputError(f"{path} {several}; name one with --source: {sources[0]!r}")
    return dict(_point(path, row) for row in rows)


def _point(path: Path, row: Mapping[str, str]) -> tuple[int, float]:
    """Return (bytes, seconds) of a CSV row. Raises InputError for invalid values."""
    where, size, time = f"{path}:{row[_LINE]}", row["size_bytes"], row["time_us"]
    try:
        point = int(size), float(time) * 1e-6
    except ValueError as error:
        raise InputError(f"{where}: {error}; size_bytes must be whole, time_us a number") from None
    return checked(where, *point, f"{size} bytes in {time} us")


def _rows(path: Path, text: str) -> list[dict[str, str]]:
    """Return the CSV rows as {column: text}, with the line number under `_LINE`. Raises InputError for missing columns."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [{**row, _LINE: str(reader.line_num)} for row in reader]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file") from None
    if rows and not {"size_bytes", "time_us"} <= rows[0].keys():
        raise InputError(
            f"{path} has no columns size_bytes and time_us and is not the output of nccl-tests; "
            f"its columns are {', '.join(str(name) for name in rows[0] if name != _LINE)[:200]}"
        )
    return rows


def _matches(path: Path, row: Mapping[str, str], op: str, gpus: int, source: str | None) -> bool:
    """Return whether a row matches; without op or gpus it matches any. Raises InputError for an invalid number of GPUs."""
    row_op, count = row.get("op") or op, row.get("gpus") or str(gpus)
    if not count.strip().isdecimal():
        raise InputError(f"{path}:{row[_LINE]}: {shown(count)} is not a number of GPUs; gpus must be whole")
    text = " ".join((row.get("source") or "", row.get("gpu") or ""))
    return _OPS.get(row_op, row_op) == op and int(count) == gpus and (source is None or source in text)
