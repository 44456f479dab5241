"""Values by dotted key that override a file's: from a command line, a script, or the axes of a sweep."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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


def loc_of(key: str) -> Loc:
    """Return a dotted key as a position in a document, in which numbers are indices of lists."""
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in key.split("."))


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
        for key, place in self.overrides.items():
            if target[: len(key)] == key or (target not in self.positions and key[: len(target)] == target):
                return ConfigError(*place, self.worded(message))
        return Document.error(self, loc, message)

    def name(self, loc: Loc) -> str:
        """Return the file's own name of a key that the file sets; "" for a key that only an override sets."""
        return "" if loc in self.overrides else Document.name(self, loc)


def scalar(key: str, raw: object) -> object:
    """Return text from a command line parsed as YAML; other values unchanged. Raises InputError if it is invalid."""
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


def replace(data: dict[str, Any], target: Loc, value: object, key: str) -> None:
    """Set a value at its position, creating parents as needed; a number is an index of a list.

    A node type that is given by name becomes a section that extends it. key: dotted key for messages. Raises InputError if a
    parent is a single value, or a list is too short.
    """
    here: Any = data
    for part in target[:-1]:
        at = _place(here, part, key)
        inner = here.get(at) if isinstance(here, dict) else here[at]
        inner = {} if inner is None else {"extends": inner} if part == "node" and isinstance(inner, str) else inner
        if not isinstance(inner, dict | list):
            example = "cluster.nodes" if of_topology(key) else "parallelism.tp"
            raise InputError(f"{key}: {part} is a single value and has no keys; write a dotted key like {example}")
        here[at] = inner
        here = inner
    here[_place(here, target[-1], key)] = value


def _place(section: object, part: str | int, key: str) -> str | int:
    """Return a part of a key as a key or an index of `section`. Raises InputError if a list does not have it."""
    if not isinstance(section, list):
        return str(part)
    if isinstance(part, int) and part < len(section):
        return part
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
