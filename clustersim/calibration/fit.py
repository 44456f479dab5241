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
"""{dotted key of a topology or workload: new value}"""
ROUNDS = 2
"""Number of Gauss–Newton rounds."""
MOVED = 0.02
"""Change of a constant's logarithm above which its slopes are recomputed."""
WITHIN: Mapping[str, float] = {"host": 0.2}
"""{family: standard deviation of the logarithm by which its constants differ between steps of one machine}. A host's time for a
kernel differs with what is launched, so one host-bound step (VTRAINS) does not determine another to the last percent."""
BOUND = 1.2816
"""Number of standard deviations that cover the central 80 % of a normal distribution."""
CHOSEN = 0.5
"""Likelihood from which on a slow GPU counts as the difference."""
NOTHING = "nothing"
"""Name of the hypothesis that no constant differs."""


class Measurement(NamedTuple):
    """A measured quantity and its forecast."""

    name: str
    measured: float
    forecast: Callable[[ChangedKeys], float]
    """Function from changed keys to the forecast, in the unit of the measurement."""
    constants: tuple[Constant, ...]
    """Constants that the forecast depends on."""
    spread: float
    """Standard deviation of ln(measured / forecast) if all constants are known."""


class SlowestGpu(Constant):
    """Speed of GPU 0 relative to the other GPUs, which wait for it: at most 1."""

    __slots__ = ()

    def changes(self, factor: float) -> dict[str, object]:
        """Return {`faults`: the slowdown of GPU 0} for a speed `factor` times as large."""
        return {"faults": [{"gpu": 0, "slowdown": 1 / min(factor, 1.0)}]}


_FAULT = FAMILIES["slowest GPU"]
SLOWEST = SlowestGpu(_FAULT.family, _FAULT.scope, _FAULT.spread, _FAULT.chosen_on, {"faults": 1.0}, most=1.0)


@dataclass(frozen=True, slots=True)
class MachineEstimate:
    """Estimate of a machine from measurements."""

    measurements: tuple[Measurement, ...]
    constants: tuple[Constant, ...]
    """Constants with their usual values, in the order of the posterior's arrays."""
    posterior: MachinePosterior
    logs: Floats
    """Logarithm of each constant's factor, within the limits of its keys (constants,)."""
    before: Floats
    """ln(measured / forecast) with usual constants (measurements,)."""
    after: Floats
    """ln(measured / forecast) with the estimated constants (measurements,)."""
    left_out: Floats
    """ln(measured / forecast) with constants estimated from all other measurements, linearized (measurements,)."""
    likely: Mapping[str, float]
    """{family, or NOTHING: likelihood that only this family, or no constant, differs from usual}; with sum 1."""

    @property
    def changes(self) -> dict[str, object]:
        """{dotted key: value on this machine}, without constants that do not differ."""
        return changes(self.constants, self.logs)

    def keys_of(self, constant: Constant) -> dict[str, object]:
        """Return {key: value on this machine} for a constant's keys and companions; {} if the constant does not differ."""
        return {key: value for key, value in self.changes.items() if key in (*constant.keys, *constant.companions)}


def fitted(measurements: Sequence[Measurement], show: Callable[[str], None] = lambda _: None) -> MachineEstimate:
    """Return the estimate of the machine from all measurements. show: callback that receives a line of progress.

    A slow GPU is included only if its likelihood reaches CHOSEN, because it resembles a slow clock of all GPUs. Raises InputError
    for jobs that cannot be simulated.
    """
    constants = tuple({constant.name: constant for row in measurements for constant in row.constants}.values())
    logs, no_slopes = np.zeros(len(constants)), np.zeros((len(measurements), len(constants)))
    before, slopes = _linearized(measurements, constants, logs, no_slopes, [True] * len(constants), show)
    families: dict[str, list[str]] = {NOTHING: []}
    for constant in constants:
        families.setdefault(constant.family, []).append(constant.name)
    likely = likelihoods(_observations(measurements, constants, before, slopes), _prior(constants), families)
    if likely.get(SLOWEST.family, 0.0) < CHOSEN:
        kept = [index for index, constant in enumerate(constants) if constant.name != SLOWEST.name]
        constants, slopes = tuple(constants[index] for index in kept), slopes[:, kept]
    ratios, logs = before, np.zeros(len(constants))
    for number in range(ROUNDS):
        prior = _prior(constants, logs)
        observations = _observations(measurements, constants, ratios + slopes @ logs, slopes)
        estimate = posterior(observations, prior)
        previous, logs = logs, _mean_within_limits(observations, estimate, constants)
        stale = (np.abs(logs - previous) > MOVED).tolist() if number + 1 < ROUNDS else [False] * len(constants)
        ratios, slopes = _linearized(measurements, constants, logs, slopes, stale, show)
    left_out = [
        observed.log_ratio - float(slopes[row] @ posterior([*observations[:row], *observations[row + 1 :]], prior).mean)
        for row, observed in enumerate(observations)
    ]
    return MachineEstimate(tuple(measurements), constants, estimate, logs, before, ratios, np.array(left_out), likely)


