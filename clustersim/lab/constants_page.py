"""docs/constants.md: the table of constants with what each does to a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from clustersim.lab.constants_effects import BY, STEPS, Effect
from clustersim.lab.constants_table import CONSTANTS, UNKNOWN, StatedConstant
from clustersim.lab.constants_without_row import OTHER

PageCells = Mapping[str, Sequence[str]]
"""By name of a constant: what the page says of its effect, a cell a reference step."""
MOST = 10
"""Rows of the table of those that matter most."""


def page(cells: PageCells) -> str:
    """Return docs/constants.md with these effects; a constant without any is marked."""
    own = [_row(one, cells) for one in CONSTANTS]
    steps = [
        f"{name} is `{w}` on `{c}`{''.join(f', {k} {v}' for k, v in o.items())}" for name, (c, w, o) in STEPS.items()
    ]
    headings = " | ".join(STEPS)
    most = sorted(cells, key=lambda name: -_largest(cells[name]))[:MOST]
    head = (
        f"| constant | value | unit | source | chosen on | {headings} |\n| --- | --- | --- | --- | --- |"
        + " ---: |" * len(STEPS)
    )
    return _PAGE.format(
        by=f"{100 * BY:g} %",
        steps="; ".join(steps),
        most="\n".join(f"| `{name}` | {' | '.join(cells[name])} |" for name in most),
        most_head=f"| constant | {headings} |\n| --- |" + " ---: |" * len(STEPS),
        rows="\n".join([head, *own]),
        others="\n".join(f"- {why}: {', '.join(f'`{name}`' for name in names)}" for why, names in OTHER.items()),
        unknown=sum(one.rows.startswith(UNKNOWN) for one in CONSTANTS),
        count=len(CONSTANTS),
    )


def cells(effect: Effect) -> list[str]:
    """Return an effect as the cells of its row: percent at -10 % and +10 %, or a dash where nothing changes."""
    return ["–" if low == high == 0 else f"{_percent(low)} / {_percent(high)}" for low, high in effect.values()]


def read(text: str) -> dict[str, list[str]]:
    """Return the effects that a page has, by name of their constant."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) == 5 + len(STEPS) and parts[0].startswith("`"):
            found[parts[0].strip("`")] = parts[5:]
    return found


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:+.2g} %"


def _largest(row: Sequence[str]) -> float:
    words = " ".join(row).replace("–", "0").replace("?", "0").replace("/", " ").replace("%", " ").split()
    return max(abs(float(word)) for word in words)


def _row(one: StatedConstant, cells: PageCells) -> str:
    own = cells.get(one.name, ["?"] * len(STEPS))
    return f"| `{one.name}` | {shown(one.value)} | {one.unit} | {one.source} | {one.rows} | {' | '.join(own)} |"


def shown(value: Any) -> str:
    """Return a value for the page: all numbers of a short table, of a long one how many, their range and a check."""
    numbers = list(_numbers(value))
    if len(numbers) <= 7:
        return ", ".join(f"{number:.6g}" for number in numbers)
    return (
        f"{len(numbers)} numbers, {min(numbers):.4g} to {max(numbers):.4g}, check {crc32(repr(numbers).encode()):08x}"
    )


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield value
        return
    for inner in value.values() if isinstance(value, Mapping) else value:
        yield from _numbers(inner)


_PAGE = """# Constants

Which numbers are in clustersim that are neither of a datasheet nor learned, where are they from, and what do they do to a step?
Here are all {count}. {unknown} of them were chosen on rows that nobody wrote down. Beside most of these stand measured rows, and
how far off their forecasts are in the mean with the constant {by} less, as it is, and {by} more. (What was learned was learned
with it as it is.)

What is learned stands in the [model card](model-card.md), what a datasheet says in `clustersim/hardware/`, what frameworks do in
`clustersim/frameworks/`, prices in `clustersim/costs/defaults.yaml`, failures in `clustersim/planning/reliability.yaml`: each
with its source. A test holds this page and the code together; `scripts/update-constants NAME` measures an effect anew.

The last columns are the change of a step's time when the constant is {by} less, and {by} more. A dash: none, often because that
machine has a figure of its own. Every number of a table is changed at once. {steps}.

## What matters most

{most_head}
{most}

## All of them

Names are modules below `clustersim`.

{rows}

## Numbers without a row

The rest of what stands in capitals in the rooms of kernels, collectives, models and memory is

{others}

Formulas of NCCL's tuner (`clustersim/collectives/nccl/model.py`, `tuner.py`) hold numbers of its source besides.
"""
