"""Measurements of one machine → what its constants are, how sure that is, and what probably differs.

Forecasts bend where a step begins to wait for its host or its links, so the posterior is found in rounds (Gauss–Newton): each
takes the forecasts, and the slopes of what has moved, anew where the last one has found the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, hypot, log, sqrt
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import FAMILIES, Constant
from clustersim.calibration.posterior import (
    TUNING,
    MachinePosterior,
    Observation,
    Population,
    likelihoods,
    posterior,
)
from clustersim.calibration.sensitivity import slope

ChangedKeys = Mapping[str, object]
"""Values by dotted key."""
ROUNDS = 2
MOVED = 0.02
"""Change of a logarithm from which on slopes are taken anew."""
WITHIN: Mapping[str, float] = {"host": 0.2}
"""Standard deviation of the logarithm by which steps of one machine differ in a family of constants: a host's time for a kernel
differs with what is launched, so that host-bound steps of one machine (VTRAINS) do not tell of each other to the last percent."""
BOUND = 1.2816
"""Standard deviations of ln(measured / forecast) that hold 80 % of a normal distribution."""
CHOSEN = 0.5
"""Likelihood from which on a slow GPU is what differs."""
NOTHING = "nothing"
"""What differs where no constant does."""


class Measurement(NamedTuple):
    """Something that was measured, and how it is forecast."""

    name: str
    measured: float
    forecast: Callable[[ChangedKeys], float]
    """Returns it, in the unit of what was measured, with keys changed."""
    constants: tuple[Constant, ...]
    """What the forecast rests on."""
    spread: float
    """Standard deviation of ln(measured / forecast) where all constants are known."""


class SlowestGpu(Constant):
    """How many times as fast as the others one GPU computes, for which they wait: at most 1."""

    __slots__ = ()

    def changes(self, factor: float) -> dict[str, object]:
        """Return the fault of that GPU."""
        return {"faults": [{"gpu": 0, "slowdown": 1 / min(factor, 1.0)}]}


_FAULT = FAMILIES["slowest GPU"]
SLOWEST = SlowestGpu(_FAULT.family, _FAULT.scope, _FAULT.spread, _FAULT.chosen_on, {"faults": 1.0}, most=1.0)


@dataclass(frozen=True, slots=True)
class MachineEstimate:
    """What measurements say of a machine."""

    measurements: tuple[Measurement, ...]
    constants: tuple[Constant, ...]
    """As they are without them, in the order of the posterior."""
    found: MachinePosterior
    logs: Floats
    """Logarithms of how many times as large each constant is, within what its keys can say (constants,)."""
    before: Floats
    """ln(measured / forecast) of each measurement without any of them (measurements,) …"""
    after: Floats
    """… with all of them …"""
    left_out: Floats
    """… and with all but itself."""
    likely: Mapping[str, float]
    """How likely it is that one family of constants alone differs, or nothing; sums up to 1."""

    @property
    def changes(self) -> dict[str, object]:
        """The keys of the machine by what was found."""
        return changes(self.constants, self.logs)

    def keys_of(self, constant: Constant) -> dict[str, object]:
        """Return the keys of one constant, and those beside them, as they are on this machine."""
        return {key: value for key, value in self.changes.items() if key in (*constant.keys, *constant.beside)}

    def spread_of(self, one: Measurement) -> float:
        """Return the standard deviation of the logarithm of something else's forecast, with slopes where constants are usual."""
        usual = log(one.forecast({}))

        def change(constant: Constant, factor: float) -> float:
            return log(one.forecast(constant.changes(factor))) - usual

        slopes = {constant.name: slope(constant, partial(change, constant)) for constant in one.constants}
        names = self.found.prior.names
        own = np.array([slopes.get(name, 0.0) for name in names])
        unknown = [slopes[constant.name] * constant.spread for constant in one.constants if constant.name not in names]
        known = sqrt(float(own @ self.found.covariance @ own))
        return hypot(known, *unknown, remainder(one.spread, one.constants, slopes))


def fitted(measurements: Sequence[Measurement], show: Callable[[str], None] = lambda _: None) -> MachineEstimate:
    """Return the estimate of the machine that all measurements are of. show: receives progress.

    A slow GPU is one of the constants only where it is the likeliest thing to differ, as it looks much like a slow clock of all.
    Raises InputError for what cannot be simulated.
    """
    constants = tuple({one.name: one for own in measurements for one in own.constants}.values())
    slopes = np.zeros((len(measurements), len(constants)))
    before, slopes = _linearized(
        measurements, constants, np.zeros(len(constants)), slopes, [True] * len(constants), show
    )
    likely = _likely(_observations(measurements, constants, before, slopes), constants)
    if likely.get(SLOWEST.family, 0.0) < CHOSEN:
        kept = [place for place, one in enumerate(constants) if one.name != SLOWEST.name]
        constants, slopes = tuple(constants[place] for place in kept), slopes[:, kept]
    ratios, at = before, np.zeros(len(constants))
    for number in range(ROUNDS):
        prior = _prior(constants, at)
        observations = _observations(measurements, constants, ratios + slopes @ at, slopes)
        found = posterior(observations, prior)
        moved, at = at, _possible(observations, found, constants)
        stale = (np.abs(at - moved) > MOVED).tolist() if number + 1 < ROUNDS else [False] * len(constants)
        ratios, slopes = _linearized(measurements, constants, at, slopes, stale, show)
    left_out = [
        one.log_ratio - float(own @ posterior([*observations[:row], *observations[row + 1 :]], prior).mean)
        for row, (one, own) in enumerate(zip(observations, slopes, strict=True))
    ]
    return MachineEstimate(tuple(measurements), constants, found, at, before, ratios, np.array(left_out), likely)