def _prior(constants: Sequence[Constant], logs: Floats | float = 0.0) -> Population:
    """Return the prior of constants. It is wider for constants whose `logs` exceed TUNING spreads: tails are heavy (Huber)."""
    spreads = np.array([constant.spread for constant in constants])
    wider = np.maximum(np.abs(logs) / spreads / TUNING, 1.0)
    return Population(tuple(constant.name for constant in constants), np.diag(spreads**2 * wider))


def changes(constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return {key: value} of constants scaled by exp(`logs`) (constants,), and of their companions, unchanged.

    Factors are at most `Constant.most`. Constants with logarithm 0 are left out.
    """
    moved = [(constant, constant.changes(exp(x))) for constant, x in zip(constants, logs.tolist(), strict=True) if x]
    values = {key: value for _, new_values in moved for key, value in new_values.items()}
    # a constant's keys override the companions of other constants
    return values | {key: new_values[key] for constant, new_values in moved for key in constant.keys}


def _observations(
    measurements: Sequence[Measurement], constants: Sequence[Constant], ratios: Floats, slopes: Floats
) -> list[Observation]:
    """Return measurements as input of the posterior.

    ratios: ln(measured / forecast) (measurements,). slopes: d ln(forecast) / d ln(constant) (measurements, constants).
    """
    observations = []
    for measurement, ratio, row in zip(measurements, ratios.tolist(), slopes.tolist(), strict=True):
        by_constant = {constant.name: value for constant, value in zip(constants, row, strict=True)}
        spread = remainder(measurement.spread, constants, by_constant)
        observations.append(Observation(measurement.name, ratio, by_constant, spread))
    return observations


def remainder(spread: float, constants: Sequence[Constant], slopes: Mapping[str, float]) -> float:
    """Return the standard deviation of ln(measured / forecast) that remains if a machine's constants are known.

    spread: the part that no constant explains. slopes: {constant: d ln(forecast) / d ln(constant)}.
    """
    return hypot(spread, *(WITHIN.get(constant.family, 0.0) * slopes[constant.name] for constant in constants))


def _linearized(
    measurements: Sequence[Measurement],
    constants: Sequence[Constant],
    logs: Floats,
    slopes: Floats,
    stale: Sequence[bool],
    show: Callable[[str], None],
) -> tuple[Floats, Floats]:
    """Return ln(measured / forecast) (measurements,), and slopes (measurements, constants), with factors exp(`logs`).

    slopes: previous slopes, kept for constants that are not `stale`. show: callback that receives a line of progress.
    """
    ratios, new_slopes = np.empty(len(measurements)), slopes.copy()
    for row, measurement in enumerate(measurements):
        show(f"forecast {measurement.name}, {row + 1} of {len(measurements)}")
        ratios[row] = _log_ratio(measurement, constants, logs)
        names = {constant.name for constant in measurement.constants}

        def change(
            index: int, factor: float, run: Measurement = measurement, base: float = float(ratios[row])
        ) -> float:
            """Return the change of the forecast's logarithm if the constant at `index` is `factor` times as large."""
            step = np.zeros(len(constants))
            step[index] = log(factor)
            return base - _log_ratio(run, constants, logs + step)

        for index, constant in enumerate(constants):
            if stale[index] and constant.name in names:
                shifted = replace(constant, most=max(1.0, constant.most / exp(logs[index])))
                new_slopes[row, index] = slope(shifted, partial(change, index))
    return ratios, new_slopes


def _log_ratio(measurement: Measurement, constants: Sequence[Constant], logs: Floats) -> float:
    """Return ln(measured / forecast) of a measurement with constants scaled by exp(`logs`) (constants,)."""
    return log(measurement.measured / measurement.forecast(measurement_changes(measurement, constants, logs)))


def measurement_changes(measurement: Measurement, constants: Sequence[Constant], logs: Floats) -> dict[str, object]:
    """Return {key: value} for a measurement, with constants scaled by exp(`logs`) (constants,).

    The usual values are the measurement's: a constant of the same name may have another value in another measurement.
    """
    log_by_name = {constant.name: x for constant, x in zip(constants, logs.tolist(), strict=True)}
    own_constants = [constant for constant in measurement.constants if constant.name in log_by_name]
    return changes(own_constants, np.array([log_by_name[constant.name] for constant in own_constants]))


_PINNED = 1e-6
"""Spread of a constant that is fixed by the limits of its keys."""


def _mean_within_limits(
    observations: Sequence[Observation], estimate: MachinePosterior, constants: Sequence[Constant]
) -> Floats:
    """Return the mean logarithms (constants,) within the limits of keys. If one is at its limit, others explain the rest."""
    pinned: dict[str, Observation] = {}
    mean = estimate.mean
    for _ in constants:
        beyond = [
            constant
            for constant, x in zip(constants, mean.tolist(), strict=True)
            if x > log(constant.most) and constant.name not in pinned
        ]
        if not beyond:
            break
        pinned |= {
            constant.name: Observation(constant.name, log(constant.most), {constant.name: 1.0}, _PINNED)
            for constant in beyond
        }
        mean = posterior([*observations, *pinned.values()], estimate.prior).mean
    return np.minimum(mean, [log(constant.most) for constant in constants])
