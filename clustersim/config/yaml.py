"""YAML text → plain data, with the place of every value.

Stricter than YAML 1.1: duplicate keys, recursive aliases, alias bombs, binary and empty files are errors, and only
`true`/`false`, decimal numbers and `null` are read as anything but text (PyYAML alone reads `no` as false, `12:30` as
750 and `1e9` as text).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml as pyyaml

from clustersim.errors import ConfigError, InputError

Loc = tuple[str | int, ...]
MAX_BYTES = 16 * 2**20
MAX_VALUES = 200_000  # after aliases are expanded: a bomb of nine lines reaches billions

_INT = re.compile(r"[+-]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?\.?(?:inf|nan)", re.IGNORECASE)
_WORDS: Mapping[str, Any] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "~": None,
    "": None,
}


@dataclass(frozen=True, slots=True)
class Document:
    """A read file: its plain `data`, and the (line, column) of every key path in `marks`."""

    path: str
    data: dict[str, Any]
    marks: dict[Loc, tuple[int, int]] = field(repr=False)

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return a ConfigError at `loc`, or at its nearest parent that the file has."""
        place = tuple(loc)
        while place and place not in self.marks:
            place = place[:-1]
        line, column = self.marks.get(place, (1, 1))
        return ConfigError(self.path, line, column, message)


def read(path: str | Path) -> Document:
    """Read one YAML file. Raises InputError when it cannot be read and ConfigError for what is wrong inside."""
    file = Path(path)
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; `ls {file.parent}` shows what is there") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: {len(raw)} bytes is too large for a description; at most {MAX_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8); write YAML") from error
    return parse(text, str(path))


def parse(text: str, path: str = "<text>") -> Document:
    """Parse YAML text; `path` is used in messages. The top level must be a mapping."""
    loader = getattr(pyyaml, "CSafeLoader", pyyaml.SafeLoader)
    try:
        root = pyyaml.compose(text, Loader=loader)
    except pyyaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError(path, line, column, f"not valid YAML: {error.problem or error.context}") from error
    except (pyyaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(path, 1, 1, f"not valid YAML: {str(error).splitlines()[0]}") from error
    if root is None:
        raise ConfigError(path, 1, 1, "the file is empty; start from one of the shipped examples")
    reader = _Reader(path)
    data = reader.value(root, (), ())
    if not isinstance(data, dict):
        raise ConfigError(path, 1, 1, f"the top level must be a mapping of keys, not {_kind(root)}")
    return Document(path, data, reader.marks)


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.marks: dict[Loc, tuple[int, int]] = {}
        self.count = 0

    def value(self, node: pyyaml.Node, loc: Loc, parents: tuple[int, ...]) -> Any:
        self.marks.setdefault(loc, (node.start_mark.line + 1, node.start_mark.column + 1))
        self.count += 1
        if id(node) in parents:
            raise self.error(node, "an alias (*) inside its own anchor (&) never ends; write the values out")
        if self.count > MAX_VALUES or len(parents) > 100:
            raise self.error(node, f"more than {MAX_VALUES} values or 100 levels after aliases; write a smaller file")
        if isinstance(node, pyyaml.MappingNode):
            return self.mapping(node, loc, (*parents, id(node)))
        if isinstance(node, pyyaml.SequenceNode):
            inner = (*parents, id(node))
            return [self.value(item, (*loc, i), inner) for i, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: pyyaml.MappingNode, loc: Loc, parents: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, pyyaml.ScalarNode):
                raise self.error(key_node, "a key must be a word")
            key = key_node.value
            if key == "<<":
                raise self.error(key_node, "merge keys (<<) are not supported; use `extends:` or write the keys out")
            if key in result:
                raise self.error(key_node, f"duplicate key {key!r}; keep one of the two")
            self.marks[(*loc, key)] = (value_node.start_mark.line + 1, value_node.start_mark.column + 1)
            result[key] = self.value(value_node, (*loc, key), parents)
        return result

    def scalar(self, node: pyyaml.ScalarNode) -> Any:
        text = node.value
        if node.style in ("'", '"', "|", ">"):
            return text
        if not node.tag.startswith("tag:yaml.org,2002:"):
            raise self.error(node, f"the tag {node.tag} is not supported; write the plain value")
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text) and len(text) <= 40:
            return int(text)
        if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
            raise self.error(node, f"{text[:40]} is not a finite number")
        if _FLOAT.fullmatch(text):
            return float(text)
        return text

    def error(self, node: pyyaml.Node, message: str) -> ConfigError:
        return ConfigError(self.path, node.start_mark.line + 1, node.start_mark.column + 1, message)


def _kind(node: pyyaml.Node) -> str:
    return {"SequenceNode": "a list", "ScalarNode": "a single value"}.get(type(node).__name__, "this")
