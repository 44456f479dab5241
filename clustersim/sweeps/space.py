"""The space of a sweep: axes of overrides, and every combination of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod

from clustersim.config.overrides import SourcePlace
from clustersim.errors import ClustersimError, InputError
from clustersim.parallel.options import KEYS
from clustersim.topology import options as cluster_options

Point = dict[str, object]
NODES, SCHEDULE, VPP = "cluster.nodes", KEYS["schedule"], KEYS["vpp"]
MOST = 100_000
"""Largest number of points of a sweep."""


@dataclass(frozen=True, slots=True)
class SweepSpace:
    """Swept and fixed values of a sweep, by dotted key."""

    axes: Mapping[str, Sequence[object]]
    fixed: Mapping[str, object]
    by_set: frozenset[str] = frozenset()
    """Keys that came from `--set`."""
    auto: tuple[str, ...] = ()
    """Keys whose legal values are all tried, for each combination of the others."""
    places: Mapping[str, SourcePlace] = field(default_factory=dict)
    """Positions of keys that came from a file."""

    def space(self) -> list[Point]:
        """Return all points, with `auto` keys still open. Raises InputError if there are too many."""
        chunks = self.fixed.get(VPP)
        axes = dict(self.axes)
        if SCHEDULE in axes and chunks is not None:
            axes[VPP] = numbers("vpp", str(chunks))
        if VPP in self.auto:
            return [{**self.fixed, **point} for point in _product(axes)]
        return [{**self.fixed, **point} for point in points(axes)]


def varied(space: Sequence[Point]) -> list[str]:
    """Return the keys with several values in a space: those of a cluster, options of a workload, others."""
    values: dict[str, set[str]] = {}
    for point in space:
        for key, value in point.items():
            values.setdefault(key, set()).add(str(value))
    order = [*(option.key for option in cluster_options.OPTIONS), *KEYS.values(), *values]
    return sorted((key for key, texts in values.items() if len(texts) > 1), key=order.index)


def points(axes: Mapping[str, Sequence[object]]) -> Iterator[Point]:
    """Yield every combination as overrides by dotted key, the last axis fastest; axes are named by key or by option.

    Each schedule is combined with the chunks that it supports: 1f1b next to interleaved keeps vpp 1. A schedule that supports a
    single other number, such as dualpipev, gets it. Raises InputError if there are too many.
    """
    by_key = {KEYS.get(name, name): tuple(values) for name, values in axes.items() if values}
    names = by_key.get(SCHEDULE, ())
    if len(names) < 2 and (VPP in by_key or all(takes(str(name), 1) for name in names)):
        yield from _product(by_key)
        return
    parts = [by_key | {SCHEDULE: (name,)} | _chunks(str(name), by_key.get(VPP)) for name in by_key[SCHEDULE]]
    bounded(sum(prod(map(len, part.values())) for part in parts))
    for part in parts:
        yield from _product(part)


def _product(axes: Mapping[str, Sequence[object]]) -> Iterator[Point]:
    """Yield a point for each combination of values. Raises InputError for too many."""
    bounded(prod(map(len, axes.values())))
    for combination in product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def bounded(count: int, *, total: bool = True) -> None:
    """Raise InputError if a sweep has too many points. total: whether `count` is the total and not a partial count."""
    if count > MOST:
        most = f"at most {MOST:,} combinations, or `clustersim optimize`, which simulates few of them"
        many = f"{count:,}" if total else f"more than {MOST:,}"
        raise InputError(f"{many} points are too many; give shorter lists, {most}")


def _chunks(schedule: str, requested: Sequence[object] | None) -> dict[str, tuple[object, ...]]:
    """Return {VPP: chunks of a schedule}: requested ones that it supports, else its only number, else all; {} for the default."""
    can = tuple(value for value in range(1, 9) if takes(schedule, value))
    usual = can if len(can) == 1 else can[:1] if can[:1] == (1,) else ()
    if requested is None:
        return {VPP: usual} if len(can) == 1 else {}
    legal = tuple(value for value in requested if isinstance(value, int) and takes(schedule, value))
    return {VPP: legal or usual or tuple(requested)}


def takes(schedule: str, chunks: int) -> bool:
    """Return whether a schedule supports `chunks` chunks per rank, tested on the smallest pipeline, also for plugins."""
    from clustersim import plugins
    from clustersim.schedules.check import ROOM

    return (_tried if plugins.outside(ROOM, schedule) else _known)(schedule, min(chunks, 8))


def _tried(schedule: str, chunks: int) -> bool:
    """Return whether a schedule can be created with this number of chunks per rank."""
    from clustersim.schedules.check import load

    try:
        load(schedule.partition("/")[0], 2, 4, chunks)
    except ClustersimError:
        return False
    return True


_known = lru_cache(maxsize=1024)(_tried)


_RANGE = re.compile(r"(\d+)(?:(?:-|\.\.)(\d+)(?:x(\d+))?)?")


def numbers(option: str, text: str | None, least: int = 1) -> list[int]:
    """Return the integers from `least` on in `1,2,4`, `1-4`, `64..4096x2` (times 2); [] for None. Raises InputError otherwise."""
    result: list[int] = []
    for part in words(option, text):
        match = _RANGE.fullmatch(part)
        low, high, factor = (int(digits) if digits else 0 for digits in (match.groups() if match else ("", "", "")))
        if match and match[2] and high < low:
            raise InputError(f"--{option}: {part!r} begins above its end; write the smaller number first")
        if match and match[3] and factor < 2:
            raise InputError(f"--{option}: {part!r} never grows; multiply by 2 or more, such as {low}..{high}x2")
        if match is None or low < least or (factor and not low):
            raise InputError(
                f"--{option}: {part!r} is not a whole number of {least} or more; "
                f"write a list like {'1,2,4, 1-4 or 64..4096x2' if least else '0,1'}"
            )
        if not factor and high - low > 10_000:
            raise InputError(f"--{option}: {part!r} is more than 10,000 values; write a shorter range")
        result += _range(low, high or low, factor)
    return list(dict.fromkeys(result))


def _range(low: int, high: int, factor: int) -> list[int]:
    """Return low, low + 1, … up to high; with a factor low, low · factor, … up to high."""
    if not factor:
        return list(range(low, high + 1))
    values = [low]
    while values[-1] * factor <= high:
        values.append(values[-1] * factor)
    return values


def degrees(option: str, text: str | None) -> list[int | str]:
    """Return the numbers of `option` in a text, then `auto` if it is there. Raises InputError for anything else."""
    parts = words(option, text)
    counted = numbers(option, ",".join(part for part in parts if part != "auto") or None)
    return [*counted, *(["auto"] if "auto" in parts else [])]


def listed(text: str) -> list[str]:
    """Return the parts of a YAML value between its commas, except those inside brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not (depth or quote):
            parts.append("")
        else:
            parts[-1] += sign
    return list(dict.fromkeys(part.strip() for part in parts))


def words(option: str, text: str | None) -> list[str]:
    """Return the distinct parts of the comma-separated text of `option`; [] for None. Raises InputError if a text has none."""
    parts = list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    if text is not None and not parts:
        raise InputError(f"--{option}: no value; write a list with commas between")
    return parts
