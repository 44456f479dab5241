"""YAML text → plain data, with the position of every value.

Stricter than YAML 1.1: duplicate keys, tags, recursive aliases, alias bombs, binary and empty files are errors, and only
`true`/`false`, decimal numbers and `null` are not text (plain PyYAML reads `no` as false, `12:30` as 750 and `1e9` as text).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.config.yaml_tree import MAX_DEPTH, MAX_VALUES, YamlNode, compose
from clustersim.errors import ConfigError, shown
from clustersim.files import read_text

Loc = tuple[str | int, ...]
"""Position of a value in a document: keys of mappings and indices of lists, from the outside inwards."""
KEY = -1
"""Last part of a Loc that means the key itself instead of its value."""

_INT = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")
_ROUND = re.compile(r"([+-]?[0-9]+)[eE]\+?([0-9]{1,2})")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DOTTED = re.compile(r"\b[a-z]\w*(?:\.\w+)+")
_NOT_FINITE = re.compile(r"[+-]?\.?(?:inf|nan)", re.IGNORECASE)
_MOST_DIGITS = 40
_EXACT = 2**53  # up to here 1e9 is equal as an integer and as a float
WORDS: Mapping[str, Any] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "~": None,
    "": None,
}
"""{unquoted text: value that it stands for}"""


class Position(NamedTuple):
    """Position of a value: line and column in a file, or keys in a Python mapping."""

    line: int
    """Line from 1; 0 in a Python mapping."""
    column: int
    """Column from 1; in a Python mapping the number of positions before it, so that errors sort in the order of the mapping."""
    keys: str = ""
    """Keys in a Python mapping, such as `['model']['layers']`."""
    name: str = ""
    """Name of the key in the file, if it differs from the workload's."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file, or a Python mapping (`clustersim.config.mapping`)."""

    path: str
    """Path as the user wrote it, or what the mapping describes: `cluster`, `workload`."""
    data: dict[str, Any]
    """Plain mappings, lists, text, numbers, true, false and null."""
    positions: dict[Loc, Position] = field(repr=False)
    """Position of the value at every key path; at a path that ends in `KEY`, of the key itself. Values behind an alias have the
    anchor's position."""
    notes: tuple[str, ...] = field(default=(), repr=False, kw_only=True)
    """Sentences on what an override of values leaves as it is."""

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return a ConfigError at `loc`, or at its nearest parent in the file."""
        place = tuple(loc)
        while place and place not in self.positions:
            place = place[:-1]
        line, column, keys, _ = self.positions.get(place, Position(1, 1))
        return ConfigError(self.path + keys, line, column, self.worded(message))

    def worded(self, message: str) -> str:
        """Return a message with the file's own names for keys such as `model.heads`."""
        return _DOTTED.sub(lambda match: self.name(tuple(match[0].split("."))) or match[0], message)

    def name(self, loc: Loc) -> str:
        """Return the file's own name of a key; "" if it has none."""
        return self.positions[loc].name if loc in self.positions else ""


def read_packaged(path: Path) -> Document:
    """Return a file of the package itself, which does not count as an input, because the version identifies it."""
    return parse(path.read_text(encoding="utf-8"), str(path))


def read(path: str | Path, what: str = "a YAML file", foreign: bool = False) -> Document:
    """Return the document of a YAML or JSON file. Raises InputError if it cannot be read, and ConfigError for invalid content.

    what: name of the kind of file in messages. foreign: as in `parse`.
    """
    return parse(read_text(path, what), str(path), foreign)


