"""Constants estimated together on measured steps, partially pooled: a machine's own does not become a property of the part.

Of a step r of publisher p on a machine m, of a kind k of steps, with sensitivities S to constants c:

    log(measured / forecast) = sum_c S_rc (x_c + u_cm) + v_p + w_k + e_r

x: how far each constant's logarithm is from its prior, of which its family shares a part; u: what a machine has for itself; v, w:
what no constant explains of a publisher, and of its steps of one kind; e: noise. All are normal, the last three with less weight
on what is far off (`calibration.posterior.robust`): sources that disagree with all others lose their say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import family
from clustersim.calibration.posterior import SharedUnknowns, robust


class PublishedStep(NamedTuple):
    """A published step beside its forecast."""

    id: str
    publisher: str
    machine: str
    """Whose clock, host and network its steps share."""
    cell: str
    """Publisher, GPU, precision, tensor parallelism, sequence and scale: steps whose errors go together."""
    group: str
    """GPU and data type."""
    error: float
    """log(measured / forecast)."""
    sensitivities: Mapping[str, float]
    """d log(step) / d log(constant) by name."""
    gpus: int = 1
    question: str = ""
    """The same for steps that are forecast from the same files."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known before any step is seen.

    A constant's spread among unmeasured machines is that of three things, each of a third of its square: what its
    family shares, what it has for itself, and what the machine has.
    """

    spreads: Mapping[str, float]
    """Standard deviation of each constant's logarithm, by name."""
    publisher: float = 0.03
    """Of what no constant explains of a publisher."""
    cell: float = 0.06
    """Of its steps of one kind."""
    noise: float = 0.04
    """Of a step."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the constants."""
        return tuple(self.spreads)

    @property
    def own(self) -> Floats:
        """Standard deviation of each of the three (constants,)."""
        found: Floats = np.array(list(self.spreads.values())) / np.sqrt(3)
        return found

    @property
    def covariance(self) -> Floats:
        """What is known of the constants' logarithms (constants, constants)."""
        families = np.array([family(name) for name in self.names])
        found: Floats = np.equal.outer(families, families) * np.outer(self.own, self.own) + np.diag(self.own**2)
        return found

    def only(self, families: Sequence[str]) -> Prior:
        """Return the prior of the constants of some families."""
        kept = {name: value for name, value in self.spreads.items() if family(name) in families}
        return Prior(kept, self.publisher, self.cell, self.noise)


@dataclass(frozen=True, slots=True)
class Posterior:
    """What steps say of the constants."""

    prior: Prior
    mean: Floats
    """By how much each logarithm is off its prior (constants,)."""
    covariance: Floats
    """(constants, constants)."""

    def correction(self, steps: Sequence[PublishedStep]) -> Floats:
        """Return the correction of the logarithm of each forecast (steps,)."""
        found: Floats = design(steps, self.prior.names) @ self.mean
        return found

    @property
    def factors(self) -> dict[str, tuple[float, float]]:
        """Return {name: (factor, standard deviation of its logarithm)}."""
        spreads = np.sqrt(np.diag(self.covariance)).tolist()
        return dict(zip(self.prior.names, zip(np.exp(self.mean).tolist(), spreads, strict=True), strict=True))

    def alike(self, most: float = 0.9) -> list[tuple[str, str, float]]:
        """Return pairs of constants that the steps cannot tell apart: the size of their correlation is above `most`."""
        spreads = np.sqrt(np.diag(self.covariance))
        found = self.covariance / np.outer(spreads, spreads)
        names = self.prior.names
        pairs = np.argwhere(np.triu(np.abs(found) > most, 1)).tolist()
        return [(names[i], names[j], float(found[i, j])) for i, j in pairs]


def design(steps: Sequence[PublishedStep], names: Sequence[str]) -> Floats:
    """Return the sensitivities (steps, constants)."""
    found = [[one.sensitivities.get(name, 0.0) for name in names] for one in steps]
    return np.array(found).reshape(len(steps), len(names))


def fit(steps: Sequence[PublishedStep], prior: Prior) -> Posterior:
    """Return the posterior of the constants. Without steps, or constants, it is the prior."""
    known = prior.covariance
    if not steps or not prior.spreads:
        return Posterior(prior, np.zeros(len(prior.spreads)), known)
    s, target = design(steps, prior.names), np.array([one.error for one in steps])
    machine = np.unique([one.machine for one in steps], return_inverse=True)[1]
    own = s * prior.own
    explained = s @ known @ s.T + (own @ own.T) * np.equal.outer(machine, machine)
    groups = [
        _shared([one.publisher for one in steps], prior.publisher),
        _shared([one.cell for one in steps], prior.cell),
        SharedUnknowns(np.arange(len(steps)), np.full(len(steps), prior.noise)),
    ]
    mean, covariance, _ = robust(s, target, known, explained, groups)
    return Posterior(prior, mean, covariance)


def _shared(names: Sequence[str], spread: float) -> SharedUnknowns:
    """Return the unknowns of which steps of equal names share one."""
    different, of = np.unique(names, return_inverse=True)
    return SharedUnknowns(of, np.full(len(different), spread))
