"""Text quantities become SI floats: seconds, bytes, bytes/s, FLOP/s, watts, metres, hertz.

`400 Gb/s` is bits, `50 GB/s` is bytes, `GB` is 1e9 and `GiB` is 2**30; case matters. A bare number where a unit is
needed is an error, because "400" means 400 Gb/s to one reader and 400 GB/s to the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from clustersim.errors import InputError, shown, suggest

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _scaled(suffix: str, factor: float, prefixes: Mapping[str, float]) -> dict[str, float]:
    """Return {prefix and suffix: scale of the prefix times `factor`}, such as {"GB": 1e9}."""
    return {prefix + suffix: scale * factor for prefix, scale in prefixes.items()}


_BYTES = _scaled("B", 1.0, {**_DECIMAL, **_BINARY}) | _scaled("b", 1 / 8, _DECIMAL)
_FLOP = _scaled("FLOP", 1.0, _DECIMAL)

UNITS: Mapping[str, Mapping[str, float]] = {
    "time": {
        "s": 1.0,
        "ms": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "μs": 1e-6,  # the Greek letter, which looks the same as the micro sign
        "ns": 1e-9,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
    },
    "size": {unit: factor for unit, factor in _BYTES.items() if not unit.endswith("b")},
    "bandwidth": {f"{unit}/s": factor for unit, factor in _BYTES.items()} | _scaled("bps", 1 / 8, _DECIMAL),
    "compute": {f"{unit}/s": factor for unit, factor in _FLOP.items()} | _scaled("FLOPS", 1.0, _DECIMAL),
    "power": _scaled("W", 1.0, _DECIMAL),
    "length": {"m": 1.0, "km": 1e3, "cm": 1e-2, "mm": 1e-3},
    "frequency": _scaled("Hz", 1.0, _DECIMAL),
}
EXAMPLES: Mapping[str, str] = {
    "time": "250ns",
    "size": "80GiB",
    "bandwidth": "400Gb/s",
    "compute": "989TFLOP/s",
    "power": "700W",
    "length": "30m",
    "frequency": "1.98GHz",
}

AMOUNTS: Mapping[str, float] = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3}
"""Factor of each suffix for a number of tokens or dollars."""

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""Regular expression for the number before a unit, which other programs use too."""
_QUANTITY = re.compile(rf"\s*({NUMBER})\s*([A-Za-zµμ/]*)\s*")
_LINE_RATE = re.compile(r"([kmgtpe]?)(?:b|bits?|bytes?)?", re.IGNORECASE)
"""Regular expression for the unit of a line rate without its time: rates of NICs, cables and switches count bits, `400Gb/s`."""


def parse(text: object, dimension: str, *, of_line: bool = False) -> float:
    """Return the SI value of a text quantity such as `400 Gb/s`.

    `dimension` is one of `UNITS`: time (s), size (bytes), bandwidth (bytes/s), compute (FLOP/s), power (W), length (m),
    frequency (Hz). of_line: it is the rate of a NIC or a cable, and bits are suggested. Raises InputError for a bare number, an
    unknown unit, a negative or a non-finite value.
    """
    example = EXAMPLES[dimension]
    if isinstance(text, int | float) and not isinstance(text, bool):
        like = _line_rate(str(text), "", example) if of_line else example
        raise InputError(f"{shown(text)} has no unit; write a {dimension} with one, like {like}")
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"{shown(text)} is not a {dimension}; write a number and a unit, like {example}")
    number, unit = match.groups()
    if not unit:
        like = _line_rate(number, "", example) if of_line else example
        raise InputError(f"{shown(text)} has no unit; write a {dimension} with one, like {like}")
    if unit not in UNITS[dimension]:
        meant = _line_rate(number, unit, "") if of_line else ""
        remedy = f"did you mean {meant}, in bits?" if meant else suggest(unit[:60], UNITS[dimension])
        raise InputError(f"{shown(unit)} is not a unit of {dimension} (case matters); {remedy}")
    value = float(number) * UNITS[dimension][unit]
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{shown(text)} must be a finite {dimension} of zero or more, like {example}")
    return value


def _line_rate(number: str, unit: str, otherwise: str) -> str:
    """Return the line rate that was probably meant, in Gb/s by default; `otherwise` if the rate is implausible."""
    match = _LINE_RATE.fullmatch(unit)
    if not match or len(number) > 10 or not 0 < float(number) < math.inf:
        return otherwise
    prefix = match[1].upper() or ("" if unit else "G")
    return f"{number}{'k' if prefix == 'K' else prefix}b/s"


def seconds(value: float) -> str:
    """Return `value` seconds with a readable unit: `12.3 ms`; hours from two hours on, days from two days on."""
    rounded = abs(_rounded(value))
    for unit, least, factor in _SPANS:
        if rounded >= least:
            return f"{_figure(value / factor)} {unit}"
    return f"{_figure(value / 1e-9)} ns" if value else "0 s"


_SPANS = (("d", 172800.0, 86400.0), ("h", 7200.0, 3600.0), ("s", 1.0, 1.0), ("ms", 1e-3, 1e-3), ("us", 1e-6, 1e-6))


def duration(value: float) -> str:
    """Return `value` seconds with four digits, trailing zeros included, for times in a table: `1.500 s`."""
    number, _, unit = seconds(value).partition(" ")
    digits = number.lstrip("-0.").replace(".", "")
    missing = 4 - len(digits)
    if missing <= 0 or not value:
        return f"{number} {unit}"
    return f"{number}{'' if '.' in number else '.'}{'0' * missing} {unit}"


def either(counts: Iterable[int]) -> str:
    """Return numbers as alternatives in a sentence: `4 or 8`."""
    return " or ".join(f"{count}" for count in counts)


def plural(count: int, singular: str, many: str) -> str:
    """Return a count with its noun: `1 stage`, `4,096 stages`."""
    return f"{count:,} {singular if count == 1 else many}"


def scaled(value: float, unit: str) -> str:
    """Return `value` with a decimal prefix: `scaled(4.8e10, "B/s")` is `48 GB/s`."""
    rounded = abs(_rounded(value))
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if rounded >= _DECIMAL[prefix]:
            return f"{_figure(value / _DECIMAL[prefix])} {prefix}{unit}"
    return f"{_figure(value)} {unit}"


def dollars(value: float) -> str:
    """Return dollars with four digits, trailing zeros included, in the form that `plan` accepts: `118.2k`, `63.50M`, `1.302B`."""
    rounded = _rounded(value)
    for letter, size in AMOUNTS.items():
        if abs(rounded) >= size:
            figure = rounded / size
            return f"{figure:.{3 - math.floor(math.log10(abs(figure)))}f}{letter}"
    return f"{value:.0f}"


def three_digits(value: float, towards: Callable[[float], int]) -> float:
    """Return a number rounded to three digits: upwards if `towards` is math.ceil, downwards if it is math.floor."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return towards(value / unit) * unit


def gibibytes(value: float) -> str:
    """Return `value` bytes as text in GiB."""
    return f"{value / 2**30:.2f} GiB"


def _rounded(value: float) -> float:
    """Return `value` rounded to four digits, so that 999.96 ms becomes 1 s."""
    return float(f"{value:.4g}")


def _figure(value: float) -> str:
    """Return `value` as text with four digits; large numbers in full instead of 1.234e+04."""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"
