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
"""Seconds that separate short, medium and long kernels."""
NEAR: Annotated[float, Declared("log", "kernels of GPUs left out")] = 0.7
"""Distance (log) up to which the errors of left-out GPUs also hold for a new GPU: left-out GPUs are this far from each other."""


class Distance(NamedTuple):
    """Nearest measured GPU, and its distance: the largest

    log

     of the ratios of the figures that decide kernels' times.
    """

    gpu: str
    value: float

    def __str__(self) -> str:
        """Return a few words, such as `nearest measured GPU: gb200, figures up to 1.9 times apart`."""
        return f"nearest measured GPU: {self.gpu}, figures up to {np.exp(self.value):.1f} times apart"


def nearest(gpu: Gpu, names: Iterable[str]) -> Distance:
    """Return the nearest of the GPUs `names`, by logarithms of peak per SM, peak per byte of bandwidth, and watts per FLOP."""
    shipped = gpus.names()  # a user's own GPU is not among the shipped names, only its file describes it
    others = {name: _figures(gpus.load(name)) for name in names if name in shipped}
    found = [Distance(name, float(np.abs(_figures(gpu) - other).max())) for name, other in others.items()]
    return min(found, key=lambda distance: distance.value) if found else Distance("none", 10.0)


def _figures(gpu: Gpu) -> Floats:
    """Return the logarithms of a GPU's peak per SM, peak per byte/s of memory, and watts per FLOP/s (3,)."""
    peak = gpu.matrix_peak("bf16" if "bf16" in gpu.matrix else "fp32")
    return np.log([peak / gpu.sms, peak / gpu.memory_bandwidth, gpu.power / peak])


def lookup(found: Mapping[str, Any], seconds: Floats, distance: Distance | None) -> tuple[Floats, Floats]:
    """Return arrays (low, high) of measured / forecast for kernels of one class, by their forecast `seconds`.

    `distance` is that of the GPU from the nearest measured one, None for a measured GPU. Wider intervals keep their centre (in
    logarithms), so that they contain those of nearer GPUs.
    """
    table = np.array(found.get("seen" if distance is None and "seen" in found else "new", found.get("seen")))
    low, high = table[np.searchsorted(EDGES, seconds)].T
    wider = found.get("widen", 1.0) * max(1.0, distance.value / NEAR) if distance else 1.0
    middle = np.sqrt(low * high)
    return middle * (low / middle) ** wider, middle * (high / middle) ** wider


# How far a time that is a sum of kernels may be off, from the intervals of the kernels. Errors within a class are
# assumed equal, as they are if a GPU or library is faster than was learned, so they add up. Errors of different classes
# are assumed independent, so their squares add up. Errors below and above the forecast are summed separately.

CONTENT = "80 % of cases, by the errors of kernel times alone, not those of network or framework"


class Margin(NamedTuple):
    """Interval that contains a time in 80 % of cases."""

    low: float | None
    """Lower end in seconds; None if unknown."""
    high: float | None
    """Upper end in seconds; None if unknown."""
    note: str
    """Which errors the interval contains."""


class Bounds(NamedTuple):
    """80 % intervals of measured / forecast of kernels."""

    kernels: tuple[Kernel, ...]
    """Distinct kernels."""
    names: tuple[str, ...]
    """Class of each kernel."""
    low: Floats
    """Lower end for each kernel; 0 if unknown (kernels,)."""
    high: Floats
    """Upper end for each kernel; inf if unknown (kernels,)."""

    def ends(self) -> dict[Kernel, tuple[float | None, float | None]]:
        """Return {kernel: (low, high)}, with None where unknown."""
        low = (value if value > 0 else None for value in self.low.tolist())
        high = (value if value < np.inf else None for value in self.high.tolist())
        return dict(zip(self.kernels, zip(low, high, strict=True), strict=True))

    def margin(self, time: float, critical: Mapping[Kernel, float]) -> Margin:
        """Return the interval of `time` seconds, computed from the kernels on the critical path, `critical` {kernel: seconds}."""
        seconds = np.array([critical.get(kernel, 0.0) for kernel in self.kernels])
        less = self._off(seconds, 1 - self.low, self.low > 0)
        more = self._off(seconds, self.high - 1, np.isfinite(self.high))
        low, high = None if less is None else time - less, None if more is None else time + more
        return Margin(low, high, self._note(seconds, low, high))

    def _off(self, seconds: Floats, off: Floats, known: Flags) -> float | None:
        """Return the seconds by which kernels may deviate to one side, with the largest known share for unknown ones; None if
        none."""
        counted = known & (seconds > 0)
        if not counted.any():
            return None if (seconds > 0).any() else 0.0
        off = np.where(known, np.maximum(off, 0.0), 0.0)
        return _sum(self.names, seconds * np.where(known, off, off[counted].max()))

    def _note(self, seconds: Floats, low: float | None, high: float | None) -> str:
        """Return in words which errors the interval (low, high) of a time contains. seconds: time of each kernel."""
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


def _sum(names: Sequence[str], off: Floats) -> float:
    """Return the root of the sum of squares of `off`, after adding up those of one name, whose errors go together."""
    found = dict.fromkeys(names, 0.0)
    for name, value in zip(names, off.tolist(), strict=True):
        found[name] += value
    return float(np.sqrt(math.fsum(value * value for value in found.values())))


def bounds(predictor: Predictor, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats) -> Bounds:
    """Return the intervals of distinct kernels, whose forecasts are `seconds`. Raises InputError for impossible kernels."""
    return Bounds(tuple(kernels), tuple(route(columns(kernels)).tolist()), *predictor.interval(kernels, gpu, seconds))


def between(low: float | None, high: float | None) -> str:
    """Return an interval as text after a time: ` (80 %: 1.410 to 1.553 s)`; empty if unknown."""
    if low is None or high is None:
        return " (at least)" if low is not None else " (at most)" if high is not None else ""
    least, most = duration(low), duration(high)
    if least.split()[1] == most.split()[1]:
        least = least.split()[0]
    return f" (80 %: {least} to {most})"
