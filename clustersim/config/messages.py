"""Texts of validation errors: one sentence with the position in the file, the error and its remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from clustersim.config.yaml import KEY, Document, Loc
from clustersim.errors import ConfigError, nearest, shown, suggest


def first_error(
    kind: type[BaseModel], document: Document, data: Any, details: Iterable[ErrorDetails], at: Loc
) -> ConfigError:
    """Return the first error in the order of the file; missing keys come last, because a misspelt key explains them.

    Several unknown keys are one error that lists them. data: the validated data, at `at` in the document.
    """
    groups: dict[Loc, list[ErrorDetails]] = defaultdict(list)
    for detail in details:
        groups[_real(detail, data)].append(detail)
    errors: list[tuple[bool, int, int, int, ConfigError]] = []
    unknown: list[tuple[ConfigError, str, str]] = []
    for loc, group in groups.items():
        about_key = group[0]["type"] == "extra_forbidden" or group[0]["loc"][-1:] == ("[key]",)
        place = (*at, *loc, KEY) if about_key else (*at, *loc)
        error = document.error(place, _sentence(kind, group, at, (*at, *loc)))
        errors.append((group[0]["type"] == "missing", error.line, error.column, len(errors), error))
        if group[0]["type"] == "extra_forbidden":
            remedy, known = _remedy(kind, group[0], at, (*at, *loc))
            unknown.append((error, str(loc[-1]), remedy or nearest(str(loc[-1])[:60], known).rstrip()))
    worst = min(errors)[-1]
    if len(unknown) < 2 or worst not in [error for error, *_ in unknown]:
        return worst
    unknown.sort(key=lambda entry: (entry[0].line, entry[0].column))
    descriptions = []
    for error, key, hint in unknown:  # all unknown keys, each with its position and the key that was probably meant
        where = f"{error.line}:{error.column}" if error.line else error.path.removeprefix(document.path).strip(" ()")
        descriptions.append(f"{shown(key)} ({where}{'; ' if hint else ''}{hint})")
    lead, sentence = unknown[0][0], f"{len(unknown)} unknown keys: {', '.join(descriptions)}; rename or remove them"
    return ConfigError(lead.path, lead.line, lead.column, sentence)


def _real(detail: ErrorDetails, data: Any) -> Loc:
    """Return the position of an error in `data`, without the names of a union's alternatives that pydantic's path contains."""
    here, real = data, []
    for part in detail["loc"]:
        inside = isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        if inside or (isinstance(here, Mapping) and part in here):
            here = here[part]
            real.append(part)
    return (*real, detail["loc"][-1]) if detail["type"] == "missing" else tuple(real)


def _sentence(kind: type[BaseModel], group: list[ErrorDetails], at: Loc, loc: Loc) -> str:
    """Return the message of an error, or of the alternatives of a union that all failed, without its position."""
    detail = group[0]
    name = ".".join(map(str, loc)) or "the file"
    match detail["type"]:
        case "extra_forbidden":
            place, known = _remedy(kind, detail, at, loc)
            return f"unknown key {shown(loc[-1])}; {place or suggest(str(loc[-1])[:60], known)}"
        case "missing":
            return f"{name} is missing; add it"
        case "quantity":
            return f"{name}: {detail['ctx']['reason']}"
        case "value_error" | "assertion_error":
            return f"{name}: {detail['msg'].split(', ', 1)[-1]}"
    rule = _rule(group)
    if detail["input"] is None:
        return f"{name} is empty; it {rule}"
    return f"{name}: {_without_list(detail) or _shown(detail['input']) + ' ' + rule}"


def _without_list(detail: ErrorDetails) -> str:
    """Return the error and remedy of a numbered key where no list is, such as `model.blocks.0.ffn`; "" for other errors."""
    keys = detail["input"] if detail["type"] in ("list_type", "tuple_type") else ()
    numbers = [key for key in keys if str(key).isdigit()] if isinstance(keys, dict) else []
    return f"no list with an item {numbers[0]} is here; write the whole list" if numbers else ""


def _remedy(kind: type[BaseModel], detail: ErrorDetails, at: Loc, loc: Loc) -> tuple[str, Iterable[str]]:
    """Return (what to write for an unknown key, "" if that is not clear; keys of the spec that it may mean)."""
    known = _keys(kind, detail["loc"][:-1])
    longer = [name for name in known if name.startswith(f"{loc[-1]}_")]
    return "" if longer else _elsewhere(kind, at, loc), longer or known


def _elsewhere(kind: type[BaseModel], at: Loc, loc: Loc) -> str:
    """Return the remedy for a key with dots or in the wrong section, such as `write it as model.heads`; "" for other keys."""
    key = str(loc[-1])
    for path in _paths(kind):
        if len(path) > 1 and key == ".".join(path):
            return f"write {path[-1]} inside {'.'.join(path[:-1])}"
        if path[-1] == key and (*at, *path) != loc:
            return f"write it as {'.'.join(map(str, (*at, *path)))}{'' if at or path[1:] else ' at the top level'}"
    return ""


def _paths(kind: type[BaseModel]) -> list[tuple[str, ...]]:
    """Return the keys of a spec and of the specs inside it, the least deep first."""
    paths: list[tuple[str, ...]] = [(name,) for name in kind.model_fields]
    for name, field in kind.model_fields.items():
        paths += [(name, *path) for spec in _specs(field.annotation) if spec is not kind for path in _paths(spec)]
    return sorted(paths, key=len)


def _rule(group: list[ErrorDetails]) -> str:
    """Return the rule that was broken, in words; several rules are the alternatives of a union."""
    if len(group) == 1 and group[0]["type"] == "literal_error":
        return f"is not known; write {group[0]['ctx']['expected']}"
    rules = []
    for detail in group:
        rule = _RULES.get(detail["type"])
        rules.append(rule(detail.get("ctx", {})) if rule else detail["msg"].replace("Input should", "must", 1))
    start, *others = dict.fromkeys(rules)
    return " or ".join((start, *(rule.removeprefix("must be ") for rule in others)))


_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "string_pattern_mismatch": lambda _: "must be on one line, without control characters",
    "greater_than_equal": lambda c: f"must be at least {c['ge']}",
    "less_than_equal": lambda c: f"must be at most {c['le']}",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), lambda _: "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "must be a number"),
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text; put it in quotes",
    "string_too_short": lambda c: f"must have at least {c['min_length']} characters",
    "string_too_long": lambda c: f"must have at most {c['max_length']} characters",
    "too_short": lambda c: f"must have at least {c['min_length']} items",
    "too_long": lambda c: f"must have at most {c['max_length']} items",
    **dict.fromkeys(("list_type", "tuple_type"), lambda _: "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), lambda _: "must be a mapping of keys"),
    "union_tag_invalid": lambda c: f"must have as {c['discriminator']} one of {c['expected_tags']}",
    "union_tag_not_found": lambda c: f"must have the key {c['discriminator']}",
}


def _shown(value: Any) -> str:
    """Return a value as written in YAML, in at most 60 characters; `a mapping` or `a list` for a nested value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.isprintable() and value:
        return value if len(value) <= 60 else value[:57] + "..."
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return shown(value)


def _keys(kind: type[BaseModel], loc: Loc) -> set[str]:
    """Return the keys that a spec allows at position `loc` below it, through nested specs and alternatives of unions."""
    kinds = [kind]
    for part in (name for name in loc if isinstance(name, str)):
        fields = [k.model_fields[part] for k in kinds if part in k.model_fields]
        inner = [spec for field in fields for spec in _specs(field.annotation)]
        tags = {k: [word for field in k.model_fields.values() for word in get_args(field.annotation)] for k in kinds}
        kinds = inner or [k for k in kinds if part == k.__name__ or part in tags[k]] or kinds
    return {key for k in kinds for key in k.model_fields}


def _specs(annotation: Any) -> list[type[BaseModel]]:
    """Return the specs in a type annotation, including those inside its unions and lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [spec for argument in get_args(annotation) for spec in _specs(argument)]
