"""The roofline: a kernel takes max(FLOP / peak, bytes / bandwidth) of the datasheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.model.kernel import Kernel
from clustersim.predictors.base import Predictor, Scope, subjects
from clustersim.predictors.features import bound, columns


class Roofline(Predictor):
    """Predictor of lower bounds: no kernel is faster than its roofline (Williams et al., CACM 2009)."""

    __slots__ = ()

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel at the peak rates of `gpu` (kernels,). `alone` has no effect."""
        return bound(columns(kernels), gpu)

    @property
    def burst(self) -> bool:
        """False, because its forecasts are bounds at any clock, not times of a short burst."""
        return False

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return, for each data type and kind among the kernels, that forecasts are lower bounds without a measured error."""
        pairs = subjects(columns(kernels))
        return tuple(
            Scope(f"{dtype} {kind}", "lower bound at datasheet rates", None, 0, gpu.name) for dtype, kind in pairs
        )

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return arrays of 1 and of infinity (kernels,): no kernel is faster than its roofline, and no upper limit is known."""
        return np.ones(len(kernels)), np.full(len(kernels), np.inf)


def load(weights: Path | None = None) -> Predictor:
    """Return the roofline, which has no weights. Raises DataError if `weights` is not None."""
    if weights is not None:
        raise DataError(f"{weights}: the roofline has no weights; leave the file out")
    return Roofline()
