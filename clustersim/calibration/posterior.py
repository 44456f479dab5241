"""Estimates of constants from measurements: linear and Gaussian in the logarithm, with less weight on outliers.

    ln(measured / forecast)_r = sum_c S_rc m_c + e_r,   m ~ N(0, P),   e_r ~ N(0, s_r^2)

m_c is the logarithm of constant c on one machine over its usual value, P the covariance of m between machines, S_rc the
sensitivity of measurement r to constant c, and s_r the spread of the error e_r that no constant explains. An error of more than
`TUNING` spreads has weight TUNING / error (Huber 1964), so that one wrong measurement does not decide.
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
    """A measurement, its forecast and how the forecast depends on constants."""

    name: str
    log_ratio: float
    """ln(measured / forecast)."""
    sensitivities: Mapping[str, float]
    """{constant: d ln(forecast) / d ln(constant)}"""
    spread: float
    """Standard deviation of the part of `log_ratio` that no constant explains."""


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
    """Covariance of the logarithms of the factors (constants, constants)."""
    weights: Floats
    """Weight of each measurement, at most 1; lower for outliers (measurements,)."""

    def spread(self, name: str) -> float:
        """Return the standard deviation of a constant's logarithm. Raises ValueError for a name that `prior` does not have."""
        index = self.prior.names.index(name)
        return sqrt(float(self.covariance[index, index]))


def posterior(observations: Sequence[Observation], prior: Population) -> MachinePosterior:
    """Return the posterior of the constants named in `prior`; without measurements it equals the prior.

    m = P S' W^-1 r, C = P - P S' W^-1 S P, W = S P S' + diag(s^2 / w), with Huber's weights w of the likeliest errors.
    """
    slopes, ratios, spreads = _arrays(observations, prior.names)
    weights, cross_covariance = np.ones(len(ratios)), slopes @ prior.covariance
    for _ in range(ROUNDS):
        total_covariance = cross_covariance @ slopes.T + np.diag(spreads**2 / weights)
        solution = np.linalg.solve(total_covariance, np.column_stack([ratios, cross_covariance]))
        errors = np.abs(spreads / weights * solution[:, 0])  # in spreads
        before, weights = weights, TUNING / np.maximum(errors, TUNING)
        if np.abs(weights - before).max(initial=0.0) < _SETTLED:
            break
    covariance = prior.covariance - cross_covariance.T @ solution[:, 1:]
    return MachinePosterior(prior, cross_covariance.T @ solution[:, 0], (covariance + covariance.T) / 2, weights)


def _arrays(observations: Sequence[Observation], names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Return sensitivities (measurements, constants), log ratios and spreads (measurements,); a missing sensitivity is 0."""
    slopes = np.array([[row.sensitivities.get(name, 0.0) for name in names] for row in observations])
    ratios = np.array([row.log_ratio for row in observations])
    return slopes.reshape(len(ratios), len(names)), ratios, np.array([row.spread for row in observations])


def likelihoods(
    observations: Sequence[Observation], prior: Population, groups: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return {group: likelihood that only the constants of this group differ from their usual values}, with sum 1.

    groups: {group: names of its constants}; no names: nothing differs. All groups have the same prior probability. A likelihood
    is proportional to the density of the measurements if all other constants are usual. Outliers have the weights of
    `posterior`.
    """
    slopes, ratios, spreads = _arrays(observations, prior.names)
    spreads = spreads / np.sqrt(posterior(observations, prior).weights)
    densities = {}
    for group, names in groups.items():
        differs = np.array([float(name in names) for name in prior.names])
        covariance = slopes @ (prior.covariance * np.outer(differs, differs)) @ slopes.T + np.diag(spreads**2)
        _, size = np.linalg.slogdet(covariance)
        densities[group] = -0.5 * (float(size) + float(ratios @ np.linalg.solve(covariance, ratios)))
    most = max(densities.values())
    total = sum(exp(density - most) for density in densities.values())
    return {group: exp(density - most) / total for group, density in densities.items()}
