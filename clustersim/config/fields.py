"""The types of fields in YAML, and how a validated spec comes out of a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from clustersim.config.yaml import Document, Loc
from clustersim.errors import ConfigError, InputError, suggest
from clustersim.units import parse


class Spec(BaseModel):
    """Base of every spec: frozen, unknown keys are errors, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def quantity(dimension: str) -> BeforeValidator:
    """Return the validator of a text quantity of one dimension of `clustersim.units.UNITS`."""

    def convert(value: object) -> float:
        try:
            return parse(value, dimension)
        except InputError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from error

    return BeforeValidator(convert)


Time = Annotated[float, quantity("time")]
Size = Annotated[float, quantity("size")]
Bandwidth = Annotated[float, quantity("bandwidth"), Field(gt=0)]
Compute = Annotated[float, quantity("compute"), Field(gt=0)]
Power = Annotated[float, quantity("power"), Field(gt=0)]
Length = Annotated[float, quantity("length")]
Frequency = Annotated[float, quantity("frequency"), Field(gt=0)]
Fraction = Annotated[float, Field(strict=False, gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000_000)]
Index = Annotated[int, Field(ge=0, le=100_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]

S = TypeVar("S", bound=Spec)


def validate(kind: type[S], document: Document, data: Mapping[str, Any] | None = None, at: Loc = ()) -> S:
    """Return the spec of class `kind` that `data` (default: the whole document) holds.

    `at` is where `data` sits in the document. Raises ConfigError for the first thing wrong, in the order of the file.
    """
    try:
        return kind.model_validate(document.data if data is None else data)
    except ValidationError as error:
        raise _first(kind, document, error, at) from None


def _first(kind: type[Spec], document: Document, error: ValidationError, at: Loc) -> ConfigError:
    found = [(document.error((*at, *d["loc"]), _sentence(kind, d, at)), d) for d in error.errors(include_url=False)]
    # a mistyped key is also a missing one: the typo is what the user must see
    return min(found, key=lambda pair: (pair[1]["type"] == "missing", pair[0].line, pair[0].column))[0]


def _sentence(kind: type[Spec], detail: ErrorDetails, at: Loc) -> str:
    loc = tuple(detail["loc"])
    name = ".".join(str(part) for part in (*at, *loc)) or "the file"
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        return f"unknown key {str(loc[-1])!r}; {suggest(str(loc[-1]), _keys(kind, loc[:-1]))}"
    if detail["type"] == "missing":
        return f"{name} is missing; add it"
    if detail["type"] == "quantity":
        return f"{name}: {context['reason']}"
    rule = _RULES.get(detail["type"], lambda c: str(detail["msg"]).removeprefix("Value error, "))(context)
    shown = detail["input"] if isinstance(detail["input"], str | int | float | bool) else type(detail["input"]).__name__
    text = str(shown)
    return (
        f"{name}: {text if len(text) <= 60 else text[:57] + '...'} {rule}"
        if "value_error" not in detail["type"]
        else f"{name}: {rule}"
    )


_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"must be greater than {c['gt']}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']}",
    "less_than_equal": lambda c: f"must be at most {c['le']}",
    "less_than": lambda c: f"must be less than {c['lt']}",
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text",
    "list_type": lambda _: "must be a list",
    "tuple_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be a mapping of keys",
    "model_type": lambda _: "must be a mapping of keys",
    "literal_error": lambda c: f"is not known; write {c['expected']}",
}


def _keys(kind: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys allowed at `loc` below a spec, walking through nested specs."""
    model: Any = kind
    for part in loc:
        fields = getattr(model, "model_fields", {})
        if isinstance(part, str) and part in fields:
            model = _spec_in(fields[part].annotation) or model
    return list(getattr(model, "model_fields", {}))


def _spec_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _spec_in(argument)
        if found is not None:
            return found
    return None
