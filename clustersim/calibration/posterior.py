"""What measurements say of constants: linear and Gaussian in the logarithm, with less weight on what is far off.

    ln(measured / forecast)_r = sum_c S_rc m_c + e_r,   m ~ N(0, P),   e_r ~ N(0, s_r^2)

m_c is the logarithm of how many times its usual value a constant c is on one machine, P its covariance among machines, S_rc the
sensitivity of measurement r to it and s_r what no constant explains. An error beyond `TUNING` of its spreads weighs as much less
as it is farther off (Huber 1964), so that one odd measurement does not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints

TUNING = 1.345
"""Spreads beyond which an error weighs less: 95 % as precise as least squares where errors are Gaussian (Huber 1981)."""
ROUNDS = 50
"""Most passes in which the weights settle."""
_SETTLED = 0.01
"""Change of a weight from which on there is another pass: constants then move by less than a hundred-thousandth."""


class Observation(NamedTuple):
    """A measurement beside its forecast."""

    name: str
    log_ratio: float
    """ln(measured / forecast)."""
    sensitivities: Mapping[str, float]
    """d ln(forecast) / d ln(constant), by constant."""
    spread: float
    """Standard deviation of the logarithm that no constant explains."""


class Population(NamedTuple):
    """How constants differ among machines."""

    names: tuple[str, ...]
    covariance: Floats
    """Of their logarithms (constants, constants)."""


@dataclass(frozen=True, slots=True)
class MachinePosterior:
    """What is known of the constants of a machine after its measurements."""

    prior: Population
    mean: Floats
    """Of the logarithm of how many times the usual each constant is (constants,)."""
    covariance: Floats
    """(constants, constants)."""
    weights: Floats
    """Of each measurement, at most 1 (measurements,)."""

    def spread(self, name: str) -> float:
        """Return the standard deviation of the logarithm of a constant."""
        place = self.prior.names.index(name)
        return sqrt(float(self.covariance[place, place]))

    def factor(self, name: str) -> float:
        """Return how many times its usual value a constant is."""
        return exp(float(self.mean[self.prior.names.index(name)]))


def posterior(observations: Sequence[Observation], prior: Population) -> MachinePosterior:
    """Return the posterior of constants; without measurements it is the prior."""
    slopes, ratios, spreads = _arrays(observations, prior.names)
    noise = SharedUnknowns(np.arange(len(ratios)), spreads)
    mean, covariance, [weights] = robust(
        slopes, ratios, prior.covariance, slopes @ prior.covariance @ slopes.T, [noise]
    )
    return MachinePosterior(prior, mean, covariance, weights)


class SharedUnknowns(NamedTuple):
    """What no constant explains of measurements, of which several may share one unknown: of a publisher, or each its own."""

    of: Ints
    """The unknown of each measurement (measurements,)."""
    spreads: Floats
    """Standard deviation of each unknown (unknowns,)."""

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariance of measurements due to the unknowns (measurements, measurements)."""
        found: Floats = np.equal.outer(self.of, self.of) * (self.spreads**2 / weights)[self.of][:, None]
        return found

    def settled(self, weights: Floats, solved: Floats) -> Floats:
        """Return Huber's weights at the likeliest unknowns; solved: the inverse of the covariance times the measurements."""
        likeliest = self.spreads / weights * np.bincount(self.of, solved, len(weights))
        found: Floats = np.minimum(1.0, TUNING / np.maximum(np.abs(likeliest), TUNING))
        return found


def robust(
    slopes: Floats, ratios: Floats, known: Floats, explained: Floats, groups: Sequence[SharedUnknowns]
) -> tuple[Floats, Floats, list[Floats]]:
    """Return mean and covariance of constants after measurements, and the weights of the unknowns of each group.

    m = P S' W^-1 r, C = P - P S' W^-1 S P. slopes: S (measurements, constants); ratios: r (measurements,); known: P (constants,
    constants); explained: the covariance of measurements that constants make (measurements, measurements), to which that of
    the groups is added for W.
    """
    weights = [np.ones(len(one.spreads)) for one in groups]
    asked = np.column_stack([ratios, slopes @ known])
    for _ in range(ROUNDS):
        whole = explained + sum(one.covariance(own) for one, own in zip(groups, weights, strict=True))
        solved = np.linalg.solve(whole, asked)
        errors = np.asarray(solved[:, 0], float)
        before, weights = weights, [one.settled(own, errors) for one, own in zip(groups, weights, strict=True)]
        if all(np.abs(own - was).max(initial=0.0) < _SETTLED for own, was in zip(weights, before, strict=True)):
            break
    covariance = known - asked[:, 1:].T @ solved[:, 1:]
    return asked[:, 1:].T @ solved[:, 0], (covariance + covariance.T) / 2, weights


def _arrays(observations: Sequence[Observation], names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    slopes = np.array([[one.sensitivities.get(name, 0.0) for name in names] for one in observations])
    ratios = np.array([one.log_ratio for one in observations])
    return slopes.reshape(len(ratios), len(names)), ratios, np.array([one.spread for one in observations])


def likelihoods(
    observations: Sequence[Observation], prior: Population, groups: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return how likely it is that one group of constants, and no other, is what differs; they add up to 1.

    groups: names of constants by what is said to differ, none of them for nothing. All are as likely before anything is measured;
    each is weighed by the density of the measurements where the others are as usual, errors with the weights that all of
    the constants together leave them.
    """
    slopes, ratios, spreads = _arrays(observations, prior.names)
    spreads = spreads / np.sqrt(posterior(observations, prior).weights)
    densities = {}
    for group, names in groups.items():
        own = np.array([float(name in names) for name in prior.names])
        covariance = slopes @ (prior.covariance * np.outer(own, own)) @ slopes.T + np.diag(spreads**2)
        _, size = np.linalg.slogdet(covariance)
        densities[group] = -0.5 * (float(size) + float(ratios @ np.linalg.solve(covariance, ratios)))
    most = max(densities.values())
    total = sum(exp(one - most) for one in densities.values())
    return {group: exp(one - most) / total for group, one in densities.items()}
