"""Uncertainty of forecasts: of a kernel, from errors on kernels outside the training data, and of a sum of kernels.

Split conformal prediction (Vovk et al., 2005): the 80 % interval is that of measured / forecast between its 10 % and 90 %
quantiles over similar kernels, of the same class and similar length, on GPUs that were measured (`seen`) or not (`new`). Every
generation of GPUs has equal weight. A GPU far from all measured ones gets a wider interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.model.kernel import Kernel
from clustersim.predictors.base import Predictor
from clustersim.predictors.classes import route
from clustersim.predictors.features import Flags, columns
from clustersim.units import duration

EDGES = (3e-5, 3e-4)
"""Seconds that separate short, medium and long kernels, which have intervals of their own."""
NEAR: Annotated[float, Declared("log", "kernels of GPUs left out")] = 0.7
"""Distance (log) up to which the errors of left-out GPUs also hold for a new GPU: left-out GPUs are this far from each other."""


class Distance(NamedTuple):
    """Nearest measured GPU, and its distance: the largest

    log

     of the ratios of the figures that decide kernels' times.
    """

    gpu: str
    """Name of the nearest measured GPU; `none` if there is none."""
    value: float
    """Distance, a natural logarithm."""

    def __str__(self) -> str:
        """Return a few words, such as `nearest measured GPU: gb200, figures up to 1.9 times apart`."""
        return f"nearest measured GPU: {self.gpu}, figures up to {np.exp(self.value):.1f} times apart"


def nearest(gpu: Gpu, names: Iterable[str]) -> Distance:
    """Return the nearest to `gpu` of the GPUs `names`, and its distance. Names of GPUs that are not shipped are ignored.

    The figures compared are peak per SM, peak per byte/s of memory, and watts per FLOP/s. Without a GPU to compare, the result
    has the name `none` and a distance of 10.
    """
    shipped = gpus.names()  # a user's own GPU is not among the shipped names, only its file describes it
    others = {name: _figures(gpus.load(name)) for name in names if name in shipped}
    distances = [Distance(name, float(np.abs(_figures(gpu) - figures).max())) for name, figures in others.items()]
    return min(distances, key=lambda distance: distance.value) if distances else Distance("none", 10.0)


def _figures(gpu: Gpu) -> Floats:
    """Return the logarithms of a GPU's peak per SM, peak per byte/s of memory, and watts per FLOP/s (3,)."""
    peak = gpu.matrix_peak("bf16" if "bf16" in gpu.matrix else "fp32")
    return np.log([peak / gpu.sms, peak / gpu.memory_bandwidth, gpu.power / peak])


def lookup(quantiles: Mapping[str, Any], seconds: Floats, distance: Distance | None) -> tuple[Floats, Floats]:
    """Return (low, high), the 80 % interval of measured / forecast for each kernel of one class (kernels,).

    quantiles: `intervals` of the class in the weights' metadata: (10 %, 90 %) by length (`EDGES`) for `seen` and `new` GPUs, and
    `widen`. seconds: forecasts of the kernels. distance: that of the GPU from the nearest measured one; None for a measured GPU.
    Wider intervals keep their centre (in logarithms), so that they contain those of nearer GPUs.
    """
    kind = "seen" if distance is None and "seen" in quantiles else "new"
    table = np.array(quantiles.get(kind, quantiles.get("seen")))
    low, high = table[np.searchsorted(EDGES, seconds)].T
    wider = quantiles.get("widen", 1.0) * max(1.0, distance.value / NEAR) if distance else 1.0
    middle = np.sqrt(low * high)
    return middle * (low / middle) ** wider, middle * (high / middle) ** wider


# How far a time that is a sum of kernels may be off, from the intervals of the kernels. Errors within a class are
# assumed equal, as they are if a GPU or library is faster than was learned, so they add up. Errors of different classes
# are assumed independent, so their squares add up. Errors below and above the forecast are summed separately.

CONTENT = "80 % of cases, by the errors of kernel times alone, not those of network or framework"
"""Note about intervals in which all kernels have a measured error."""


class Margin(NamedTuple):
    """80 % interval of a time."""

    low: float | None
    """Lower end in seconds; None if unknown."""
    high: float | None
    """Upper end in seconds; None if unknown."""
    note: str
    """Errors that the interval contains, in words."""


