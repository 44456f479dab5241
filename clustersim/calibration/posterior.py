"""Estimates of constants from measurements: linear and Gaussian in the logarithm, with less weight on outliers.

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

from clustersim.arrays import Floats

TUNING = 1.345
"""Errors, in standard deviations, above which weights fall: 95 % as precise as least squares for Gaussian errors (Huber 1981)."""
ROUNDS = 50
"""Largest number of iterations of the weights."""
_SETTLED = 0.01
"""Change of a weight above which another iteration follows: constants then move by less than a hundred-thousandth."""


class Observation(NamedTuple):
    """A measurement and its forecast."""

    name: str
    log_ratio: float
    """ln(measured / forecast)."""
    sensitivities: Mapping[str, float]
    """{constant: d ln(forecast) / d ln(constant)}"""
    spread: float
    """Standard deviation of the logarithm that no constant explains."""


class Population(NamedTuple):
    """Variation of constants between machines."""

    names: tuple[str, ...]
    covariance: Floats
    """Covariance of their logarithms (constants, constants)."""


@dataclass(frozen=True, slots=True)
class MachinePosterior:
    """Distribution of the constants of a machine given its measurements."""

    prior: Population
    mean: Floats
    """Mean logarithm of each constant's factor on its usual value (constants,)."""
    covariance: Floats
    """Covariance of these logarithms (constants, constants)."""
    weights: Floats
    """Weight of each measurement, at most 1 (measurements,)."""

    def spread(self, name: str) -> float:
        """Return the standard deviation of the logarithm of a constant."""
        place = self.prior.names.index(name)
        return sqrt(float(self.covariance[place, place]))


def posterior(observations: Sequence[Observation], prior: Population) -> MachinePosterior:
    """Return the posterior of constants; without measurements it is the prior.

    m = P S' W^-1 r, C = P - P S' W^-1 S P, W = S P S' + diag(s^2 / w), with Huber's weights w of the likeliest errors.
    """
    slopes, ratios, spreads = _arrays(observations, prior.names)
    weights, shared = np.ones(len(ratios)), slopes @ prior.covariance
    for _ in range(ROUNDS):
        whole = shared @ slopes.T + np.diag(spreads**2 / weights)
        solved = np.linalg.solve(whole, np.column_stack([ratios, shared]))
        errors = np.abs(spreads / weights * solved[:, 0])  # in spreads
        before, weights = weights, TUNING / np.maximum(errors, TUNING)
        if np.abs(weights - before).max(initial=0.0) < _SETTLED:
            break
    covariance = prior.covariance - shared.T @ solved[:, 1:]
    return MachinePosterior(prior, shared.T @ solved[:, 0], (covariance + covariance.T) / 2, weights)


def _arrays(observations: Sequence[Observation], names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Return sensitivities (measurements, constants), log ratios and spreads (measurements,) of observations."""
    slopes = np.array([[one.sensitivities.get(name, 0.0) for name in names] for one in observations])
    ratios = np.array([one.log_ratio for one in observations])
    return slopes.reshape(len(ratios), len(names)), ratios, np.array([one.spread for one in observations])


def likelihoods(
    observations: Sequence[Observation], prior: Population, groups: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return {group: likelihood that only this group of constants differs}, with sum 1.

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
