"""Specs as JSON Schema, for editors: types, bounds, units, and the docstring of each field."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from clustersim.config.fields import Spec

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
"""Version of JSON Schema that all editors support."""


def definitions(*kinds: type[Spec]) -> dict[str, Schema]:
    """Return {name: schema} of the specs and of all specs inside them."""
    _, generated = models_json_schema([(kind, "validation") for kind in kinds], ref_template="#/definitions/{model}")
    known = {kind.__name__: kind for kind in _subclasses(Spec)}
    schemas: dict[str, Schema] = generated["$defs"]
    for name, schema in schemas.items():
        texts = field_texts(known[name])
        schema.pop("title", None)
        schema["description"] = " ".join((known[name].__doc__ or "").split())
        schema["properties"] = {key: _field(field, texts[key]) for key, field in schema["properties"].items()}
    return schemas


def _subclasses(kind: type[Spec]) -> Iterator[type[Spec]]:
    """Yield all classes derived from a spec, at any depth."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _field(schema: Schema, text: str) -> Schema:
    """Return a field's schema with its docstring `text`, and its default if the file would contain it as it is stored."""
    described = {key: value for key, value in schema.items() if key != "title"}
    default = described.pop("default", None)
    plain = default is not None and not isinstance(default, list | dict)
    # the file has text for stored seconds
    plain = plain and (isinstance(default, str) or described.get("type") != "string")
    # in this draft, nothing may stand next to a reference
    described = {"allOf": [described]} if "$ref" in described else described
    return described | {"description": text} | ({"default": default} if plain else {})


def field_texts(kind: type[Spec]) -> dict[str, str]:
    """Return the docstring of each field of a spec, inherited ones included."""
    bases = (base for base in kind.__bases__ if issubclass(base, Spec) and base is not Spec)
    inherited = {name: text for base in bases for name, text in field_texts(base).items()}
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return inherited | {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
