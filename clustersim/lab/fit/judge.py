"""What a fit is worth: the errors of publishers that it has not seen, and which families of constants they refuse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import family
from clustersim.lab.fit.pooled import Posterior, Prior, PublishedStep, fit

GAIN = 1e-3
"""By how much the mean error over publishers left out must fall for a family to be taken: a tenth of a point."""


class GroupErrors(NamedTuple):
    """Errors of some steps, forecast / measured - 1."""

    steps: int
    mean: float
    bias: float


class Errors(NamedTuple):
    """Errors of all steps."""

    publishers: dict[str, GroupErrors]
    groups: dict[str, GroupErrors]
    """By GPU and data type."""
    mean: float
    """Over publishers, of their means."""
    median: float
    """Over steps."""
    p90: float
    bias: float


def errors(steps: Sequence[PublishedStep], corrections: Floats) -> Errors:
    """Return the errors of forecasts whose logarithms are corrected (steps,)."""
    each = np.expm1(corrections - np.array([one.error for one in steps]))
    size = np.abs(each)
    publishers = _grouped(steps, each, lambda one: one.publisher)
    return Errors(
        publishers,
        _grouped(steps, each, lambda one: one.group),
        float(np.mean([one.mean for one in publishers.values()])),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(each.mean()),
    )


def _grouped(
    steps: Sequence[PublishedStep], each: Floats, of: Callable[[PublishedStep], str]
) -> dict[str, GroupErrors]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one, error in zip(steps, each.tolist(), strict=True):
        found[of(one)].append(error)
    largest = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return {name: GroupErrors(len(own), float(np.mean(np.abs(own))), float(np.mean(own))) for name, own in largest}


def left_out(steps: Sequence[PublishedStep], prior: Prior) -> tuple[Floats, dict[str, Posterior]]:
    """Return the corrections of all steps, each by a fit to the other publishers (steps,), and these fits by publisher."""
    corrections, fits = np.zeros(len(steps)), dict[str, Posterior]()
    for name in sorted({one.publisher for one in steps}):
        own = [place for place, one in enumerate(steps) if one.publisher == name]
        fits[name] = fit([one for one in steps if one.publisher != name], prior)
        corrections[own] = fits[name].correction([steps[place] for place in own])
    return corrections, fits


class FamilyTrial(NamedTuple):
    """What fitting a family does to the mean error over publishers."""

    family: str
    own: float
    """With each publisher in the fit."""
    strangers: float
    """With each publisher left out."""
    before: float
    """Without the family."""
    spared: float
    """By how much the error of publishers left out falls, without the one that gains most."""

    @property
    def taken(self) -> bool:
        """Whether strangers gain, and more than one of them."""
        return self.strangers < self.before - GAIN and self.spared > 0


def chosen(
    steps: Sequence[PublishedStep], prior: Prior, show: Callable[[str], None] = lambda _: None
) -> tuple[list[str], list[FamilyTrial]]:
    """Return the families that help publishers left out, the best first, and the trials of all others beside them."""
    names = list(dict.fromkeys(map(family, prior.names)))
    taken: list[str] = []
    now = errors(steps, np.zeros(len(steps)))
    while True:
        trials = []
        for name in names:
            show(f"{name}, beside {' and '.join(taken) or 'nothing'}")
            trials.append(_trial(steps, prior.only([*taken, name]), name, now))
        best = min((one for one in trials if one.taken), key=lambda one: one.strangers, default=None)
        if best is None:
            return taken, trials
        taken.append(best.family)
        names.remove(best.family)
        now = errors(steps, left_out(steps, prior.only(taken))[0])


def _trial(steps: Sequence[PublishedStep], prior: Prior, name: str, now: Errors) -> FamilyTrial:
    after = errors(steps, left_out(steps, prior)[0])
    gains = sorted(now.publishers[one].mean - own.mean for one, own in after.publishers.items())
    own = errors(steps, fit(steps, prior).correction(steps)).mean
    return FamilyTrial(name, own, after.mean, now.mean, float(sum(gains[:-1])) / len(gains))
