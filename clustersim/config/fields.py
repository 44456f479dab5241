"""Types of fields in YAML, and the validation of documents into specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from clustersim.config.messages import first_error
from clustersim.config.yaml import Document, Loc
from clustersim.errors import InputError, shown
from clustersim.units import EXAMPLES, NUMBER, UNITS, parse, scaled

Section = dict[str, object]
"""Keys and values of a file before validation."""


class Spec(BaseModel):
    """Base of every spec: frozen, unknown keys are errors, no silent conversion of types.

    Files of specs do not postpone annotations: pydantic would evaluate the text of each. Validators are built when they are used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


_REACH: Mapping[str, tuple[float, float, str]] = {
    "time": (1e-15, 1e9, "s"),
    "size": (1.0, 1e18, "B"),
    "bandwidth": (1.0, 1e18, "B/s"),
    "compute": (1.0, 1e21, "FLOP/s"),
    "power": (1e-3, 1e12, "W"),
    "length": (1e-6, 1e9, "m"),
    "frequency": (1.0, 1e15, "Hz"),
}
"""Smallest and largest value of each dimension that a machine could have, and its unit; others would overflow sums."""


def quantity(dimension: str, *, of_line: bool = False) -> BeforeValidator:
    """Return the validator of a text quantity of a dimension in `units.UNITS`. of_line: errors suggest bits, as for cables."""

    def convert(value: object) -> float:
        """Return a value in SI units. Raises PydanticCustomError for other text, or beyond what a machine has."""
        try:
            number = parse(value, dimension, of_line=of_line)
        except InputError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from error
        least, most, unit = _REACH[dimension]
        if number == 0 or least <= number <= most:
            return number
        reason = f"{shown(value)} is out of all reach; write {scaled(least, unit)} to {scaled(most, unit)}"
        raise PydanticCustomError("quantity", "{reason}", {"reason": reason})

    return BeforeValidator(convert)


@dataclass(frozen=True, slots=True, eq=False)
class Also:
    """JSON Schema of a further form that a field accepts besides its type; a validator converts it."""

    schema: dict[str, Any]
    """JSON Schema of the further form."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of either form."""
        return {"anyOf": [handler(core), self.schema]}


def text_of(dimension: str) -> WithJsonSchema:
    """Return the JSON schema of a text quantity: its pattern, and an example."""
    units = "|".join(sorted(UNITS[dimension], key=len, reverse=True))
    return WithJsonSchema(
        {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({units})\s*$", "examples": [EXAMPLES[dimension]]}
    )


Time = Annotated[float, quantity("time"), text_of("time")]
Size = Annotated[float, quantity("size"), text_of("size")]
Bandwidth = Annotated[float, quantity("bandwidth"), Field(gt=0), text_of("bandwidth")]
LineRate = Annotated[float, quantity("bandwidth", of_line=True), Field(gt=0), text_of("bandwidth")]
"""Rate of a NIC, a cable or the port of a switch, which is usually given in bits."""
ComputeRate = Annotated[float, quantity("compute"), Field(gt=0), text_of("compute")]
Power = Annotated[float, quantity("power"), Field(gt=0), text_of("power")]
Length = Annotated[float, quantity("length"), text_of("length")]
Frequency = Annotated[float, quantity("frequency"), Field(gt=0), text_of("frequency")]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000_000)]
Index = Annotated[int, Field(ge=0, le=100_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Text on one line, without control characters: names are printed."""


def between(low: int, high: int) -> AfterValidator:
    """Return the validator of a list's length; pydantic's own also reports it if only an item is wrong."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if low <= len(value) <= high:
            return value
        raise ValueError(f"has {len(value)} entries; write {low} to {high}")

    return AfterValidator(check)


S = TypeVar("S", bound=Spec)


def validate(kind: type[S], document: Document, data: Mapping[str, Any] | None = None, at: Loc = ()) -> S:
    """Return the spec of class `kind` in `data` (default: the whole document).

    `at` is the position of `data` in the document. Raises ConfigError for the first error in the file, caused by pydantic's.
    """
    content = document.data if data is None else data
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise first_error(kind, document, content, error.errors(include_url=False), at) from error


def validate_partly(
    kind: type[S],
    document: Document,
    counts: Callable[[ErrorDetails], bool] = lambda detail: detail["type"] != "missing",
) -> None:
    """Raise ConfigError for the first error in a document that `counts`, by default any but a missing key of the spec."""
    try:
        kind.model_validate(document.data)
    except ValidationError as error:
        wrong = [detail for detail in error.errors(include_url=False) if counts(detail)]
        if wrong:
            raise first_error(kind, document, document.data, wrong, ()) from error
