"""Rows of the tables of names, with the functions that a table calls `@name` to convert another tool's value to ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from clustersim.convert.peft import section
from clustersim.convert.table import Alias, Conversion, records

SCALING: Mapping[object, str] = {"delayed": "delayed", "tensorwise": "current", "blockwise": "block"}
"""Value of `training.fp8_scaling` for each fp8_recipe of Megatron-LM that computes in plain fp8."""


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


CONVERSIONS: Mapping[str, Conversion] = {
    "above_zero": lambda value: value > 0 if is_number(value) else value,  # type: ignore[operator]
    "always_full": lambda value: "full" if isinstance(value, str) else value,
    # one kind of context parallelism for all layers, or one for each
    "context": lambda value: value[0] if isinstance(value, list) and len(set(map(str, value))) == 1 else value,
    "fp8_recipe": lambda value: (
        {"precision": "fp8", "fp8_scaling": SCALING[value]} if str(value) in SCALING else {"precision": value}
    ),
    # the first of the two sizes of hierarchical context parallelism
    "inner": lambda value: value[0] if isinstance(value, list) and len(value) == 2 else value,
    # BigScience's division of layers counts the embedding and the head where it names them
    "partition": lambda value: (
        {"account_for_embedding": True, "account_for_loss": True} if "embedding" in str(value) else None
    ),
    # Megatron takes a capacity below zero for none
    "real": lambda value: (float(value) if value > 0 else None) if is_number(value) else value,  # type: ignore
    "section": section,
    "several": lambda value: [value] if isinstance(value, str) else value,
    "shared_expert": lambda value: {"shared_experts": 1, "shared_ffn": value} if value else None,
    "ulysses": lambda value: {"cp": value, "cp_type": "a2a"} if value != 1 else None,
    "unless_zero": lambda value: value or None,
    "whole": lambda value: int(value) if isinstance(value, float) and value.is_integer() else value,
}


@cache
def rows(tool: str) -> dict[str, Alias]:
    """Return {name in a tool: row} of the tool's table, `tables/TOOL.csv`. Raises KeyError for an unknown `@name` in it."""
    aliases = {}
    for record in records(tool.replace("-", "_")):
        name, key, values = (record.pop(column) for column in ("argument", "key", "values"))
        function = CONVERSIONS[values[1:]] if values[:1] == "@" else None
        aliases[name] = Alias(name, tuple(key.split(".")), values, function, record)
    return aliases
