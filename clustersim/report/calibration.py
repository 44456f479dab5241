"""The expected time of a step and its interval, from published steps.

A simulated step has no data loader, logging or slow node, and only known kernels. So publishers' steps take longer by a factor
that differs between them, the *software level*. It is pooled by kind of trainer and by years (`software_level`) and estimated on
published steps without the publisher's own. The expected step is the simulated one times this level.

`step_errors.json` has the errors of published steps, written by `clustersim validate --calibrate` (docs/validation.md). The
interval is symmetric in the logarithm around the expected step: `bound` times a width that grows with each property that no
published step has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log2
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
"""{grouping: words in messages for the steps of a group}"""
_STEPS = Declared(chosen_on="published steps, each with its publisher left out (docs/validation.md)")
UNSEEN: Annotated[float, _STEPS] = 0.5
"""Width added for each property that no publisher's steps had: a kind of GPU, a framework, a mixture; any step starts at 1."""
MIXTURE: Annotated[float, _STEPS] = 1.5
"""Width added for a mixture of experts: releases differ in the kernels of its router and dispatcher, and in what its host waits
for. With 1.5, as many of its steps lie inside as of those of dense models (docs/validation.md)."""
DOUBLING: Annotated[float, _STEPS] = 0.5
"""Width added for each doubling of the number of GPUs beyond the published ones."""
FARTHEST: Annotated[float, _STEPS] = 0.15
"""Mean |ln(measured / simulated)| beyond which a publisher counts as an outlier: one in six is, for its own reasons."""
POOLED: Annotated[float, _STEPS] = 2.0
"""Weight, in publishers, of the mean over all trainers in the mean of one kind of trainer."""
POOLED_YEARS: Annotated[float, _STEPS] = 2.0
"""Weight, in publishers, of the mean of a kind of trainer in the mean of its years."""
EARLY = 2022
"""Last year of trainers that ran mostly unfused kernels with little overlap."""
HOST: Annotated[float, _STEPS] = 5.0
"""Width for a step that launches kernels all the time, at 12 us each, in proportion to that share: hosts differ by 0.3 (log).
With 5, intervals cover four of five steps, whether they launch little or much. Other constants that differ between machines
have much the same share in all steps: step-wise sensitivities predict unseen publishers no better (docs/calibrate.md)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of a step that decide the uncertainty of its forecast."""

    architecture: str
    precision: str
    gpus: int
    launching: float
    """Share of the step that kernel launches take."""
    experts: bool = False
    predictor: str = "neusight"
    clocks: str = "sustained"
    framework: str = ""
    """Name of the framework, such as `NeMo`; empty if unknown."""
    trainer: str = ""
    """Kind of trainer, such as `torch`; empty if unknown."""
    year: int | None = None
    """Year of the software; None: the newest."""

    @property
    def groups(self) -> dict[str, str]:
        """{grouping of `WORDS`: group, such as `9 to 64` for `gpus`} of the step; without `framework` if that is unknown."""
        width = product_type(self.precision)
        width = "16-bit" if width in ("fp16", "bf16") else width  # data types that run at the same speed
        return {
            "machine": f"{self.architecture} {width}",
            **({"framework": self.framework} if self.framework else {}),
            "gpus": _bucket(self.gpus, SCALES),
            "launching": _bucket(self.launching, LAUNCHING),
            "experts": "mixtures of experts" if self.experts else "dense models",
        }


class PublishedSteps:
    """Published steps that were compared, by publisher."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]], without: str = "") -> None:
        """rows: `seen` of the table of errors. without: publisher, or the name of its kin, that is left out."""
        self.publishers = {name: row for name, row in rows.items() if without not in (name, row["kin"])}

    def having(self, grouping: str, group: str) -> list[str]:
        """Return the publishers with steps of a group of a grouping (as in `Kind.groups`)."""
        return [name for name, row in self.publishers.items() if group in row[grouping]]

    @property
    def most_gpus(self) -> int:
        """Number of GPUs of the largest step; 1 without publishers."""
        return max([row["most_gpus"] for row in self.publishers.values()], default=1)

    def unlike(self, kind: Kind) -> list[str]:
        """Return in words what no published step has: a step's GPU and data type, framework, kind of model, or number of GPUs."""
        properties = [
            WORDS[name].format(group)
            for name, group in kind.groups.items()
            if name in ("machine", "framework", "experts") and not self.having(name, group)
        ]
        if kind.gpus > self.most_gpus:
            properties.append(f"on more than {self.most_gpus:,} GPUs")
        return properties

    def width(self, kind: Kind) -> float:
        """Return the width of a step's interval, relative to a published kind of step that never waits for the host."""
        beyond = max(0.0, log2(kind.gpus / self.most_gpus))
        others = sum(not property_.startswith("on more than") for property_ in self.unlike(kind))
        return hypot(1.0, UNSEEN * others**0.5, DOUBLING * beyond, HOST * kind.launching, MIXTURE * kind.experts)