class Bounds(NamedTuple):
    """80 % intervals of measured / forecast for distinct kernels."""

    kernels: tuple[Kernel, ...]
    """Distinct kernels."""
    names: tuple[str, ...]
    """Class of each kernel (module classes)."""
    low: Floats
    """Lower end for each kernel; 0 if unknown (kernels,)."""
    high: Floats
    """Upper end for each kernel; inf if unknown (kernels,)."""

    def ends(self) -> dict[Kernel, tuple[float | None, float | None]]:
        """Return {kernel: (low, high)} of measured / forecast; None for an end that is unknown."""
        low = (value if value > 0 else None for value in self.low.tolist())
        high = (value if value < np.inf else None for value in self.high.tolist())
        return dict(zip(self.kernels, zip(low, high, strict=True), strict=True))

    def margin(self, time: float, critical: Mapping[Kernel, float]) -> Margin:
        """Return the 80 % interval of a time that depends on the kernels of its critical path.

        time: seconds. critical: {kernel: its seconds on the critical path}.
        """
        seconds = np.array([critical.get(kernel, 0.0) for kernel in self.kernels])
        less = self._deviation(seconds, 1 - self.low, self.low > 0)
        more = self._deviation(seconds, self.high - 1, np.isfinite(self.high))
        low, high = None if less is None else time - less, None if more is None else time + more
        return Margin(low, high, self._note(seconds, low, high))

    def _deviation(self, seconds: Floats, deviation: Floats, known: Flags) -> float | None:
        """Return the seconds by which the sum of the kernels may be off to one side; None if no kernel's deviation is known.

        seconds: time of each kernel. deviation: its relative deviation to that side, where the mask `known` is true. For others
        the largest known one is taken.
        """
        counted = known & (seconds > 0)
        if not counted.any():
            return None if (seconds > 0).any() else 0.0
        deviation = np.where(known, np.maximum(deviation, 0.0), 0.0)
        return _combined(self.names, seconds * np.where(known, deviation, deviation[counted].max()))

    def _note(self, seconds: Floats, low: float | None, high: float | None) -> str:
        """Return in words which errors the interval (low, high) contains; None stands for an unknown end.

        seconds: time of each kernel on the critical path.
        """
        unknown = (self.low <= 0) | ~np.isfinite(self.high)
        share = seconds[unknown].sum() / (seconds.sum() or 1.0)
        if low is None and high is None:
            return "the predictor does not know how far its forecasts are off"
        if low is None or high is None:
            return f"kernel times are {'upper' if low is None else 'lower'} bounds"
        if share < 0.001:
            return CONTENT
        kinds = dict.fromkeys([k.kind for k, u in zip(self.kernels, unknown & (seconds > 0), strict=True) if u])
        return f"{CONTENT}; {', '.join(kinds)} ({100 * share:.1f} % of kernel time), never measured, as far off as the worst"


def _combined(names: Sequence[str], deviations: Floats) -> float:
    """Return the seconds by which a sum of kernels deviates: the root of the sum of squares over the classes.

    Deviations of one class, whose errors are equal, are added first. names: class of each kernel. deviations: seconds of each
    kernel.
    """
    totals = dict.fromkeys(names, 0.0)
    for name, value in zip(names, deviations.tolist(), strict=True):
        totals[name] += value
    return float(np.sqrt(math.fsum(value * value for value in totals.values())))


def bounds(predictor: Predictor, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats) -> Bounds:
    """Return the 80 % intervals of distinct kernels. Raises InputError for invalid kernels.

    seconds: forecasts of the kernels (kernels,).
    """
    return Bounds(tuple(kernels), tuple(route(columns(kernels)).tolist()), *predictor.interval(kernels, gpu, seconds))


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval in seconds as text after a time, such as ` (80 %: 1.410 to 1.553 s)`. With one end it is ` (at least)`
    or ` (at most)`; with none it is empty."""
    if low is None or high is None:
        return " (at least)" if low is not None else " (at most)" if high is not None else ""
    lower, upper = duration(low), duration(high)
    if lower.split()[1] == upper.split()[1]:
        lower = lower.split()[0]
    return f" (80 %: {lower} to {upper})"
