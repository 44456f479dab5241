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

from clustersim.arrays import Floats

TUNING = 1.345
"""Spreads beyond which an error weighs less: 95 % as precise as least squares where errors are Gaussian (Huber 1981)."""
ROUNDS = 50
_SETTLED = 1e-10


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
    """Return what measurements say of constants; without any it is the prior."""
    slopes, ratios, spreads = _arrays(observations, prior.names)
    weights = np.ones(len(ratios))
    found = _solved(slopes, ratios, spreads, prior)
    for _ in range(ROUNDS):
        off = np.abs(ratios - slopes @ found[0]) / spreads
        before, weights = weights, np.minimum(1.0, TUNING / np.maximum(off, TUNING))
        found = _solved(slopes, ratios, spreads / np.sqrt(weights), prior)
        if np.abs(weights - before).max(initial=0.0) < _SETTLED:
            break
    return MachinePosterior(prior, *found, weights)


def _arrays(observations: Sequence[Observation], names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    slopes = np.array([[one.sensitivities.get(name, 0.0) for name in names] for one in observations])
    ratios = np.array([one.log_ratio for one in observations])
    return slopes.reshape(len(ratios), len(names)), ratios, np.array([one.spread for one in observations])


def _solved(slopes: Floats, ratios: Floats, spreads: Floats, prior: Population) -> tuple[Floats, Floats]:
    """Return mean and covariance: m = G r, C = P - G S P, of the gain G = P S' (S P S' + E)^-1."""
    covariance = prior.covariance
    measured = slopes @ covariance @ slopes.T + np.diag(spreads**2)
    gain = np.linalg.solve(measured, slopes @ covariance).T
    left = np.eye(len(covariance)) - gain @ slopes
    # Joseph's form stays symmetric and positive, whatever is rounded
    return gain @ ratios, left @ covariance @ left.T + gain @ np.diag(spreads**2) @ gain.T


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
