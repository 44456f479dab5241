"""YAML text → a tree of nodes with their positions; depth, size, aliases, tags and documents are limited.

PyYAML's own composer recurses in C and crashes the process on deep nesting, so this one builds the tree from events.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal

import yaml as pyyaml

from clustersim.errors import ConfigError, shown

MAX_DEPTH = 100
MAX_VALUES = 200_000  # after aliases are expanded: a bomb of nine lines reaches billions

_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A character beyond the first 65,536 as JSON escapes it, in two halves that YAML does not know."""
_SHORTER = 11
"""Characters by which such a character is shorter than its escapes."""
_TOO_DEEP = "exceeded maximum nesting depth"
_REMEDIES = {
    "found character that cannot start any token": "indent with spaces, not tabs, and quote text that begins with @ or `",
    "mapping values are not allowed in this context": "indent keys of one level alike, and quote text that holds `: `",
    "found a tab character that violates indentation": "indent with spaces, not tabs",
    "did not find expected <document start>": "keep one document a file; `clustersim import` reads other files",
}


@dataclass(slots=True, eq=False)
class YamlNode:
    """One value of the text; `items` of a mapping are key, value, key, value, …."""

    kind: Literal["mapping", "list", "scalar"]
    place: tuple[int, int]
    text: str = ""
    quoted: bool = False
    items: list[YamlNode] = field(default_factory=list)


def compose(text: str, path: str) -> YamlNode | None:
    """Return the root node of YAML text, None for empty text. Raises ConfigError with the position of an error."""
    root: YamlNode | None = None
    inside: list[YamlNode] = []
    anchors: dict[str, YamlNode] = {}
    count = 0
    joined: list[int] = []
    if text.lstrip().startswith("{"):  # JSON, whatever its name
        joined = [pair.start() - _SHORTER * number for number, pair in enumerate(_PAIR.finditer(text))]
        text = _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)
    for event in _events(text, path, joined):
        place = _place(event.start_mark, joined)
        error = partial(ConfigError, path, *place)
        if isinstance(event, pyyaml.CollectionEndEvent):
            inside.pop()
        elif isinstance(event, pyyaml.DocumentStartEvent) and root is not None:
            raise error("a second document starts here; keep one document a file")
        elif isinstance(event, pyyaml.NodeEvent):
            is_alias = isinstance(event, pyyaml.AliasEvent)
            node = anchors.get(event.anchor or "") if is_alias else _node(event, path, place)
            if node is None:
                raise error(f"no anchor &{event.anchor} stands before this alias; write the value out")
            if is_alias and any(node is parent for parent in inside):
                raise error("an alias (*) inside its own anchor (&) never ends; write the values out")
            if not is_alias and event.anchor is not None:
                anchors[event.anchor] = node
            count += not is_alias
            if count > MAX_VALUES:
                raise error(f"more than {MAX_VALUES} values; write a smaller file")
            root = root or node
            if inside:
                inside[-1].items.append(node)
            if node.kind != "scalar" and not is_alias:
                inside.append(node)
            if len(inside) > MAX_DEPTH:
                raise error(f"more than {MAX_DEPTH} levels of nesting; write a flatter file")
    return root


def _node(event: pyyaml.NodeEvent, path: str, place: tuple[int, int]) -> YamlNode:
    """Return an event at `place` that is not an alias as a node without items. Raises ConfigError for a tag."""
    if (tag := getattr(event, "tag", None)) is not None:
        raise ConfigError(path, *place, f"the tag {shown(tag)} is not supported; write the plain value")
    if isinstance(event, pyyaml.ScalarEvent):
        return YamlNode("scalar", place, event.value, quoted=bool(event.style))
    return YamlNode("mapping" if isinstance(event, pyyaml.MappingStartEvent) else "list", place)


def _events(text: str, path: str, joined: Sequence[int], skipped: int = 0) -> Iterator[pyyaml.Event]:
    """Yield the parser's events without the first `skipped`. Raises ConfigError with the position of invalid YAML.

    joined: ascending indices of the characters in `text` that stand for a pair of escapes in the file.
    """
    loader = getattr(pyyaml, "CSafeLoader", pyyaml.SafeLoader)
    try:
        for event in islice(pyyaml.parse(text, Loader=loader), skipped, None):
            skipped += 1
            yield event
    except pyyaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.problem == _TOO_DEEP and mark:
            # PyYAML 6.0.4 scans 1,000 brackets ahead and refuses them before their events arrive. Without the last bracket
            # the events do arrive, and the composer says where its own limit is exceeded.
            yield from _events(text[: mark.index], path, joined, skipped)
            return
        problem = str(error.problem or error.context)
        message = "; ".join(filter(None, (problem, _REMEDIES.get(problem))))
        language = "JSON" if path.endswith(".json") else "YAML"
        raise ConfigError(path, *_place(mark, joined), f"not valid {language}: {message}") from error
    except pyyaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(path, line, column, "not a text file: control characters are not allowed") from error
    except (pyyaml.YAMLError, UnicodeError) as error:
        raise ConfigError(path, 1, 1, "not valid YAML: the text is not Unicode; write UTF-8") from error


def _place(mark: pyyaml.Mark | pyyaml._yaml.Mark | None, joined: Sequence[int]) -> tuple[int, int]:
    """Return (line, column) of a parser's mark in the file, both from 1; (1, 1) for None.

    joined: ascending indices of the characters in the parsed text that stand for a pair of escapes in the file.
    """
    if mark is None:
        return 1, 1
    before = bisect_left(joined, mark.index) - bisect_left(joined, mark.index - mark.column)
    return mark.line + 1, mark.column + 1 + _SHORTER * before