def _bucket(value: float, edges: tuple[tuple[float, str], ...]) -> str:
    """Return the name of the range of a value. `edges` are (largest value, name) of each range, ascending."""
    return next(name for most, name in edges if value <= most)


@cache
def shipped_table() -> Mapping[str, Any]:
    """Return `step_errors.json`, the shipped table of errors, whose keys `validate.calibrate.table` explains."""
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


class Expected(NamedTuple):
    """Expected seconds of a step, and their 80 % interval."""

    seconds: float
    margin: Margin
    level: SoftwareLevel


class SoftwareLevel(NamedTuple):
    """Factor by which published steps of a kind of trainer exceed the simulated time, and its basis."""

    log: float
    """ln(expected / simulated)."""
    publishers: int

    @property
    def factor(self) -> float:
        """Expected / simulated seconds."""
        return exp(self.log)


def software_level(kind: Kind, table: Mapping[str, Any], without: str = "") -> SoftwareLevel:
    """Return the level of a kind's trainer and years in a table of errors, by partial pooling over publishers.

    Each publisher has weight one. The mean of a kind of trainer is drawn to that of all, and that of its years to the kind's
    (`POOLED`). `without` is a publisher, or the name of its kin, that is left out.
    """
    rows = [
        (name, trainer, year <= EARLY, max(-FARTHEST, min(FARTHEST, mean)))
        for name, row in table["levels"].items()
        if without not in (name, row["kin"])
        for trainer, year, mean, _ in row["trainers"]
    ]
    early = kind.year is not None and kind.year <= EARLY
    of_trainer = [row for row in rows if row[1] == kind.trainer]
    level = _mean(of_trainer, _mean(rows), POOLED)
    level = _mean([row for row in of_trainer if row[2] == early], level, POOLED_YEARS)
    return SoftwareLevel(level, len({name for name, *_ in of_trainer or rows}))


def _mean(rows: Sequence[tuple[str, str, bool, float]], prior: float = 0.0, weight: float = 0.0) -> float:
    """Return the mean of the levels (last column) of `rows`, and of `prior` with the weight of `weight` rows; 0 without any."""
    return (math.fsum([level for *_, level in rows]) + weight * prior) / ((len(rows) + weight) or 1.0)


def expected(seconds: float, kind: Kind, without: str = "", table: Mapping[str, Any] | None = None) -> Expected:
    """Return the expected time of a step that is simulated to take `seconds`, and its 80 % interval.

    `without` is a publisher, or its kin, that is left out. `table` is by default the shipped one. The bounds of the interval
    are None for other predictors and clocks than those of the comparison.
    """
    table = shipped_table() if table is None else table
    level = software_level(kind, table, without)
    centre = seconds * level.factor
    if kind.predictor != table["predictor"] or kind.clocks != table["clocks"]:
        why = f"published steps were only compared with predictor {table['predictor']} and {table['clocks']} clocks"
        return Expected(centre, Margin(None, None, f"none: {why}"), level)
    published = PublishedSteps(table["seen"], without)
    half = table["without"].get(without, table["bound"]) * published.width(kind)
    return Expected(centre, Margin(centre * exp(-half), centre * exp(half), basis(table, kind, published)), level)


def basis(table: Mapping[str, Any], kind: Kind, published: PublishedSteps) -> str:
    """Return the basis of an interval in words: published steps of `table`, publishers, and properties that none of them has."""
    inside, publishers = 100 * table["inside_when_left_out"], len(table["seen"])
    steps = f"covers {inside:.0f} % of {table['rows']:,} published runs"
    sentence = f"{steps}; of {publishers} publishers, each as a stranger's"
    unlike = published.unlike(kind)
    return f"{sentence}; wider, as none was {' or '.join(unlike)}" if unlike else sentence
