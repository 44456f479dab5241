"""How wide intervals must be: the spread of each family of constants, and what none of them explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.evidence import Widths
from clustersim.lab.fit.pooled import PublishedStep
from clustersim.validate.calibrate import SHARE, bound

FACTORS = (0.8, 1.25)
"""Changes of a spread that are tried, again and again."""
TRUST = 0.01
"""What a spread twice or half of what evidence other than steps says must gain: a hundredth of the score, times its squared
logarithm."""


def estimated(steps: Sequence[PublishedStep], prior: Mapping[str, float]) -> Widths:
    """Return the spreads whose intervals are narrowest for what they miss, each publisher weighing as much, near a prior's.

    prior: standard deviation by family. Judged by the interval score: the width, and 2 / (1 - share) times what a step lies
    outside (Gneiting and Raftery 2007, section 6.2). The bound is the quantile of publishers' errors in these widths.
    """
    publishers = [one.publisher for one in steps]
    counts = Counter(publishers)
    weights = np.array([1 / counts[name] for name in publishers]) / len(counts)
    errors = np.abs([one.error for one in steps])

    def scored(tried: Widths) -> tuple[float, Widths]:
        each = _each(steps, tried)
        found = tried._replace(bound=bound(list(zip((errors / each).tolist(), publishers, strict=True))))
        half = found.bound * each
        score = float(weights @ (2 * half + 2 / (1 - SHARE) * np.maximum(errors - half, 0)))
        apart = [np.log(value / prior[name]) ** 2 for name, value in tried.spreads.items()]
        return float(np.log(score) + TRUST * sum(apart)), found

    best, now = scored(Widths(dict(prior), float(np.mean(list(prior.values()))), max(one.gpus for one in steps), 1.0))
    last = np.inf
    while best < last - 1e-6:
        last = best
        for name in ("", *prior):
            for factor in FACTORS:
                while (tried := scored(_changed(now, name, factor)))[0] < best - 1e-9:
                    best, now = tried
    return now


def _changed(widths: Widths, name: str, factor: float) -> Widths:
    if not name:
        return widths._replace(rest=widths.rest * factor)
    return widths._replace(spreads={**widths.spreads, name: widths.spreads[name] * factor})


def _each(steps: Sequence[PublishedStep], widths: Widths) -> Floats:
    return np.array([widths.of(one.sensitivities, one.gpus) for one in steps])


class HeldSteps(NamedTuple):
    """How many steps of a publisher lie inside intervals that its own steps did not widen."""

    steps: int
    inside: float
    half: float
    """Median half width (logarithm)."""


def held(steps: Sequence[PublishedStep], prior: Mapping[str, float]) -> tuple[dict[str, Widths], dict[str, HeldSteps]]:
    """Return widths by the publisher that is left out, and how many of its steps they hold."""
    widths, found = dict[str, Widths](), dict[str, HeldSteps]()
    for name in sorted({one.publisher for one in steps}):
        own = [one for one in steps if one.publisher == name]
        widths[name] = estimated([one for one in steps if one.publisher != name], prior)
        half = widths[name].bound * _each(own, widths[name])
        inside = np.abs([one.error for one in own]) <= half
        found[name] = HeldSteps(len(own), float(inside.mean()), float(np.median(half)))
    return widths, found
