"""Forecasts of a predictor for one GPU, cached by kernel and shared by the points of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.gpu import Gpu
from clustersim.model.kernel import Kernel, single_launch
from clustersim.predictors.base import Predictor
from clustersim.predictors.classes import route
from clustersim.predictors.clocks import Clocks, applied, derate, speeds
from clustersim.predictors.features import columns
from clustersim.predictors.sums import split_sums
from clustersim.predictors.uncertainty import Bounds

KERNELS, CLOCKS = 50_000, 8
"""Largest number of cached kernels, and of clocks with cached times."""


class KnownKernel(NamedTuple):
    """Cached forecast of a kernel."""

    burst: float
    """Seconds of one launch in a short burst."""
    sums: float
    """Extra seconds of fp32 sums per launch, which nothing hides (module sums)."""
    name: str
    """Class of the kernel (module classes)."""
    low: float
    """Lower end of the 80 % interval of measured / forecast; 0 if unknown."""
    high: float
    """Upper end of the interval; inf if unknown."""


class Forecasts:
    """Forecasts of a predictor for one GPU, each computed once. The cache is cleared when it is full.

    known: {kernel: its cached forecast}.
    """

    __slots__ = ("_seconds", "gpu", "known", "predictor")

    def __init__(self, predictor: Predictor, gpu: Gpu) -> None:
        self.predictor, self.gpu = predictor, gpu
        self.known: dict[Kernel, KnownKernel] = {}
        self._seconds: dict[Clocks, dict[Kernel, float]] = {}

    def seconds(self, kernels: Sequence[Kernel], clocks: Clocks) -> Mapping[Kernel, float]:
        """Return {kernel: seconds at `clocks`} of these kernels; other kernels that are cached may be included.

        A kernel that stands for several launches has the seconds of all. Raises InputError for invalid kernels.
        """
        clocks = applied(self.predictor, clocks)
        known = self._seconds.get(clocks, {})
        if not all(map(known.__contains__, kernels)):
            self._learn(kernels)
            while clocks not in self._seconds and len(self._seconds) >= CLOCKS:
                del self._seconds[next(iter(self._seconds))]
            # all known kernels, because those of the next point are likely among them
            known = self._seconds.setdefault(clocks, {})
            new = [kernel for kernel in self.known if kernel not in known]
            bursts, sums = np.array([self.known[kernel][:2] for kernel in new]).reshape(-1, 2).T
            launched, _, launches = self._launched(new)
            times = launches * (derate(launched, bursts, self.gpu, clocks) + sums)
            known.update(zip(new, (times / speeds(new, self.gpu)).tolist(), strict=True))
        return known

    def bounds(self, kernels: Sequence[Kernel]) -> Bounds:
        """Return the 80 % intervals of these kernels. Raises InputError for invalid kernels."""
        self._learn(kernels)
        known = map(self.known.__getitem__, kernels)
        *_, names, low, high = zip(*known, strict=True) if kernels else [()] * len(KnownKernel._fields)
        return Bounds(tuple(kernels), names, np.array(low, float), np.array(high, float))

    def _launched(self, kernels: Sequence[Kernel]) -> tuple[list[Kernel], list[float], Ints]:
        """Return, for each kernel, (the kernel that is launched, its extra seconds of fp32 sums, its number of launches).

        A kernel that stands for several equal launches is launched as one of them. Extra seconds are those that nothing hides.
        """
        single, launches = zip(*map(single_launch, kernels), strict=True)
        # bounds at datasheet rates contain these sums already
        launched, sums = split_sums(single, self.gpu) if self.predictor.burst else (list(single), [0.0] * len(single))
        return launched, sums, np.array(launches)

    def _learn(self, kernels: Sequence[Kernel]) -> None:
        """Add the forecasts of kernels to the cache, in one call of the predictor. A cache without room for them is cleared
        first."""
        if all(map(self.known.__contains__, kernels)):
            return
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self.known]
        if len(self.known) + len(new) > KERNELS:
            self.known, self._seconds = {}, {}
            new = list(dict.fromkeys(kernels))
        launched, sums, _ = self._launched(new)
        bursts = self.predictor.predict(launched, self.gpu)
        low, high = self.predictor.interval(launched, self.gpu, bursts)
        ends = (bursts.tolist(), sums, route(columns(launched)).tolist(), low.tolist(), high.tolist())
        self.known.update(zip(new, map(KnownKernel._make, zip(*ends, strict=True)), strict=True))
