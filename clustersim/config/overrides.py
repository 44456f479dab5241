"""Values by dotted key that override a file's: from a command line, a script, or the axes of a sweep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from clustersim.config.yaml import KEY, Document, Loc, parse
from clustersim.errors import ConfigError, InputError

SourcePlace = tuple[str, int, int]
"""(file, line, column); line and column are 0 for the whole file."""
Overrides = Mapping[str, object]
"""Values by dotted key, such as `parallelism.tp` of a workload or `cluster.nodes` of a topology."""
_INDEX = re.compile(r"[0-9]{1,9}")
_TOPOLOGY = frozenset({"cluster", "fabric", "faults", "nccl", "nodes"})


@lru_cache(maxsize=1024)
def of_topology(key: str) -> bool:
    """Return whether a dotted key belongs to a topology; all other keys belong to a workload."""
    return key.partition(".")[0] in _TOPOLOGY


def parted(overrides: Overrides) -> tuple[dict[str, object], dict[str, object]]:
    """Return (overrides of the topology, overrides of the workload)."""
    cluster = {key: value for key, value in overrides.items() if of_topology(key)}
    return cluster, {key: value for key, value in overrides.items() if key not in cluster}


@dataclass(frozen=True, slots=True)
class Overridden(Document):
    """A document with overridden values. Errors in these point to their source (path, line, column)."""

    overrides: Mapping[Loc, SourcePlace] = field(default_factory=dict, repr=False)

    def error(self, loc: Loc, message: str) -> ConfigError:
        """Return a ConfigError at `loc`, or at the source of an overridden value."""
        target = tuple(part for part in loc if part != KEY)
        parents = [key for key in self.overrides if target[: len(key)] == key]
        parts = [key for key in self.overrides if target not in self.positions and key[: len(target)] == target]
        if not parents and not parts:
            return Document.error(self, loc, message)
        return ConfigError(*self.overrides[max(parents, key=len) if parents else parts[0]], self.worded(message))

    def name(self, loc: Loc) -> str:
        """Return the file's own name of a key that the file sets; "" for a key that only an override sets."""
        return "" if loc in self.overrides else Document.name(self, loc)


def scalar(key: str, raw: object) -> object:
    """Return `raw` parsed as YAML if it is text; other values unchanged. Raises InputError, which names `key`, if invalid."""
    if not isinstance(raw, str):
        return raw
    try:
        return copied(_plain(raw))
    except ConfigError as error:
        raise InputError(f"{key}={raw}: {error.message}") from error


def as_text(value: object) -> str:
    """Return a value as text for a command line, which `scalar` parses: JSON, which is one-line YAML; text unchanged."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=1024)
def _plain(text: str) -> object:
    """Return text from a command line, parsed as a YAML value. Raises ConfigError if it is not valid YAML."""
    return parse(f"value: {text}").data["value"]  # parsing takes 0.1 ms, and the points of a sweep repeat few values


def with_values(
    document: Document, replacements: Iterable[tuple[Loc, object, str]], places: Mapping[str, SourcePlace]
) -> Overridden:
    """Return a document with values replaced, whole sections before their parts, and the sources of the values recorded.

    replacements: (position, value, dotted key that sets it). places: sources by dotted key; all others are from a command line.
    Raises ConfigError with the source if a parent is a single value, or a list is too short.
    """
    data = copied(document.data)
    sources = dict(document.overrides) if isinstance(document, Overridden) else {}
    for target, value, key in sorted(replacements, key=lambda entry: len(entry[0])):
        source = places.get(key, (f"{document.path} (command line)", 0, 0))
        try:
            sources[replace(data, target, value, key)] = source
        except InputError as error:
            raise ConfigError(*source, str(error)) from error
    return Overridden(document.path, data, document.positions, sources, notes=document.notes)


def replace(data: dict[str, Any], target: Loc, value: object, key: str) -> Loc:
    """Set a copy of a value at its position, creating parents as needed. Return the position; its numbers are indices of lists.

    A node type that is given by name becomes a section that extends it. key: dotted key for messages. Raises InputError if a
    parent is a single value, or a list is too short.
    """
    here: Any = data
    found: Loc = ()
    for part in target[:-1]:
        at = _place(here, part, found, key)
        found = (*found, at)
        inner = here.get(at) if isinstance(here, dict) else here[at]
        inner = {} if inner is None else {"extends": inner} if part == "node" and isinstance(inner, str) else inner
        if not isinstance(inner, dict | list):
            example = "cluster.nodes" if of_topology(key) else "parallelism.tp"
            raise InputError(f"{key}: {part} is a single value and has no keys; write a dotted key like {example}")
        here[at] = inner
        here = inner
    at = _place(here, target[-1], found, key)
    here[at] = copied(value)
    return (*found, at)


def _place(section: object, part: str | int, found: Loc, key: str) -> str | int:
    """Return a part of a key as a key or an index of the `section` at `found`. Raises InputError if a list does not have it."""
    if not isinstance(section, list):
        return str(part)
    if _INDEX.fullmatch(str(part)) and int(part) < len(section):
        return int(part)
    if not section:
        name = ".".join(map(str, found))
        raise InputError(f"{key}: {name} is an empty list, which has no {part}; write the whole list as {name}")
    raise InputError(f"{key}: {part} must be an index of a list of {len(section)}; write 0 to {len(section) - 1}")


def section_of(data: Mapping[str, object], *keys: str) -> Mapping[str, object]:
    """Return the section to which the keys lead; {} if it is missing or not a mapping."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, dict) else {}
    return data


def copied(data: Any) -> Any:
    """Return a copy of nested mappings and lists, so that their values can be replaced; other values are shared."""
    if isinstance(data, dict):
        return {key: copied(value) for key, value in data.items()}
    return [copied(value) for value in data] if isinstance(data, list) else data
