"""The space of a sweep: axes of overrides, and every combination of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from clustersim.errors import InputError

AXES: Mapping[str, str] = {
    "tp": "parallelism.tp",
    "pp": "parallelism.pp",
    "dp": "parallelism.dp",
    "ep": "parallelism.ep",
    "vpp": "parallelism.vpp",
    "schedule": "parallelism.schedule",
    "zero": "parallelism.zero",
    "micro_batch": "training.micro_batch",
    "global_batch": "training.global_batch",
    "recompute": "training.recompute",
    "precision": "training.precision",
}
"""Short name of an axis → dotted key of the workload."""

Point = dict[str, object]
MOST = 100_000
"""Points of one sweep."""


def points(axes: Mapping[str, Sequence[object]]) -> Iterator[Point]:
    """Yield every combination as overrides by dotted key, the last axis fastest. Raises InputError when they are too many."""
    names = [name for name, values in axes.items() if values]
    count = prod(len(axes[name]) for name in names)
    if count > MOST:
        raise InputError(f"{count} points are too many for one sweep; give shorter lists, at most {MOST} combinations")
    for combination in product(*(axes[name] for name in names)):
        yield {AXES.get(name, name): value for name, value in zip(names, combination, strict=True)}


def numbers(option: str, text: str | None) -> list[int]:
    """Return the whole numbers of an option such as `--tp 1,2,4`; ranges `1-4` are allowed. Raises InputError."""
    result: list[int] = []
    for part in words(option, text):
        low, _, high = part.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()) or int(low) < 1 or (high and int(high) < int(low)):
            raise InputError(f"--{option}: {part!r} is not a whole number of 1 or more; write a list like 1,2,4 or 1-4")
        if high and int(high) - int(low) > 10_000:
            raise InputError(f"--{option}: {part!r} is more than 10,000 values; write a shorter range")
        result += range(int(low), int(high or low) + 1)
    return list(dict.fromkeys(result))


def words(option: str, text: str | None) -> list[str]:
    """Return the parts of a comma-separated option without repetitions. Raises InputError when it has none."""
    parts = list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    if text is not None and not parts:
        raise InputError(f"--{option}: no value; write a list with commas between")
    return parts
