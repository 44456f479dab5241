"""Tables of names in other tools: `tables/*.csv` have the workload key of each, and the conversion of values in both directions.

A column `values` is empty if values are equal, `not` if booleans are inverted, pairs such as `rope=rotary yarn=rotary true=fused`
(theirs=ours; the first of several is written, `-` sets nothing), or `@name` of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from clustersim.config.yaml import Loc, parse

FOLDER = Path(__file__).parent / "tables"
"""Folder of the tables."""
PLAIN: Mapping[str, str | bool | int | None] = {"true": True, "false": False, "-": None, "": None}
"""{word of a table: its value}, for words that do not stand for themselves."""
Conversion = Callable[[object], object]
"""Function from another tool's value to ours."""


class Alias(NamedTuple):
    """One argument or setting of another tool, and the workload key that it sets."""

    name: str
    key: Loc
    """Key of a workload."""
    values: str
    """Conversion of values, as written in the column `values` of the table."""
    function: Conversion | None
    columns: Mapping[str, str]
    """Further columns of the row, by name."""

    def read(self, value: object) -> object:
        """Return our value for theirs, None if it sets nothing. An unknown word is returned, for validation to reject."""
        if self.function is not None:
            return self.function(value)
        if self.values == "not":
            return not value if isinstance(value, bool) else value
        if not self.values:
            return value
        left_out = None if value is False else value
        return next((ours for theirs, ours in self._pairs() if same(theirs, value)), left_out)

    def write(self, value: object) -> object:
        """Return their value for ours, None if the table has no value of theirs for it."""
        if self.values == "not":
            return not value if isinstance(value, bool) else None
        if self.function is not None or not self.values:
            return value
        return next((theirs for theirs, ours in self._pairs() if same(ours, value)), None)

    @property
    def words(self) -> list[object]:
        """Values of the other tool that the table lists; [] if it accepts any value."""
        texts = dict.fromkeys(pair.partition("=")[0] for pair in self.values.split())
        return [plain(text) for text in texts] if "=" in self.values else []

    def _pairs(self) -> list[tuple[object, object]]:
        """Return the (theirs, ours) pairs in the column `values`."""
        halves = (pair.partition("=") for pair in self.values.split())
        return [(plain(theirs), plain(ours)) for theirs, _, ours in halves]


def same(value: object, other: object) -> bool:
    """Return whether two values are equal and of one type: true and 1 are not the same."""
    return value == other and type(value) is type(other)


def plain(word: str) -> object:
    """Return the value of a word in a table: a number, true or false, None for `-` or no text, else the word."""
    if word.lstrip("-").isdecimal():
        return int(word)
    return float(word) if word.replace(".", "", 1).isdecimal() else PLAIN.get(word, word)


@cache
def lines(name: str) -> list[str]:
    """Return the lines of a file in `tables/` that are neither empty nor comments."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def words(name: str) -> tuple[str, ...]:
    """Return all words of a file in `tables/`, named with its suffix; lines that begin with # are comments."""
    return tuple(word for line in lines(name) for word in line.split())


def records(name: str) -> list[dict[str, str]]:
    """Return the rows of `tables/NAME.csv` as {column: text}. Only texts of the last column may contain commas."""
    first, *rest = lines(f"{name}.csv")
    head = first.split(",")
    return [dict(zip(head, row.split(",", len(head) - 1), strict=True)) for row in rest]


def records_of(name: str) -> dict[str, dict[str, object]]:
    """Return the content of `tables/NAME.yaml`, {name: {key: value}}."""
    return dict(parse((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), foreign=True).data)