def _prior(constants: Sequence[Constant], logs: Floats | float = 0.0) -> Population:
    """Return the prior of constants; outlying `logs` widen their own spread, as tails are heavy (Huber weights)."""
    spreads = np.array([one.spread for one in constants])
    wider = np.maximum(np.abs(logs) / spreads / TUNING, 1.0)
    return Population(tuple(one.name for one in constants), np.diag(spreads**2 * wider))


def _likely(observations: Sequence[Observation], constants: Sequence[Constant]) -> dict[str, float]:
    families: dict[str, list[str]] = {NOTHING: []}
    for constant in constants:
        families.setdefault(constant.family, []).append(constant.name)
    return likelihoods(observations, _prior(constants), families)


def changes(constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return the values of constants scaled by exp(`logs`), by key; those that stay are left out."""
    moved = [(one, one.changes(exp(x))) for one, x in zip(constants, logs.tolist(), strict=True) if x]
    found = {key: value for _, own in moved for key, value in own.items()}
    return found | {key: own[key] for one, own in moved for key in one.keys}  # not what others write beside theirs


def _observations(
    measurements: Sequence[Measurement], constants: Sequence[Constant], ratios: Floats, slopes: Floats
) -> list[Observation]:
    """Return measurements as the posterior takes them; ratios, slopes: as if forecasts were linear from the usual constants."""
    found = []
    for one, ratio, row in zip(measurements, ratios.tolist(), slopes.tolist(), strict=True):
        own = {constant.name: value for constant, value in zip(constants, row, strict=True)}
        found.append(Observation(one.name, ratio, own, remainder(one.spread, constants, own)))
    return found


def remainder(spread: float, constants: Sequence[Constant], slopes: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm of what is left where a machine's constants are known.

    spread: the same of what rests on no constant that differs within a machine. slopes: of the forecast, by constant.
    """
    return hypot(spread, *(WITHIN.get(one.family, 0.0) * slopes[one.name] for one in constants))


def _linearized(
    measurements: Sequence[Measurement],
    constants: Sequence[Constant],
    at: Floats,
    slopes: Floats,
    stale: Sequence[bool],
    show: Callable[[str], None],
) -> tuple[Floats, Floats]:
    """Return ln(measured / forecast) (measurements,), and slopes (measurements, constants), where constants are as `at` says.

    slopes: as they were; those of constants that are not stale stay.
    """
    ratios, found = np.empty(len(measurements)), slopes.copy()
    for row, one in enumerate(measurements):
        show(f"forecast {one.name}, {row + 1} of {len(measurements)}")
        ratios[row] = _log_ratio(one, constants, at)
        own = {constant.name for constant in one.constants}
        for place, constant in enumerate(constants):
            if stale[place] and constant.name in own:
                moved = replace(constant, most=max(1.0, constant.most / exp(at[place])))
                found[row, place] = slope(moved, partial(_change, one, constants, at, place, float(ratios[row])))
    return ratios, found


def _change(
    one: Measurement, constants: Sequence[Constant], at: Floats, place: int, here: float, factor: float
) -> float:
    there = at.copy()
    there[place] += log(factor)
    return here - _log_ratio(one, constants, there)


def _log_ratio(one: Measurement, constants: Sequence[Constant], logs: Floats) -> float:
    return log(one.measured / one.forecast(own_changes(one, constants, logs)))


def own_changes(one: Measurement, constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return the keys of a measurement whose constants differ by `logs`: those of one name have other values on another GPU."""
    known = {constant.name: x for constant, x in zip(constants, logs.tolist(), strict=True)}
    own = [constant for constant in one.constants if constant.name in known]
    return changes(own, np.array([known[constant.name] for constant in own]))


_PINNED = 1e-6
"""Spread of what keys hold a constant at."""


def _possible(observations: Sequence[Observation], found: MachinePosterior, constants: Sequence[Constant]) -> Floats:
    """Return the mean (constants,) within what keys can say; where one is at its most, the others explain what is left."""
    held: dict[str, Observation] = {}
    mean = found.mean
    for _ in constants:
        beyond = [
            one for one, x in zip(constants, mean.tolist(), strict=True) if x > log(one.most) and one.name not in held
        ]
        if not beyond:
            break
        held |= {one.name: Observation(one.name, log(one.most), {one.name: 1.0}, _PINNED) for one in beyond}
        mean = posterior([*observations, *held.values()], found.prior).mean
    return np.minimum(mean, [log(one.most) for one in constants])
