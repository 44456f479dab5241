"""What nccl-tests prints (`all_reduce_perf` and its kin, NVIDIA/nccl-tests, src/common.cu; rccl-tests alike), read back."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from clustersim.errors import InputError

_TAG = re.compile(r"^\s*\[\d+,\d+\]<std\w+>:?")  # mpirun --tag-output
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+)_perf")
_HUGE = 1 << 1000  # near where a float of bytes is no more finite
_OPS = {"alltoall": "all_to_all", "sendrecv": "send"}


class Log(NamedTuple):
    """Seconds by size in bytes, and the operation (None: not said) and number of ranks (0: not said) of the run."""

    seconds: dict[int, float]
    op: str | None
    ranks: int


def head(line: str) -> list[str] | None:
    """Return the names of the columns if the line is nccl-tests' head of its table."""
    words = line.lstrip().removeprefix("#").split()
    return words if line.lstrip().startswith("#") and {"size", "count", "time", "busbw"} <= set(words) else None


def lines_of(text: str) -> list[str]:
    """Return the lines of a log without the tags that mpirun puts before them."""
    return [_TAG.sub("", line) for line in text.splitlines()]


def read(path: Path, lines: list[str], in_place: bool = False) -> Log:
    """Return the times of a log, out of place or in place; of a size that comes several times the median.

    Raises InputError for a row that does not fit the head, a time that is none, and a log without rows.
    """
    columns: list[str] = []
    found: defaultdict[int, list[float]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        columns = head(line) or columns
        words = line.split()
        if columns and len(words) > 1 and words[0].isdigit() and words[1].isdigit() and int(words[0]):
            where, size = f"{path}:{number}", int(words[0])
            found[size].append(checked(where, size, *_time(where, words, columns, in_place))[1])
    if not found:
        raise InputError(
            f"{path} has the head of nccl-tests' table and no row below it; give the output of a whole run"
        )
    tests = [match[1] for match in map(_TEST.match, lines) if match]
    ranks = {int(match[1]) for match in map(_RANK.match, lines) if match}
    op = _OPS.get(tests[-1], tests[-1]) if tests else None
    return Log(
        {size: median(times) for size, times in found.items()}, op, len(ranks) if ranks == set(range(len(ranks))) else 0
    )


def checked(where: str, size: int, seconds: float, text: str) -> tuple[int, float]:
    """Return bytes and seconds of a row. Raises InputError, with its place and text, unless both are finite and above 0."""
    if 0 < size < _HUGE and 0 < seconds < math.inf:
        return size, seconds
    raise InputError(f"{where}: {text}; times and sizes must be finite and above 0")


def _time(where: str, words: list[str], columns: list[str], in_place: bool) -> tuple[float, str]:
    """Return the seconds in a row, and its text: the first column `time` is out of place, the second in place."""
    times = [i for i, name in enumerate(columns) if name == "time"]
    if len(words) != len(columns):
        raise InputError(
            f"{where}: {len(words)} columns under a head of {len(columns)}; give the output as it was printed"
        )
    text = words[times[-1 if in_place else 0]]
    try:
        return float(text) * 1e-6, f"{words[0]} bytes in {text} us"
    except ValueError:
        drop = f"drop the row{', or --in-place' if in_place else ''}"
        raise InputError(f"{where}: {text} is no time in us; {drop}") from None
