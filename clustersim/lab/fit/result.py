"""A fit of all constants to published steps: what it found, and its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp
from typing import Any, NamedTuple

import numpy as np

from clustersim.calibration.constants import FAMILIES, family
from clustersim.errors import InputError
from clustersim.lab.fit.judge import Errors, FamilyTrial, chosen, errors, left_out
from clustersim.lab.fit.pooled import Posterior, Prior, PublishedStep, fit
from clustersim.validate.calibrate import PUBLISHERS

APART = 1.25
"""Steps that one publisher measured so many times apart, and that are forecast alike, contradict each other."""


class Contradiction(NamedTuple):
    """Two steps that are forecast alike and were measured apart."""

    one: str
    other: str
    times: float

    def __str__(self) -> str:
        """Return a sentence."""
        return f"{self.one} and {self.other} are forecast alike and were measured {self.times:.2f} times apart"


@dataclass(frozen=True, slots=True)
class PooledFit:
    """What published steps say of all constants."""

    steps: Sequence[PublishedStep]
    before: Errors
    """With each constant as it is."""
    all_fitted: Errors
    """With every constant fitted to the other publishers."""
    after: Errors
    """With the families that are taken fitted to the other publishers."""
    taken: Sequence[str]
    trials: Sequence[FamilyTrial]
    """Of the families that are not."""
    posterior: Posterior
    """Of all constants."""
    own: Posterior
    """Of those that are taken."""
    without: Mapping[str, Posterior]
    """The same by the publisher that is left out."""

    def table(self) -> dict[str, Any]:
        """Return the factors that are taken, each with what it would be without a publisher."""
        factors = {
            name: {
                "factor": round(factor, 4),
                "spread": round(spread, 4),
                "read_from": sorted(
                    {one.publisher for one in self.steps if abs(one.sensitivities.get(name, 0)) > 0.01}
                ),
                "without": {one: round(fitted.factors[name][0], 4) for one, fitted in self.without.items()},
            }
            for name, (factor, spread) in self.own.factors.items()
        }
        return {"steps": len(self.steps), "factors": factors}


def fitted(steps: Sequence[PublishedStep], show: Callable[[str], None] = lambda _: None) -> PooledFit:
    """Return the fit of all constants to steps. Raises InputError where these are of fewer than five publishers."""
    count = len({one.publisher for one in steps})
    if count < PUBLISHERS:
        raise InputError(
            f"{len(steps)} steps of {count} publishers can be compared; {PUBLISHERS} publishers are needed, add files of others"
        )
    names = sorted({name for one in steps for name in one.sensitivities})
    prior = Prior({name: FAMILIES[family(name)].spread for name in names})
    show("all constants, each publisher left out")
    everything = errors(steps, left_out(steps, prior)[0])
    taken, trials = chosen(steps, prior, show)
    corrections, without = left_out(steps, prior.only(taken))
    return PooledFit(
        steps,
        errors(steps, np.zeros(len(steps))),
        everything,
        errors(steps, corrections),
        taken,
        trials,
        fit(steps, prior),
        fit(steps, prior.only(taken)),
        without,
    )


def contradictions(steps: Sequence[PublishedStep]) -> list[Contradiction]:
    """Return the steps of one machine that rest on the same and were measured apart, the farthest first."""
    alike: dict[object, list[PublishedStep]] = {}
    for one in steps:
        if one.question:
            alike.setdefault((one.machine, one.question), []).append(one)
    pairs = (pair for own in alike.values() for pair in combinations(own, 2))
    found = [Contradiction(a.id, b.id, exp(abs(a.error - b.error))) for a, b in pairs]
    return sorted((one for one in found if one.times > APART), key=lambda one: -one.times)
