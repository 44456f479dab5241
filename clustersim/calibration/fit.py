"""Measurements of one machine → estimates of its constants, their uncertainty, and what probably differs.

Forecasts are nonlinear where a step begins to wait for its host or its links, so the posterior is found in rounds (Gauss–Newton):
each recomputes the forecasts, and the slopes of constants that moved, at the last estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, hypot, log
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import FAMILIES, Constant
from clustersim.calibration.posterior import TUNING, MachinePosterior, Observation, Population, likelihoods, posterior
from clustersim.calibration.sensitivity import slope

ChangedKeys = Mapping[str, object]
"""Values by dotted key."""
ROUNDS = 2
MOVED = 0.02
"""Change of a logarithm above which slopes are recomputed."""
WITHIN: Mapping[str, float] = {"host": 0.2}
"""Standard deviation of the logarithm by which steps of one machine differ in a family of constants: a host's time for a kernel
differs with what is launched, so that host-bound steps of one machine (VTRAINS) do not tell of each other to the last percent."""
BOUND = 1.2816
"""Standard deviations of ln(measured / forecast) that cover 80 % of a normal distribution."""
CHOSEN = 0.5
"""Likelihood above which a slow GPU counts as the difference."""
NOTHING = "nothing"
"""Name of the hypothesis that no constant differs."""


class Measurement(NamedTuple):
    """A measured quantity and its forecast."""

    name: str
    measured: float
    forecast: Callable[[ChangedKeys], float]
    """Function from changed keys to its forecast, in the unit of the measurement."""
    constants: tuple[Constant, ...]
    """Constants that the forecast depends on."""
    spread: float
    """Standard deviation of ln(measured / forecast) if all constants are known."""


class SlowestGpu(Constant):
    """Speed of one GPU relative to the others, which wait for it: at most 1."""

    __slots__ = ()

    def changes(self, factor: float) -> dict[str, object]:
        """Return the fault of that GPU, as a key."""
        return {"faults": [{"gpu": 0, "slowdown": 1 / min(factor, 1.0)}]}


_FAULT = FAMILIES["slowest GPU"]
SLOWEST = SlowestGpu(_FAULT.family, _FAULT.scope, _FAULT.spread, _FAULT.chosen_on, {"faults": 1.0}, most=1.0)


@dataclass(frozen=True, slots=True)
class MachineEstimate:
    """Estimate of a machine from measurements."""

    measurements: tuple[Measurement, ...]
    constants: tuple[Constant, ...]
    """Constants with their usual values, in the order of the posterior."""
    found: MachinePosterior
    logs: Floats
    """Logarithm of each constant's factor, within the limits of its keys (constants,)."""
    before: Floats
    """ln(measured / forecast) of each measurement with usual constants (measurements,) …"""
    after: Floats
    """… with all estimates …"""
    left_out: Floats
    """… and with estimates from all other measurements."""
    likely: Mapping[str, float]
    """{family: likelihood that only this family differs}, or nothing does; with sum 1."""

    @property
    def changes(self) -> dict[str, object]:
        """Values of the machine's keys from the estimate."""
        return changes(self.constants, self.logs)

    def keys_of(self, constant: Constant) -> dict[str, object]:
        """Return the values of one constant's keys, and those written with them, on this machine."""
        return {key: value for key, value in self.changes.items() if key in (*constant.keys, *constant.beside)}


def fitted(measurements: Sequence[Measurement], show: Callable[[str], None] = lambda _: None) -> MachineEstimate:
    """Return the estimate of the machine from all measurements. show: receives progress.

    A slow GPU is included only if it is the likeliest difference, because it resembles a slow clock of all. Raises InputError for
    what cannot be simulated.
    """
    constants = tuple({one.name: one for own in measurements for one in own.constants}.values())
    at, unknown = np.zeros(len(constants)), np.zeros((len(measurements), len(constants)))
    before, slopes = _linearized(measurements, constants, at, unknown, [True] * len(constants), show)
    families: dict[str, list[str]] = {NOTHING: []}
    for one in constants:
        families.setdefault(one.family, []).append(one.name)
    likely = likelihoods(_observations(measurements, constants, before, slopes), _prior(constants), families)
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
    """Return the prior of constants; outlying `logs` widen it, because tails are heavy (Huber weights)."""
    spreads = np.array([one.spread for one in constants])
    wider = np.maximum(np.abs(logs) / spreads / TUNING, 1.0)
    return Population(tuple(one.name for one in constants), np.diag(spreads**2 * wider))


def changes(constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return {key: value} of constants scaled by exp(`logs`), without unchanged ones."""
    moved = [(one, one.changes(exp(x))) for one, x in zip(constants, logs.tolist(), strict=True) if x]
    found = {key: value for _, own in moved for key, value in own.items()}
    return found | {key: own[key] for one, own in moved for key in one.keys}  # own values last


def _observations(
    measurements: Sequence[Measurement], constants: Sequence[Constant], ratios: Floats, slopes: Floats
) -> list[Observation]:
    """Return measurements as input of the posterior. ratios, slopes: forecasts linearized at the usual constants."""
    found = []
    for one, ratio, row in zip(measurements, ratios.tolist(), slopes.tolist(), strict=True):
        own = {constant.name: value for constant, value in zip(constants, row, strict=True)}
        found.append(Observation(one.name, ratio, own, remainder(one.spread, constants, own)))
    return found


def remainder(spread: float, constants: Sequence[Constant], slopes: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm that remains if a machine's constants are known.

    spread: the part from no constant that differs within a machine. slopes: of the forecast, by constant.
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
    """Return ln(measured / forecast) (measurements,), and slopes (measurements, constants), at the constants `at`.

    slopes: previous slopes, kept for constants that are not stale.
    """
    ratios, found = np.empty(len(measurements)), slopes.copy()
    for row, one in enumerate(measurements):
        show(f"forecast {one.name}, {row + 1} of {len(measurements)}")
        ratios[row] = _log_ratio(one, constants, at)
        own = {constant.name for constant in one.constants}

        def change(place: int, factor: float, one: Measurement = one, here: float = float(ratios[row])) -> float:
            """Return the change of the forecast's logarithm for the constant at a place `factor` times as large."""
            step = np.zeros(len(constants))
            step[place] = log(factor)
            return here - _log_ratio(one, constants, at + step)

        for place, constant in enumerate(constants):
            if stale[place] and constant.name in own:
                moved = replace(constant, most=max(1.0, constant.most / exp(at[place])))
                found[row, place] = slope(moved, partial(change, place))
    return ratios, found


def _log_ratio(one: Measurement, constants: Sequence[Constant], logs: Floats) -> float:
    """Return ln(measured / forecast) of a measurement for constants that differ by `logs`."""
    return log(one.measured / one.forecast(own_changes(one, constants, logs)))


def own_changes(one: Measurement, constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return the keys of a measurement whose constants differ by `logs`: equal names have other values on another GPU."""
    known = {constant.name: x for constant, x in zip(constants, logs.tolist(), strict=True)}
    own = [constant for constant in one.constants if constant.name in known]
    return changes(own, np.array([known[constant.name] for constant in own]))


_PINNED = 1e-6
"""Spread of a constant that is fixed by the limits of its keys."""


def _possible(observations: Sequence[Observation], found: MachinePosterior, constants: Sequence[Constant]) -> Floats:
    """Return the mean (constants,) within the limits of keys; if one is at its limit, the others explain the rest."""
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
