"""The interval of a step time that published steps support, each judged by all publishers but its own.

`step_errors.json` holds what the published steps say, as `clustersim validate --calibrate` writes it (docs/validation.md).
The interval is symmetric in the log: `bound` times a width that grows with what a step has and no published one had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log2
from pathlib import Path
from typing import Annotated, Any

from clustersim.config.evidence import Declared
from clustersim.hardware.formats import product_type
from clustersim.predictors.uncertainty import Margin

TABLE = Path(__file__).parent / "step_errors.json"
LAUNCHING = ((0.04, "below 4 %"), (0.12, "4 to 12 %"), (0.3, "12 to 30 %"), (float("inf"), "above 30 %"))
SCALES = ((8, "1 to 8"), (64, "9 to 64"), (512, "65 to 512"), (4096, "513 to 4,096"), (10**9, "more than 4,096"))
WORDS = {
    "machine": "on {} GPUs",
    "framework": "of {}",
    "gpus": "on {} GPUs",
    "launching": "host-bound {}",
    "experts": "of {}",
}
"""How steps of a group are named, by grouping."""
_STEPS = Declared(chosen_on="published steps, each with its publisher left out (docs/validation.md)")
UNSEEN: Annotated[float, _STEPS] = 0.5
"""Width, beside the 1 of any step, of each thing that no publisher's steps had: a kind of GPU, a framework, a mixture, …"""
DOUBLING: Annotated[float, _STEPS] = 0.5
"""… and of each doubling of the number of GPUs beyond the published ones."""
ENOUGH: Mapping[str, int] = {"experts": 3}
"""Publishers that must have had a thing for it to be known, where one is too few: mixtures differ more than dense models."""
HOST: Annotated[float, _STEPS] = 14.0
"""Width of a step that launches kernels all the time, at 12 us each; in proportion to that share. Hosts that were read take up to
46 us and differ by 0.3 (log): 1.28 * 0.3 * 46 / 12 is 14 times the bound. Other constants that differ between machines have much
the same share in all steps: their sensitivities, step by step, hold strangers no better (docs/calibrate.md)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides how far a forecast may be off."""

    architecture: str
    precision: str
    gpus: int
    launching: float
    """The share of the step that launching its kernels takes."""
    experts: bool = False
    predictor: str = "neusight"
    clocks: str = "sustained"
    framework: str = ""
    """Its name, such as `NeMo`; empty where unknown."""

    @property
    def groups(self) -> dict[str, str]:
        """The groups of steps that this one belongs to, as `WORDS` has them."""
        width = product_type(self.precision)
        width = "16-bit" if width in ("fp16", "bf16") else width  # which run at one speed
        return {
            "machine": f"{self.architecture} {width}",
            **({"framework": self.framework} if self.framework else {}),
            "gpus": _bucket(self.gpus, SCALES),
            "launching": _bucket(self.launching, LAUNCHING),
            "experts": "mixtures of experts" if self.experts else "dense models",
        }


class PublishedSteps:
    """What published steps have been compared, by publisher; `without` one of them."""

    def __init__(self, seen: Mapping[str, Mapping[str, Any]], without: str = "") -> None:
        self.publishers = {name: one for name, one in seen.items() if name != without}

    def having(self, grouping: str, group: str) -> list[str]:
        """Return the publishers that have steps of a group."""
        return [name for name, one in self.publishers.items() if group in one[grouping]]

    @property
    def most_gpus(self) -> int:
        """GPUs of the largest step."""
        return max((one["most_gpus"] for one in self.publishers.values()), default=1)

    def unlike(self, kind: Kind) -> list[str]:
        """Return, in words, what a step has that none of these had."""
        found = [
            WORDS[name].format(group)
            for name, group in kind.groups.items()
            if name in ("machine", "framework", "experts") and len(self.having(name, group)) < ENOUGH.get(name, 1)
        ]
        if kind.gpus > self.most_gpus:
            found.append(f"on more than {self.most_gpus:,} GPUs")
        return found

    def width(self, kind: Kind) -> float:
        """Return the width of a step's interval, relative to a step of a published kind that waits for no host."""
        beyond = max(0.0, log2(kind.gpus / self.most_gpus))
        things = sum(not one.startswith("on more than") for one in self.unlike(kind))
        return hypot(1.0, UNSEEN * things**0.5, DOUBLING * beyond, HOST * kind.launching)


def _bucket(value: float, edges: tuple[tuple[float, str], ...]) -> str:
    return next(name for most, name in edges if value <= most)


@cache
def shipped() -> Mapping[str, Any]:
    """Return the shipped table."""
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def interval(seconds: float, kind: Kind, without: str = "", table: Mapping[str, Any] | None = None) -> Margin:
    """Return between which times a step of `seconds` lies in 80 of 100 cases, and what that rests on.

    without: a publisher that is left out. table: default the shipped one. Unknown for other predictors and clocks than those of
    the comparison.
    """
    table = shipped() if table is None else table
    if kind.predictor != table["predictor"] or kind.clocks != table["clocks"]:
        why = f"published steps were only compared with predictor {table['predictor']} and {table['clocks']} clocks"
        return Margin(None, None, f"none: {why}")
    published = PublishedSteps(table["seen"], without)
    half = table["without"].get(without, table["bound"]) * published.width(kind)
    return Margin(seconds * exp(-half), seconds * exp(half), basis(table, kind, published))


def basis(table: Mapping[str, Any], kind: Kind, published: PublishedSteps) -> str:
    """Return the basis of an interval: published steps, their publishers, and features that none of them had."""
    inside, publishers = 100 * table["inside_when_left_out"], len(table["seen"])
    steps = f"{inside:.0f} % of {table['rows']:,} published steps lie inside"
    said = f"{steps}; of {publishers} publishers, each judged without what was read from it"
    unlike = published.unlike(kind)
    return f"{said}; wider, as none was {' or '.join(unlike)}" if unlike else said
