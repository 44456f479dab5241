"""docs/constants.md and its tables: every declared constant, with its source and its effect on a step."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from io import StringIO
from operator import getitem
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints
from zlib import crc32

import yaml
from constants_effects import BY, STEPS, Effect

import clustersim
from clustersim.config.evidence import Declared, Evidence

PageCells = Mapping[str, Sequence[str]]
"""{constant: texts of its effect, one per reference step}"""
ROOM = Path(clustersim.__file__).parent
MOST = 10
"""Number of rows in the table of the most important constants."""
ROW = ("constant", "value", "unit", "belongs to", "source", "chosen on", *STEPS)
"""Columns of the table of numbers."""
UNKNOWN = "not recorded"
"""Prefix of the rows whose origin was not recorded."""


class DeclaredConstant(NamedTuple):
    """A constant as its module declares it."""

    name: str
    """Name below `clustersim`, such as `hardware.constants.FIBRE`, or `config.topology.Nics.efficiency` for a key of a file."""
    value: Any
    known: Declared
    source: str
    """Docstring below it."""


class ReadValue(NamedTuple):
    """A value that was read from published steps."""

    place: str
    """File below `clustersim` and key, or name of the evidence."""
    known: Mapping[str, Any]
    """Fields of `config.evidence.StepEvidence`."""


def declared() -> list[DeclaredConstant]:
    """Return every constant that a module declares, and those for keys of files, by module."""
    found: list[DeclaredConstant] = []
    for path in sorted(ROOM.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "import Declared" in text:
            name = ".".join(path.relative_to(ROOM).with_suffix("").parts).removesuffix(".__init__")
            found += _declared(name, import_module(f"clustersim.{name}"), ast.parse(text).body)
    return found


def _declared(name: str, owner: Any, body: Sequence[ast.stmt]) -> Iterator[DeclaredConstant]:
    """Yield the constants of a module or class from its statements."""
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            yield from _declared(f"{name}.{node.name}", getattr(owner, node.name), node.body)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own = node.target.id
            one = SimpleNamespace(__annotations__={own: owner.__annotations__[own]})
            if "Annotated" in ast.unparse(node.annotation):
                hint = get_type_hints(one, vars(owner), include_extras=True)[own]
                text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
                source = " ".join(str(text).split())
                for known in hint.__metadata__ if hasattr(hint, "__metadata__") else ():
                    if isinstance(known, Declared):
                        yield DeclaredConstant(f"{name}.{own}", getattr(owner, own, None), known, source)


def numbers() -> list[DeclaredConstant]:
    """Return the constants in code, without those for keys of files."""
    return [one for one in declared() if not one.known.family]


def read_values() -> Iterator[ReadValue]:
    """Yield every value that was read from published steps: in files of GPUs, nodes and frameworks, and in code."""
    for path in sorted(ROOM.rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "read_from" in text:
            yield from _read(f"{path.relative_to(ROOM)}", yaml.safe_load(text), "")
    for path in sorted(ROOM.rglob("*.py")):
        if "Evidence(" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOM).with_suffix("").parts)
            for own, value in vars(import_module(f"clustersim.{name}")).items():
                several = value if isinstance(value, Mapping) else {"": value}
                for key, one in several.items():
                    if isinstance(one, Evidence):
                        yield ReadValue(f"{name}.{own}{f'[{key}]' if key else ''}", one.model_dump())


def _read(file: str, data: Any, key: str) -> Iterator[ReadValue]:
    """Yield the values in a part of a file, whose key is `key`."""
    if isinstance(data, Mapping) and "evidence" in data:
        for name, one in data["evidence"].items():
            yield ReadValue(f"{file}: {name}", {"value": reduce(getitem, name.split("."), data), **one})
    elif isinstance(data, Mapping) and "read_from" in data:
        yield ReadValue(f"{file}: {key}", {"value": data.get("values"), **data})
    elif isinstance(data, Mapping | list):
        for name, inner in data.items() if isinstance(data, Mapping) else enumerate(data):
            yield from _read(file, inner, f"{key}.{name}" if key else str(name))


def page(cells: PageCells) -> str:
    """Return docs/constants.md with these effects."""
    constants = declared()
    own = [one for one in constants if not one.known.family]
    steps = [
        f"{name} is `{w}` on `{c}`{''.join(f', {k} {v}' for k, v in o.items())}" for name, (c, w, o) in STEPS.items()
    ]
    most = sorted(cells, key=lambda name: -_largest(cells[name]))[:MOST]
    return _PAGE.format(
        by=f"{100 * BY:g} %",
        steps="; ".join(steps),
        most=_table(("constant", *STEPS), ((f"`{name}`", *cells[name]) for name in most)),
        machines="\n".join(
            f"- {one.known.family}, `{one.name}`: {one.known.spread:g} ({one.known.scope}; {one.known.chosen_on})"
            for one in constants
            if one.known.family
        ),
        places=sum(1 for _ in read_values()),
        unknown=sum(one.known.chosen_on.startswith(UNKNOWN) for one in own),
        count=len(own),
    )


def numbers_table(cells: PageCells) -> str:
    """Return docs/constants.csv with these effects; `?` for a constant without."""
    return _csv(
        ROW,
        (
            (
                *(one.name, shown(one.value), one.known.unit, one.known.scope, one.source),
                *(one.known.chosen_on, *cells.get(one.name, ["?"] * len(STEPS))),
            )
            for one in numbers()
        ),
    )


def read_values_table() -> str:
    """Return docs/constants_from_steps.csv."""
    return _csv(
        ("where", "value", "without them", "publishers", "source"),
        (
            (one.place, *(_said(one.known.get(key)) for key in ("value", "otherwise", "read_from", "source")))
            for one in read_values()
        ),
    )


def _csv(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)


def cells(effect: Effect) -> list[str]:
    """Return an effect as the cells of its row: percent at -10 % and +10 %, or a dash if nothing changes."""
    return ["–" if low == high == 0 else f"{_percent(low)} / {_percent(high)}" for low, high in effect.values()]


def read(text: str) -> dict[str, list[str]]:
    """Return {constant: cells of its effect} of a table of numbers."""
    return {row["constant"]: [row[step] for step in STEPS] for row in csv.DictReader(text.splitlines())}


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:+.2g} %"


def _largest(row: Sequence[str]) -> float:
    words = " ".join(row).replace("–", "0").replace("?", "0").replace("/", " ").replace("%", " ").split()
    return max(abs(float(word)) for word in words)


def shown(value: Any) -> str:
    """Return a value as text: all numbers of a short table; of a long one their count, range and checksum."""
    found = list(_numbers(value))
    if len(found) <= 7:
        return ", ".join(f"{number:.6g}" for number in found)
    return f"{len(found)} numbers, {min(found):.4g} to {max(found):.4g}, check {crc32(repr(found).encode()):08x}"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield value
        return
    for inner in value.values() if isinstance(value, Mapping) else value:
        yield from _numbers(inner)


_PAGE = """# Constants

clustersim has {count} numbers that are neither from a datasheet nor learned. [constants.csv](constants.csv) lists each with its
value, unit, source, the measurements it was chosen on, and its effect on a step. This page is printed from their declarations in
the code. Learned parameters are in the [model card](model-card.md); datasheets, frameworks, prices and failures are files in
`clustersim/`, each figure with its source.

## What matters most

Change of the step time with the constant {by} smaller, and {by} larger. All numbers of a table change at once. {steps}.

{most}

{unknown} of all were chosen on rows that were not recorded.

## What differs between machines

Each factor, with the spread of its logarithm and what that was chosen on, for [calibration](calibrate.md) and the uncertainty
of a step.

{machines}

## Read from published steps

[constants_from_steps.csv](constants_from_steps.csv) has {places} values of hardware and framework files that were read from
published steps, with their publishers and the value without them.
"""
