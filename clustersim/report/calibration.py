"""The interval of a step time that published steps support: measured / forecast of runs of its kind.

`step_errors.json` holds the quantiles and the runs they rest on; `clustersim validate --calibrate` writes it, and
docs/validation.md says how. The error of a step that waits for its host grows with the share of the step that launching its
kernels takes, so the upper end does too; below, forecasts are as far off everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

from clustersim.predictors.uncertainty import Margin

TABLE = Path(__file__).parent / "step_errors.json"
BASE = 0.05
"""Log error of a step that never waits for its host, to which the launching share is added: that of held-out kernels."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides how far a forecast may be off. launching: the share of the step that launching its kernels takes."""

    architecture: str
    precision: str
    gpus: int
    launching: float
    experts: bool
    predictor: str
    clocks: str

    @property
    def machine(self) -> str:
        """Architecture and precision, such as `hopper 16-bit`: fp16 and bf16 run at one speed."""
        return f"{self.architecture} {'16-bit' if self.precision in ('fp16', 'bf16') else self.precision}"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Eight of ten log errors lie between `low` and `high` · (BASE + launching share)."""

    low: float
    high: float

    def around(self, seconds: float, launching: float) -> tuple[float, float]:
        """Return the ends of the interval of a step of `seconds`; the forecast itself is always inside."""
        return seconds * exp(min(self.low, 0.0)), seconds * exp(max(self.high, 0.0) * (BASE + launching))


@cache
def shipped() -> Mapping[str, Any]:
    """Return the shipped table."""
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def interval(seconds: float, kind: Kind) -> Margin:
    """Return between which times a step of `seconds` lies in 80 of 100 cases, and what that rests on; unknown beyond it."""
    table = shipped()
    if why := unsupported(kind, table["seen"]):
        return Margin(None, None, f"none: {why}")
    low, high = Quantiles(table["low"], table["high"]).around(seconds, kind.launching)
    return Margin(low, high, basis(table, kind.machine))


def basis(table: Mapping[str, Any], machine: str) -> str:
    """Return what the shipped intervals rest on, in words: all published steps, and those on such a machine."""
    left_out = 100 * table["inside_when_left_out"]
    runs, inside = table["seen"]["machines"][machine]
    return (
        f"80 % of {table['rows']} published steps, {inside} of the {runs} on {machine} GPUs; the latter counted with their own "
        f"source left out, which leaves {left_out:.0f} % of all {len(table['sources'])} sources inside"
    )


def unsupported(kind: Kind, seen: Mapping[str, Any]) -> str:
    """Return why the published steps say nothing of this kind of step; empty when they do."""
    if kind.predictor != seen["predictor"] or kind.clocks != seen["clocks"]:
        return f"published steps were only compared with predictor {seen['predictor']} and {seen['clocks']} clocks"
    if kind.experts and not seen["experts"]:
        return "no published step of a mixture of experts has been compared yet"
    if kind.machine not in seen["machines"]:
        return f"no published step has been compared on {kind.machine}"
    if kind.gpus > seen["most_gpus"]:
        return f"the published steps that intervals rest on had at most {seen['most_gpus']:,} GPUs"
    if kind.launching > seen["most_launching"]:
        return f"launching its kernels takes {100 * kind.launching:.0f} % of the step, more than in any published one"
    return ""
