"""Plain data from a Python mapping, with the keys that lead to every value: a YAML file's content from a script."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from clustersim.config.yaml import KEY, Document, Loc, Position
from clustersim.config.yaml_tree import MAX_DEPTH, MAX_VALUES
from clustersim.errors import ConfigError, shown

_MOST = 10**40


def document(content: Mapping[Any, Any], path: str) -> Document:
    """Return a mapping as a document called `path` in messages, which name its keys: `workload['model']`.

    Values are text, numbers (numpy's too), True, False, None, paths, lists, tuples, mappings of these, else ConfigError is
    raised.
    """
    reader = _MappingReader(path)
    return Document(path, reader.mapping(content, ()), reader.positions)


def plain(value: object, path: str) -> Any:
    """Return one value as plain data. Raises ConfigError for unsupported values, which it calls `path`."""
    return _MappingReader(path).value(value, ())


class _MappingReader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.positions: dict[Loc, Position] = {}

    def mapping(self, content: Mapping[Any, Any], loc: Loc) -> dict[str, Any]:
        """Return a mapping with its values as plain data. Raises ConfigError for a key that is not text."""
        self.note(loc)
        result: dict[str, Any] = {}
        for key, value in content.items():
            if not isinstance(key, str):
                raise self.error(loc, f"the key {shown(key)} is not text; write it in quotes")
            self.positions[(*loc, key, KEY)] = self.at((*loc, key))
            result[key] = self.value(value, (*loc, key))
        return result

    def value(self, value: Any, loc: Loc) -> Any:
        """Return a value as plain data, and record its position. Raises ConfigError for unsupported values."""
        self.note(loc)
        if hasattr(value, "tolist"):  # a number or an array of numpy
            value = value.tolist()
        if isinstance(value, Mapping):
            return self.mapping(value, loc)
        if isinstance(value, list | tuple | range):
            return [self.value(item, (*loc, i)) for i, item in enumerate(value)]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str | PurePath):
            return str(value)
        return self.number(value, loc)

    def number(self, value: object, loc: Loc) -> int | float:
        """Return a number as int or float. Raises ConfigError unless it is finite and has at most 40 digits."""
        if isinstance(value, Integral) and abs(value) < _MOST:  # type: ignore[operator]
            return int(value)
        if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
            return float(value)
        if isinstance(value, Real):
            raise self.error(loc, "not a finite number of at most 40 digits; write one")
        what = f"{shown(value)} is nothing that a file could say"
        raise self.error(loc, f"{what}; give text, a number, True, False, None, a list or a mapping")

    def note(self, loc: Loc) -> None:
        """Record the position of a value. Raises ConfigError for too many values or levels."""
        self.positions[loc] = self.at(loc)
        if len(loc) > MAX_DEPTH or len(self.positions) > 2 * MAX_VALUES:
            raise self.error(loc[:1], f"more than {MAX_VALUES} values or {MAX_DEPTH} levels; give fewer")

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return the error for a position, with its keys after the path."""
        return ConfigError(self.path + self.at(loc).keys, 0, 0, message)

    def at(self, loc: Loc) -> Position:
        """Return a new position, with the keys as text such as `['model'][0]`."""
        return Position(0, len(self.positions), "".join(f"[{part!r}]" for part in loc))