def parse(text: str, path: str = "<text>", foreign: bool = False) -> Document:
    """Return YAML text that is a mapping as a document. Raises ConfigError for invalid text.

    path: name of the text in messages. foreign: duplicate keys (the last one counts) and `<<` merges are allowed.
    """
    root = compose(text, path)
    if root is None or (root.kind == "scalar" and not root.text and not root.quoted):
        raise ConfigError(path, 1, 1, "the file is empty; start from one of the shipped examples")
    if root.kind != "mapping":
        kind = "a list" if root.kind == "list" else "a single value"
        why = f"the top level must be a mapping of keys, not {kind}; write `key: value`; `clustersim import` reads other files"
        raise ConfigError(path, *root.place, why)
    reader = _Reader(path, foreign)
    if reader.count(root, 0, {}) > 2 * MAX_VALUES:
        raise reader.too_many(root)
    return Document(path, reader.value(root, ()), reader.positions)


class _Reader:
    def __init__(self, path: str, foreign: bool = False) -> None:
        self.path, self.foreign, self.positions = path, foreign, dict[Loc, Position]()

    def count(self, node: YamlNode, depth: int, known: dict[int, int]) -> int:
        """Return the number of values in a node, aliases at each use. Raises ConfigError if too deep. known: counts by id."""
        if id(node) not in known:
            if depth > MAX_DEPTH:
                raise self.too_many(node)
            known[id(node)] = 1 + sum(self.count(item, depth + 1, known) for item in node.items)
        return known[id(node)]

    def too_many(self, node: YamlNode) -> ConfigError:
        """Return the error for a node in which a document exceeds its limits."""
        return self.error(node, f"more than {MAX_VALUES} values or {MAX_DEPTH} levels after aliases; write them out")

    def value(self, node: YamlNode, loc: Loc) -> Any:
        """Return a node as plain data, and record the position of every value in it. Raises ConfigError for invalid values."""
        self.positions[loc] = Position(*node.place)
        if len(loc) > MAX_DEPTH:
            raise self.too_many(node)
        if node.kind == "mapping":
            return self.mapping(node, loc)
        if node.kind == "list":
            return [self.value(item, (*loc, i)) for i, item in enumerate(node.items)]
        return node.text if node.quoted else self.plain(node)

    def mapping(self, node: YamlNode, loc: Loc) -> dict[str, Any]:
        """Return a mapping as plain data. Raises ConfigError for a key that is not a word or, unless `foreign`, a duplicate."""
        result: dict[str, Any] = {}
        for key_node, value_node in zip(node.items[::2], node.items[1::2], strict=True):
            key = key_node.text
            if key_node.kind != "scalar":
                raise self.error(key_node, "a key must be a word, not a list or a mapping; write `key: value`")
            if key == "<<" and self.foreign and value_node.kind == "mapping":
                result = {**self.mapping(value_node, loc), **result}
                continue
            if key == "<<" and not key_node.quoted:
                raise self.error(key_node, "merge keys (<<) are not supported; write the keys out")
            if key in result and not self.foreign:
                raise self.error(key_node, f"duplicate key {shown(key)}; keep one of the two")
            self.positions[(*loc, key, KEY)] = Position(*key_node.place)
            result[key] = self.value(value_node, (*loc, key))
        return result

    def plain(self, node: YamlNode) -> Any:
        """Return unquoted text as a number, true, false, null or text. Raises ConfigError for numbers that are not finite."""
        text = node.text
        if text in WORDS:
            return WORDS[text]
        if len(text) > _MOST_DIGITS and (_INT.fullmatch(text) or _FLOAT.fullmatch(text)):
            raise self.error(
                node, f"{text[:40]}… has more than {_MOST_DIGITS} digits; write fewer, or put text in quotes"
            )
        if _INT.fullmatch(text):
            return int(text)
        if (match := _ROUND.fullmatch(text)) and abs(number := int(match[1]) * 10 ** int(match[2])) <= _EXACT:
            return number
        if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
            raise self.error(node, f"{text[:40]} is not a finite number; write one, or put text in quotes")
        return float(text) if _FLOAT.fullmatch(text) else text

    def error(self, node: YamlNode, message: str) -> ConfigError:
        """Return the error at the line and column of a node."""
        return ConfigError(self.path, *node.place, message)
