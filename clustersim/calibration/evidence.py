"""What published steps say of constants: how far they differ from machine to machine, and what no constant explains.

`published_steps.json` is what `clustersim lab fit` wrote: docs/calibration.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import exp, hypot, log2
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.predictors.uncertainty import Margin

TABLE = Path(__file__).parent / "published_steps.json"
DOUBLING = 0.5
"""How much wider, in parts of what no constant explains, each doubling of GPUs beyond the largest published step makes it."""


def family(constant: str) -> str:
    """Return the family of a constant by its name: what stands before the first comma."""
    return constant.partition(",")[0]


class Widths(NamedTuple):
    """How far forecasts of steps are off, by what they rest on."""

    spreads: Mapping[str, float]
    """Standard deviation of the logarithm of constants, by family."""
    rest: float
    """The same of steps, for what no constant explains of a publisher."""
    most_gpus: int
    """Of the largest published step."""
    bound: float
    """Standard deviations that hold 80 % of the steps of a publisher outside the fit."""

    def of(self, sensitivities: Mapping[str, float], gpus: int) -> float:
        """Return the standard deviation of log(measured / forecast) of a step.

        The root of the sum of squares of sensitivity times spread over constants, and of the rest, which grows with each doubling
        of GPUs beyond the largest published step.
        """
        beyond = max(0.0, log2(gpus / self.most_gpus))
        parts = [value * self.spreads.get(family(name), 0.0) for name, value in sensitivities.items()]
        return hypot(*parts, self.rest * hypot(1.0, DOUBLING * beyond))

    def margin(self, seconds: float, sensitivities: Mapping[str, float], gpus: int, basis: str) -> Margin:
        """Return the 80 % interval of a step of `seconds`."""
        half = self.bound * self.of(sensitivities, gpus)
        return Margin(seconds * exp(-half), seconds * exp(half), basis)


@cache
def shipped() -> Mapping[str, Any]:
    """Return the table that is shipped."""
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def widths(without: str = "", table: Mapping[str, Any] | None = None) -> Widths:
    """Return the spreads that published steps show; without: a publisher that is left out."""
    found = shipped() if table is None else table
    own = found["without"].get(without, found)
    return Widths(own["spreads"], own["rest"], own["most_gpus"], own["bound"])


def interval(seconds: float, sensitivities: Mapping[str, float], gpus: int, without: str = "") -> Margin:
    """Return the 80 % interval of a step of `seconds`, with the steps that it rests on.

    sensitivities: of the step, by the names of its constants. without: a publisher that is left out.
    """
    table = shipped()
    basis = (
        f"{100 * table['inside_when_left_out']:.0f} % of {table['steps']:,} published steps lie inside; "
        f"of {len(table['without'])} publishers, each judged without what was read from it"
    )
    return widths(without).margin(seconds, sensitivities, gpus, basis)
