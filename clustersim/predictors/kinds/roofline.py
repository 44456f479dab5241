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
    """Lower bound of every other predictor (Williams et al., CACM 2009)."""

    __slots__ = ()

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel at the peak rates of `gpu`. `alone` has no effect."""
        return bound(columns(kernels), gpu)

    @property
    def burst(self) -> bool:
        """False, because its rates are bounds at any clock, not those of a short burst."""
        return False

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the statement that forecasts are lower bounds."""
        found = subjects(columns(kernels))
        return tuple(
            Scope(f"{dtype} {kind}", "lower bound at datasheet rates", None, 0, gpu.name) for dtype, kind in found
        )

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return (1, inf) for each kernel: no kernel is faster than its roofline, and no upper limit is known."""
        return np.ones(len(kernels)), np.full(len(kernels), np.inf)


def load(weights: Path | None = None) -> Predictor:
    """Return the roofline, which has no weights. Raises DataError if `weights` is not None."""
    if weights is not None:
        raise DataError(f"{weights}: the roofline has no weights; leave the file out")
    return Roofline()
