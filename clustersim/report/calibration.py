"""The interval of a step time that published steps support: measured / forecast of runs of its kind.

`step_errors.json` holds what the steps of each kind say; `clustersim validate --calibrate` writes it, and docs/validation.md
says how. The error of a step that waits for its host grows with the share of the step that launching its kernels takes, so the
upper end does too; below, forecasts are as far off everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

from clustersim.hardware.formats import product_type
from clustersim.predictors.uncertainty import Margin

TABLE = Path(__file__).parent / "step_errors.json"
BASE = 0.03
"""Log error of a step that never waits for its host, to which the launching share is added; chosen on the calibration runs."""
LAUNCHING = ((0.04, "below 4 %"), (0.12, "4 to 12 %"), (0.3, "12 to 30 %"), (float("inf"), "above 30 %"))
SCALES = ((8, "1 to 8"), (64, "9 to 64"), (512, "65 to 512"), (4096, "513 to 4,096"), (10**9, "more than 4,096"))
CLOCKS = {"measured": "measured clocks", "law": "clocks from their power", "table": "clocks of long timings"}
"""Where sustained clocks are from (`predictors.clocks.source`), in words."""
WORDS = {
    "machine": "on {} GPUs",
    "launching": "host-bound {}",
    "gpus": "on {} GPUs",
    "clocks": "with {}",
    "framework": "of {}",
}
"""How steps of a group are named, by grouping."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides how far a forecast may be off."""

    architecture: str
    precision: str
    gpus: int
    launching: float
    """The share of the step that launching its kernels takes."""
    clocks_from: str = "law"
    """The source of the clocks, as `predictors.clocks` has it."""
    experts: bool = False
    predictor: str = "neusight"
    clocks: str = "sustained"
    framework: str = ""
    """Its name, such as `NeMo`; empty where nobody says it."""

    @property
    def groups(self) -> dict[str, str]:
        """The groups of steps that this one belongs to, as `WORDS` has them."""
        width = product_type(self.precision)
        width = "16-bit" if width in ("fp16", "bf16") else width  # which run at one speed
        return {
            "machine": f"{self.architecture} {width}",
            "launching": _bucket(self.launching, LAUNCHING),
            "gpus": _bucket(self.gpus, SCALES),
            "clocks": CLOCKS.get(self.clocks_from, self.clocks_from),
            **({"framework": self.framework} if self.framework else {}),
        }


def _bucket(value: float, edges: tuple[tuple[float, str], ...]) -> str:
    return next(name for most, name in edges if value <= most)


def score(error: float, launching: float) -> float:
    """Return how far off a log error ln(measured / forecast) is; what waits for its host may be slower, but never faster."""
    return max(error / (BASE + launching), -error / BASE)


def around(seconds: float, launching: float, bound: float) -> tuple[float, float]:
    """Return between which times a step of `seconds` lies whose score is at most `bound`."""
    return seconds * exp(-bound * BASE), seconds * exp(bound * (BASE + launching))


@cache
def shipped() -> Mapping[str, Any]:
    """Return the shipped table."""
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def interval(seconds: float, kind: Kind) -> Margin:
    """Return between which times a step of `seconds` lies in 80 of 100 cases, and what that rests on; unknown beyond it."""
    table = shipped()
    if why := unsupported(kind, table):
        return Margin(None, None, f"none: {why}")
    return Margin(*around(seconds, kind.launching, table["bound"]), basis(table, kind))


def basis(table: Mapping[str, Any], kind: Kind) -> str:
    """Return what the shipped intervals rest on: all published steps, and those of the group of `kind` that fared worst."""
    name, group = min(kind.groups.items(), key=lambda at: _share(table["groups"][at[0]][at[1]]))
    runs, inside = table["groups"][name][group]
    left_out = 100 * table["inside_when_left_out"]
    return (
        f"80 % of {table['rows']} published steps lie inside, {inside} of {runs} {WORDS[name].format(group)}; "
        f"with a step's own source left out, as in the latter count, {left_out:.0f} % of all do; "
        f"all were steps of {', '.join(table['groups']['framework'])}"
    )


def _share(counts: tuple[int, int]) -> float:
    runs, inside = counts
    return inside / runs


def unsupported(kind: Kind, table: Mapping[str, Any]) -> str:
    """Return why the published steps say nothing of this kind of step; empty when they do."""
    seen = table["seen"]
    if kind.predictor != seen["predictor"] or kind.clocks != seen["clocks"]:
        return f"published steps were only compared with predictor {seen['predictor']} and {seen['clocks']} clocks"
    if kind.experts and not seen["experts"]:
        return "the published steps of mixtures of experts that were compared are of one source at most"
    if kind.gpus > seen["most_gpus"]:
        return f"the published steps that intervals rest on had at most {seen['most_gpus']:,} GPUs"
    for name, group in kind.groups.items():
        words = WORDS[name].format(group)
        if group in table["dropped"][name]:
            runs, inside = table["dropped"][name][group]
            return f"published steps {words} are unlike others; of {runs}, intervals of others held {inside}"
        if group not in table["groups"][name]:
            return f"no published step {words} has been compared"
    return ""
