"""References and Python classes in YAML of Hydra and OmegaConf: `${.heads}`, `${multiply:4, ${model.heads}}`, `_target_`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clustersim.config.overrides import scalar
from clustersim.errors import InputError

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_CHAIN, _TEXT, _NUMBER = 50, 10_000, 1e18
"""Most references in a chain, characters of a value, and its largest number; beyond these a reference stays as written."""
_SUMS: Mapping[str, Callable[[Iterable[Any]], Any]] = {"multiply": math.prod, "sum": sum, "add": sum}
"""Resolvers by name, of NeMo's launcher and of NeMo (nlp/parts/nlp_overrides.py)."""


def resolved(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a file's values with references replaced; a reference without a target in the file stays as it is written.

    prefix: name of the section that the file becomes where another includes it, with which absolute references may begin.
    """
    known: dict[tuple[str, ...], Any] = {}

    def replaced(value: Any, at: tuple[str, ...], depth: int = 0) -> Any:
        """Return a value with its references replaced. at: keys that lead to it. depth: references followed so far."""
        if isinstance(value, dict):
            return {key: replaced(inner, (*at, key)) for key, inner in value.items()}
        text = value
        while isinstance(text, str) and len(text) <= _TEXT and (match := _INNERMOST.search(text)):
            inner = target_of(match[1], at, depth)
            if inner is None or isinstance(inner, dict | list) or "${" in str(inner):
                break
            text = inner if match[0] == text else text.replace(match[0], str(inner))
        return value if isinstance(text, str) and len(text) > _TEXT else text

    def target_of(name: str, at: tuple[str, ...], depth: int) -> Any:
        """Return the value of a reference such as `model.hidden` or `multiply:2,3`; None if no key or resolver has that name."""
        operation, colon, rest = name.partition(":")
        if colon:
            return computed(operation, rest.split(","))
        up = len(name) - len(name.lstrip("."))
        path = (*at[: -up or None], *name[up:].split(".")) if up else tuple(name.removeprefix(prefix).split("."))
        if path not in known and depth < _CHAIN:
            inner: Any = data
            for part in path:
                inner = inner.get(part) if isinstance(inner, dict) else None
            known[path] = None  # while it is replaced: what refers to itself refers to nothing
            known[path] = replaced(inner, path, depth + 1) if isinstance(inner, str) else inner
        return known.get(path)

    return {key: replaced(value, (key,)) for key, value in data.items()}


def computed(operation: str, terms: Iterable[str]) -> int | float | None:
    """Return the result of a resolver in `_SUMS`; None for another one, for terms that are no numbers, and beyond `_NUMBER`."""
    try:
        values = [scalar(operation, term.strip()) for term in terms] if operation in _SUMS else [None]
    except InputError:
        return None
    result = _SUMS[operation](values) if all(isinstance(value, int | float) for value in values) else math.nan
    return None if not abs(result) <= _NUMBER else int(result) if result == int(result) else result


def without_classes(value: Any) -> Any:
    """Return a value without the Python classes that Hydra would build: a function by its name, an enumeration as NAME.NUMBER."""
    if isinstance(value, list):
        return [without_classes(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: without_classes(v) for key, v in value.items() if key not in ("_target_", "_call_", "_partial_")}
    words = listed if isinstance(listed := inner.get("_args_"), list) else []
    if "_target_" in value and (value.get("_call_") is False or words or not inner):
        return ".".join([str(value["_target_"]).rpartition(".")[2], *map(str, words)])
    return inner
