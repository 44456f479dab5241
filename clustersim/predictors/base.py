"""The interface of predictors, and how they state their errors.

A predictor is a module (or package) in `kinds/` with `load(weights: Path

 None = None) -> Predictor`; `load.get(name)` returns one. The file of the same name in `lab/train/learners/` trains it, and no
forecast imports that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.model.kernel import Kernel
from clustersim.predictors.features import Columns, columns

ROOM = "clustersim.predictors"
"""Package of predictors, whose modules are found by name and may be plugins."""


class Scope(NamedTuple):
    """Accuracy of the forecasts for one data type and kind of kernels."""

    subject: str
    """Data type and kind, such as `fp32 linear`."""
    method: str
    """Method of the forecast, in words; the predictor's name if it is a trained model."""
    error: float | None
    """Mean absolute relative error on held-out kernels, 0.15 for 15 %; None if not measured."""
    samples: int
    """Number of held-out kernels."""
    on: str
    """GPU, or set of GPUs, on which the error was measured."""
    nearest: str = ""
    """Sentence about the nearest measured GPU, if the GPU of the forecast was not measured; else empty."""

    def __str__(self) -> str:
        """Return one sentence, such as `fp32 linear: 9.1 % on h100-sxm (1040 held-out kernels)`."""
        if self.error is None:
            return f"{self.subject}: {self.method}, error not measured"
        nearest = f"; {self.nearest}" if self.nearest else ""
        return f"{self.subject}: {100 * self.error:.1f} % on {self.on} ({self.samples} held-out kernels){nearest}"


@runtime_checkable
class Predictor(Protocol):
    """Interface of predictors, which forecast the time of kernels on a GPU. Subclasses must define `predict`."""

    __slots__ = ()

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel on `gpu`, an array (kernels,). Raises InputError for invalid kernels.

        alone: whether a kernel is timed as in a micro-benchmark, including the dispatch of one eager call. Otherwise it is one of
        many in a busy stream.
        """
        ...

    @property
    def name(self) -> str:
        """Name of the predictor in YAML; by default the class's name in lower case."""
        return type(self).__name__.lower()

    @property
    def burst(self) -> bool:
        """Whether forecasts hold for a burst at full clocks, so `clocks.derate` slows them for long steps. True by default."""
        return True

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the accuracy of each data type and kind among the kernels. By default, the error is unknown (None)."""
        pairs = subjects(columns(kernels))
        return tuple(Scope(f"{dtype} {kind}", self.name, None, 0, gpu.name) for dtype, kind in pairs)

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return (low, high), arrays (kernels,): measured / forecast is between them for 80 % of kernels.

        By default (0, inf) for each kernel, which means unknown. seconds: forecasts of the kernels, if the caller has them.
        """
        return unknown(len(kernels))

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return {class of kernels (module classes): names of the GPUs in its training data}. Empty by default."""
        return {}


def unknown(count: int) -> tuple[Floats, Floats]:
    """Return the interval (low, high) of `count` kernels without a measured error: zeros and infinities, (kernels,) each."""
    return np.zeros(count), np.full(count, np.inf)


def subjects(table: Columns) -> list[tuple[str, str]]:
    """Return the distinct (data type, kind) of the kernels, in order of appearance."""
    return list(dict.fromkeys(zip(table.dtype.tolist(), table.kind.tolist(), strict=True)))
